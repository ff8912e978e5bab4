"""Connections between the members of one host: they bring messages, and tell of a death.

Each two members have a socket (SOCK_SEQPACKET). It ends when its last holder does, after that process's last
message and its last write to memory, so that an end is final. A child that the program forks must not hold it
open: it closes its copies at once.
"""

import contextlib
import os
import select
import socket
import threading
import weakref
from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple

from dtrain.messages import AnyMessage
from dtrain.wire.frames import Limits
from dtrain.wire.one_host.packets import PacketSocket

_LIMITS = Limits(1 << 26, 0)
_open: "weakref.WeakSet[MemberLinks]" = weakref.WeakSet()


class Heard(NamedTuple):
    """A message from a member; None where its process has ended."""

    member: int
    message: AnyMessage | None


class MemberLinks:
    """This member's sockets, one to each other member, by their numbers.

    One thread receives, and one at a time sends; `offer` may be called by any thread.

    Attributes:
        ranks: of all members, as their driver knows them.
    """

    ranks: Sequence[int] = ()

    def __init__(self, sockets: Mapping[int, socket.socket]) -> None:
        self._links: dict[int, tuple[socket.socket, PacketSocket]] = {}
        self._member_of: dict[int, int] = {}
        self._late: dict[int, AnyMessage] = {}
        self._offered: dict[int, tuple[int, socket.socket]] = {}
        self._offers = count()
        self._guard = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.epoll()
        self._poll.register(self._wake, select.EPOLLIN)
        for number, each in sockets.items():
            self.use(number, each)
        _open.add(self)

    def use(self, number: int, connection: socket.socket) -> None:
        """Let this socket lead to the member of a number."""
        connection.setblocking(False)
        self._links[number] = connection, PacketSocket(connection)
        self._member_of[connection.fileno()] = number
        self._poll.register(connection, select.EPOLLIN)

    @property
    def numbers(self) -> set[int]:
        return set(self._links)

    def number(self, before: int, number: int) -> None:
        """Let the member that was known as `before` have this number."""
        connection, packets = self._links.pop(before)
        self._links[number] = connection, packets
        self._member_of[connection.fileno()] = number

    # Processes that are to become members

    def offer(self, rank: int, connection: socket.socket) -> None:
        """Keep the socket to a process that is to become a member of this rank; `take_up` puts it in use."""
        with self._guard:
            if self._poll.closed:
                connection.close()  # this member has left
                return
            earlier = self._offered.pop(rank, None)
            self._offered[rank] = next(self._offers), connection
            os.eventfd_write(self._wake, 1)  # a wait in `receive` ends
        if earlier is not None:
            earlier[1].close()

    @property
    def offered(self) -> Mapping[int, int]:
        """The ranks of processes that are to become members, and what tells one process from another."""
        with self._guard:
            return {rank: number for rank, (number, _) in self._offered.items()}

    def take_up(self, rank: int, number: int) -> bool:
        """Put an offered socket in use; return whether there was one."""
        with self._guard:
            offered = self._offered.pop(rank, None)
        if offered is not None:
            self.use(number, offered[1])
        return offered is not None

    # Messages

    def send(self, number: int, message: AnyMessage) -> None:
        """Send a message, or keep it for later if the receiver reads none: only the newest one counts."""
        self._late.pop(number, None)
        if number not in self._links:
            return
        try:
            self._links[number][1].send(message)
        except BlockingIOError:
            self._late[number] = message
        except OSError:
            return  # it has ended, as `receive` will find

    def notify(self, message: AnyMessage) -> None:
        """Send to all who read a message that needs not arrive twice."""
        for _, packets in self._links.values():
            with contextlib.suppress(OSError):
                packets.send(message)

    def receive(self, timeout_s: float) -> list[Heard]:
        """Return all that has come, of each member in its order; wait for it at most so long."""
        for number, message in list(self._late.items()):
            self.send(number, message)
        found: list[Heard] = []
        for descriptor, _ in self._poll.poll(max(0.0, timeout_s)):
            if descriptor == self._wake:
                os.eventfd_read(self._wake)
                continue
            number = self._member_of[descriptor]
            found += self._received(number, self._links[number][1])
        return found

    def _received(self, number: int, packets: PacketSocket) -> list[Heard]:
        found: list[Heard] = []
        while True:
            try:
                frame = packets.receive(_LIMITS)
            except BlockingIOError:
                return found
            except OSError:
                frame = None
            found.append(Heard(number, None if frame is None else frame.message))
            if frame is None:
                self.drop(number)
                return found

    def drop(self, number: int) -> None:
        """Close the socket to a member, if there is one."""
        connection, _ = self._links.pop(number, (None, None))
        self._late.pop(number, None)
        if connection is not None:
            self._poll.unregister(connection)
            del self._member_of[connection.fileno()]
            connection.close()

    def close(self) -> None:
        with self._guard:
            self._close()

    def _close(self) -> None:
        for connection, _ in (*self._links.values(), *((each, None) for _, each in self._offered.values())):
            connection.close()
        self._links.clear()
        self._offered.clear()
        self._member_of.clear()
        self._late.clear()
        if not self._poll.closed:
            self._poll.close()
            os.close(self._wake)


def _close_in_child() -> None:
    for each in list(_open):
        each._close()  # without the guard, which another thread of the parent may hold


os.register_at_fork(after_in_child=_close_in_child)
