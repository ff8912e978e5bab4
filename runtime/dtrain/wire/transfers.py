"""Large messages one at a time in each direction, so that a server's memory does not grow with the number of its clients.

A gradient that is being received and an answer that is being sent are each a copy of the server's variables. Where answers are
given at once (asynchronous training), one of each is allowed: whoever comes next waits while its bytes stay at the sender, held
back by flow control. A peer that has stalled holds the others up for `STALL_S` at most: it may cost memory, never progress.
"""

import threading

LARGE_BYTES = 1024 * 1024
STALL_S = 1.0


class Turn:
    """The right to be the one large transfer in one direction, for one connection at a time.

    Attributes:
        taken: whether this connection is having its turn (or has waited long enough for it).
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._held = False
        self.taken = False

    def take(self) -> None:
        """Wait for the turn, for `STALL_S` at most; taking it twice is taking it once."""
        if not self.taken:
            self.taken = True
            self._held = self._lock.acquire(timeout=STALL_S)

    def give_back(self) -> None:
        """The transfer is over; giving back what was not taken changes nothing."""
        if self._held:
            self._lock.release()
        self._held = self.taken = False
