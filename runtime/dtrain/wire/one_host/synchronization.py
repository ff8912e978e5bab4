"""Sockets that wake the replicas of one host and tell of a death, and locks that the kernel takes back.

A notification is a packet of one byte. It says nothing: who waits looks at the words in memory again. A
socket ends when its last holder does, after that process's last write to memory, so that an end is final. A
child that the program forks must not hold it open: it closes its copies at once.

They are locks of an open file description (`F_OFD_SETLK`) on bytes of a shared memory, which nobody reads for
that. They say nothing of the memory itself. A child that the program forks must not keep them: it closes its
copies at once.
"""

import contextlib
import fcntl
import os
import select
import socket
import struct
import threading
import weakref
from collections.abc import Iterable, Mapping

_PACKET_BYTES = 64
_NOTIFICATION = b"\0"
_open: "weakref.WeakSet[NotifySockets | Locks]" = weakref.WeakSet()


class NotifySockets:
    """This rank's sockets (SOCK_SEQPACKET), one to each other rank, that wake it and others.

    One thread uses them; `offer` may be called by another. `dead` are the ranks whose socket has ended; a
    rank that is connected again is no longer one of them.
    """

    def __init__(self, sockets: Mapping[int, socket.socket]) -> None:
        self.dead: set[int] = set()
        self._sockets: dict[int, socket.socket] = {}
        self._rank_of: dict[int, int] = {}
        self._offered: dict[int, socket.socket] = {}
        self._poll = select.poll()
        for rank, each in sockets.items():
            self._use(rank, each)
        _open.add(self)

    def _use(self, rank: int, connection: socket.socket) -> None:
        self._drop(rank)
        connection.setblocking(False)
        self._sockets[rank] = connection
        self._rank_of[connection.fileno()] = rank
        self._poll.register(connection, select.POLLIN)
        self.dead.discard(rank)

    def _drop(self, rank: int) -> None:
        connection = self._sockets.pop(rank, None)
        if connection is not None:
            self._poll.unregister(connection)
            del self._rank_of[connection.fileno()]
            connection.close()

    def offer(self, rank: int, connection: socket.socket) -> None:
        """Keep the socket to a process that is to become a member as this rank; `take_up` puts it in use."""
        earlier = self._offered.pop(rank, None)
        if earlier is not None:
            earlier.close()
        self._offered[rank] = connection

    @property
    def linked(self) -> set[int]:
        return set(self._sockets)

    @property
    def offered(self) -> set[int]:
        return set(self._offered)

    def take_up(self, rank: int) -> None:
        self._use(rank, self._offered.pop(rank))

    def notify(self) -> None:
        """Wake every rank that waits; one whose socket is full is awake, and one may be gone."""
        for connection in self._sockets.values():
            with contextlib.suppress(OSError):
                connection.send(_NOTIFICATION, socket.MSG_DONTWAIT)

    def wait(self, timeout_s: float) -> bool:
        ready = self._poll.poll(max(0.0, timeout_s) * 1000)
        for descriptor, _ in ready:
            self._receive(self._rank_of[descriptor])
        return bool(ready)

    def _receive(self, rank: int) -> None:
        """Receive one signal; others that are there wake the next waits, which check the words and go on."""
        try:
            heard = self._sockets[rank].recv(_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        if not heard:
            self.dead.add(rank)
            self._drop(rank)

    def close(self) -> None:
        for connection in (*self._sockets.values(), *self._offered.values()):
            connection.close()
        self._sockets.clear()
        self._offered.clear()
        self._rank_of.clear()
        self._poll = select.poll()


def pairs(ranks: Iterable[int]) -> dict[int, dict[int, socket.socket]]:
    """Return a socket pair for each two ranks: by rank, its ends by the other's rank."""
    ends: dict[int, dict[int, socket.socket]] = {rank: {} for rank in ranks}
    for rank in ends:
        for other in ends:
            if other < rank:
                ends[rank][other], ends[other][rank] = socket.socketpair(
                    socket.AF_UNIX, socket.SOCK_SEQPACKET
                )
    return ends


_FLOCK = "hhqqi"


class Locks:
    """One replica's locks, on numbers from 0: on bytes of the memory of `fd`, which stays the caller's.

    Any thread may use them; what one thread has, no other can take.
    """

    def __init__(self, fd: int) -> None:
        self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)  # a description of its own
        self._held: set[int] = set()
        self._guard = threading.Lock()
        _open.add(self)

    def acquire(self, number: int) -> bool:
        """Lock a number unless another replica has it; return whether this replica has it now."""
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
        with self._guard:
            given_up = struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, number, 1, 0)
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, given_up)
            self._held.discard(number)

    def is_free(self, number: int) -> bool:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        found = struct.unpack(_FLOCK, fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, asked))
        return bool(found[0] == fcntl.F_UNLCK)

    def close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        self.close()


def _close_in_child() -> None:
    for each in list(_open):
        each.close()


os.register_at_fork(after_in_child=_close_in_child)
