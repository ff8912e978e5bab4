"""The bells among replicas of one host: a Unix socket pair for each two, whose end tells of a death.

A bell is a packet of one byte. It says nothing: who waits looks at the words of the board again. The socket
ends when its last holder does, after that process's last write to memory, so that an end is final. A child
that the program forks must not hold it open: it closes its copies at once.
"""

import contextlib
import os
import select
import socket
import weakref
from collections.abc import Iterable, Mapping

_PACKET_BYTES = 64
_BELL = b"\0"
_all: "weakref.WeakSet[Bells]" = weakref.WeakSet()


class Bells:
    """This rank's ends, one to each other rank. Used by one thread; `offer` may be called by another.

    Attributes:
        dead: the ranks whose socket has ended; a rank that is connected again is no longer one of them.
    """

    def __init__(self, sockets: Mapping[int, socket.socket]) -> None:
        """Take over the sockets (SOCK_SEQPACKET), by rank."""
        self.dead: set[int] = set()
        self._sockets: dict[int, socket.socket] = {}
        self._rank_of: dict[int, int] = {}
        self._offered: dict[int, socket.socket] = {}
        self._poll = select.poll()
        for rank, each in sockets.items():
            self._use(rank, each)
        _all.add(self)

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
        """The ranks to which there is a socket in use."""
        return set(self._sockets)

    @property
    def offered(self) -> set[int]:
        """The ranks that wait to become members."""
        return set(self._offered)

    def take_up(self, rank: int) -> None:
        """Use the socket that was offered for a new member, in the place of its predecessor's."""
        self._use(rank, self._offered.pop(rank))

    def ring(self) -> None:
        """Wake every rank that waits; one whose socket is full of bells is awake, and one may be gone."""
        for connection in self._sockets.values():
            with contextlib.suppress(OSError):
                connection.send(_BELL, socket.MSG_DONTWAIT)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a bell or an end; return False if neither came in time."""
        ready = self._poll.poll(max(0.0, timeout_s) * 1000)
        for descriptor, _ in ready:
            self._hear(self._rank_of[descriptor])
        return bool(ready)

    def _hear(self, rank: int) -> None:
        """Take one bell; the others that are there wake the next waits, which look at the words and go on."""
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
        """Close every end: for all others this rank is gone."""
        for connection in (*self._sockets.values(), *self._offered.values()):
            connection.close()
        self._sockets.clear()
        self._offered.clear()
        self._rank_of.clear()
        self._poll = select.poll()


def is_open(end: socket.socket) -> bool:
    """Return whether a process holds the other end; bells that wait to be heard do not hide that."""
    poll = select.poll()
    poll.register(end, 0)
    return not poll.poll(0)


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


def _close_in_child() -> None:
    for bells in list(_all):
        bells.close()


os.register_at_fork(after_in_child=_close_in_child)
