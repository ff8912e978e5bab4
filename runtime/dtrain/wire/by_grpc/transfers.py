"""Large messages one at a time in each direction, so that a server's memory does not grow with the number of
its clients.

A gradient that is being received and an answer that is being sent are each a copy of the server's variables.
Where answers are given at once (asynchronous training), one of each is allowed: the next one waits while its
bytes stay at the sender, held back by flow control. When nothing has moved for `STALL_S`, the next one goes
on: a stalled peer may cost memory, never progress.
"""

import threading
from dataclasses import dataclass, field

LARGE_BYTES = 1024 * 1024
STALL_S = 1.0


@dataclass
class Traffic:
    """The large transfers of one server.

    Attributes:
        receiving: held by the connection that receives a large message.
        sending: held by the one that sends.
        moved: chunks that the two have moved so far.
    """

    receiving: threading.Lock = field(default_factory=threading.Lock)
    sending: threading.Lock = field(default_factory=threading.Lock)
    moved: int = 0


class Turn:
    """The right to be the one large transfer in one direction, for one connection at a time.

    Attributes:
        taken: whether this connection is having its turn (or has waited long enough for it).
    """

    def __init__(self, traffic: Traffic, lock: threading.Lock) -> None:
        self._traffic = traffic
        self._lock = lock
        self._held = False
        self.taken = False

    def take(self) -> None:
        """Wait for the turn as long as something moves; taking it twice is taking it once."""
        moved = -1
        while not self.taken:
            stalled, moved = moved == self._traffic.moved, self._traffic.moved
            self._held = not stalled and self._lock.acquire(timeout=STALL_S)
            self.taken = self._held or stalled

    def moved(self) -> None:
        """Record that a chunk of this connection's has been moved."""
        self._traffic.moved += self._held

    def give_back(self) -> None:
        """End the transfer; without effect if none was taken."""
        if self._held:
            self._lock.release()
        self._held = self.taken = False
