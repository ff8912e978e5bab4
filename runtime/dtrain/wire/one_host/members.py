"""Connections between members: they bring messages, and tell of a death.

Each two members of a host have a socket (SOCK_SEQPACKET). It ends when its last holder does, after that
process's last message and its last write to memory, so that an end is final. A child that the program forks
must not hold it open: it closes its copies at once. Members of other hosts are reached by streams
(`wire.member_streams`).
"""

import contextlib
import os
import select
import socket
import threading
import weakref
from collections.abc import Mapping, Sequence, Set
from itertools import count
from typing import NamedTuple

from dtrain.messages import AnyMessage
from dtrain.wire.frames import Limits
from dtrain.wire.member_streams import MemberStreams, OpenStream
from dtrain.wire.one_host.packets import PacketSocket
from dtrain.wire.one_host.synchronization import Locks

_LIMITS = Limits(1 << 26, 0)
LEADS = 0
"""The lock of the member that leads; each has another one, by its number, for as long as it lives."""
_LIVES = 1
_open: "weakref.WeakSet[MemberLinks]" = weakref.WeakSet()


class Heard(NamedTuple):
    """A message from a member; None where its process has ended."""

    member: int
    message: AnyMessage | None


class MemberLinks:
    """This member's sockets, one to each other member, by their numbers.

    One thread uses it at a time, but for `events.poll`, `wake` and `offer`.

    Attributes:
        events: finds where messages come from, for `take`.
        offers: sockets to processes that are to become members, by rank.
        ranks: of all members, as their driver knows them.
        locks: on the memory of all members.
        far: the streams to members of other hosts; None where there are none.
    """

    ranks: Sequence[int] = ()
    far: MemberStreams | None = None

    def __init__(self, sockets: Mapping[int, socket.socket], locks: Locks) -> None:
        self.locks = locks
        self._links: dict[int, tuple[socket.socket, PacketSocket]] = {}
        self._member_of: dict[int, int] = {}
        self._late: dict[int, AnyMessage] = {}
        self.offers: dict[int, tuple[int, socket.socket]] = {}
        self._numbers = count()
        self._guard = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.events = select.epoll()
        self.events.register(self._wake, select.EPOLLIN)
        for number, each in sockets.items():
            self.use(number, each)
        _open.add(self)

    def reach(self, open_stream: OpenStream, longest: int) -> MemberStreams:
        """Reach members of other hosts, too, in messages of at most so many bytes."""
        self.far = MemberStreams(open_stream, self.events, self.wake, longest)
        return self.far

    def use(self, number: int, connection: socket.socket) -> None:
        """Let this socket lead to the member of a number."""
        connection.setblocking(False)
        self._links[number] = connection, PacketSocket(connection)
        self._member_of[connection.fileno()] = number
        self.events.register(connection, select.EPOLLIN)

    @property
    def numbers(self) -> Set[int]:
        return self._links.keys()

    def number(self, before: int, number: int) -> None:
        """Let the member that was known as `before` have this number."""
        connection, packets = self._links.pop(before)
        self._links[number] = connection, packets
        self._member_of[connection.fileno()] = number

    def begin(self, number: int) -> None:
        """Take part under this number: from now on others can see that this process lives."""
        taken = self.locks.acquire(_LIVES + number)
        assert taken, "a number is of one process"

    def lives(self, number: int) -> bool:
        """Return whether the process of a member lives, even if there is no socket to it."""
        return not self.locks.is_free(_LIVES + number)

    # Processes that are to become members

    @property
    def is_closed(self) -> bool:
        return self.events.closed

    def offer(self, rank: int, connection: socket.socket) -> None:
        """Keep the socket to a process that is to become a member of this rank; `take_up` puts it in use."""
        with self._guard:
            if self.events.closed:
                connection.close()  # this member has left
                return
            earlier = self.offers.pop(rank, None)
            self.offers[rank] = next(self._numbers), connection
        self.wake()
        if earlier is not None:
            earlier[1].close()

    @property
    def offered(self) -> Mapping[int, int]:
        """The ranks of processes that are to become members, and what tells one process from another."""
        with self._guard:
            return {rank: number for rank, (number, _) in self.offers.items()}

    def take_up(self, rank: int, number: int) -> bool:
        """Put an offered socket in use; return whether there was one."""
        with self._guard:
            offered = self.offers.pop(rank, None)
        if offered is not None:
            self.use(number, offered[1])
        return offered is not None

    def wake(self) -> None:
        """Let the present or next wait for messages end."""
        with self._guard:
            if not self.events.closed:  # else this member has left
                os.eventfd_write(self._wake, 1)

    # Messages

    def send(self, number: int, message: AnyMessage) -> None:
        """Send a message, or keep it for later if the receiver reads none: only the newest one counts."""
        self._late.pop(number, None)
        if number not in self._links:
            if self.far is not None:
                self.far.send(number, message)
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
        return self.take(self.events.poll(max(0.0, timeout_s)))

    def take(self, ready: Sequence[tuple[int, int]]) -> list[Heard]:
        """Return what has come, where `events` has found something."""
        for number, message in list(self._late.items()):
            self.send(number, message)
        found: list[Heard] = []
        for descriptor, _ in ready:
            if descriptor == self._wake:
                os.eventfd_read(self._wake)
            elif (member := self._member_of.get(descriptor)) is not None:
                found += self._received(member, self._links[member][1])
            elif self.far is not None:
                number, messages = self.far.received(descriptor)
                found += [Heard(number, message) for message in messages]
        if self.far is not None:
            found += [Heard(number, None) for number in self.far.settle()]
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
            self.events.unregister(connection)
            del self._member_of[connection.fileno()]
            connection.close()

    def close(self) -> None:
        if self.far is not None:
            self.far.close()
        with self._guard:
            self._close()

    def _close(self) -> None:
        for connection, _ in (*self._links.values(), *((each, None) for _, each in self.offers.values())):
            connection.close()
        self._links.clear()
        self.offers.clear()
        self._member_of.clear()
        self._late.clear()
        self.locks.close()
        if not self.events.closed:
            self.events.close()
            os.close(self._wake)


def _close_in_child() -> None:
    for each in list(_open):
        if each.far is not None:
            each.far.close_in_child()
        each._close()  # without the guard, which another thread of the parent may hold


os.register_at_fork(after_in_child=_close_in_child)
