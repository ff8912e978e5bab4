"""Locks of processes on what they share, which the kernel takes back from a process that has ended.

They are locks of an open file description (`F_OFD_SETLK`) on bytes of a shared memory, which nobody reads for
that. They say nothing of the memory itself. A child that the program forks must not keep them: it closes its
copies at once.
"""

import contextlib
import fcntl
import os
import struct
import threading
import weakref

_FLOCK = "hhqqi"
_all: "weakref.WeakSet[Locks]" = weakref.WeakSet()


class Locks:
    """One replica's, on numbers from 0. Any thread may use them; what one thread has, no other can take."""

    def __init__(self, fd: int) -> None:
        """Lock bytes of the memory of `fd`, which stays the caller's."""
        self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)  # a description of its own
        self._held: set[int] = set()
        self._guard = threading.Lock()
        _all.add(self)

    def take(self, number: int) -> bool:
        """Take a lock unless another replica has it; return whether this replica has it now."""
        with self._guard:
            if number in self._held:
                return False
            wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
            try:
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, wanted)
            except BlockingIOError:
                return False
            self._held.add(number)
            return True

    def release(self, number: int) -> None:
        """Give a lock up."""
        with self._guard:
            given_up = struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, number, 1, 0)
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, given_up)
            self._held.discard(number)

    def is_free(self, number: int) -> bool:
        """Return whether no other replica has a lock."""
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        found = struct.unpack(_FLOCK, fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, asked))
        return bool(found[0] == fcntl.F_UNLCK)

    def close(self) -> None:
        """Give up all."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        self.close()


def _close_in_child() -> None:
    for locks in list(_all):
        locks.close()


os.register_at_fork(after_in_child=_close_in_child)
