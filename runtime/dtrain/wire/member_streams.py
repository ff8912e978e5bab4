"""Messages between members on different hosts: the newest one of each counts, on a stream each way.

    message:  length (u32, little endian) | msgpack of the message

A stream is opened when there is something to say. Where one ends, it is opened again: if no process listens
at the member's address any more, or another one does, the member has ended.
"""

import select
import struct
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue

import msgspec
import numpy as np

from dtrain.errors import PeerError, PeerGoneError, PeerRefusedError
from dtrain.messages import AnyMessage
from dtrain.messages.rounds import MemberSeat
from dtrain.wire.streams import Incoming, Outgoing

ATTEMPT_S = 2.0
"""The longest time that one attempt to open a stream may take."""
_PAUSE_S = 0.1
_LATE = 8
"""The number of messages that may wait in a stream; beyond it only the newest one is kept."""
_LENGTH = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyMessage).decode

OpenStream = Callable[[MemberSeat, float], Outgoing]
"""Opens a stream to a member, within so many seconds."""


@dataclass
class _Member:
    """One member of another host, as it is reached from here."""

    seat: MemberSeat | None = None
    out: Outgoing | None = None
    connection: int = -1
    opens: bool = False
    refused: bool = False
    newest: bytes | None = None
    come: dict[int, tuple[Incoming, bytearray]] = field(default_factory=dict)


class MemberStreams:
    """The streams of one member. Its owner uses it from one thread at a time; `arrived` is for any."""

    def __init__(
        self, open_stream: OpenStream, poll: select.epoll, wake: Callable[[], None], longest: int
    ) -> None:
        """Open nothing yet.

        Args:
            poll: gets the descriptors to watch; what it finds is to be given to `received`.
            wake: makes the owner call `settle` soon.
            longest: the most bytes of a message.
        """
        self._open_stream, self._poll, self._wake, self._longest = open_stream, poll, wake, longest
        self._members: dict[int, _Member] = {}
        self._of_descriptor: dict[int, int] = {}
        self._events: SimpleQueue[tuple[int, Outgoing | Incoming | PeerError]] = SimpleQueue()
        self._closed = threading.Event()
        self._wanted: Collection[int] = ()
        self._connections = 0
        self._ended: set[int] = set()
        self._news: list[int] = []

    # Whom to reach

    def know(self, seat: MemberSeat) -> None:
        """Note where a member listens; streams of another task under its number are not its own."""
        member = self._members.setdefault(seat.number, _Member())
        member.seat = seat
        for descriptor, (stream, _) in list(member.come.items()):
            if stream.peer != seat.task:
                self._end_stream(member, descriptor)

    def want(self, numbers: Collection[int]) -> None:
        """Note which members are watched: a connection of theirs that ends is opened again."""
        self._wanted = numbers

    def probe(self, number: int) -> None:
        """Find out whether a member lives."""
        member = self._members.get(number)
        if member is not None and member.out is None:
            self._begin(number)

    def arrived(self, name: str, stream: Incoming) -> None:
        """Receive from a stream, whose name is the sender's number."""
        number = int(name) if name.isascii() and name.isdigit() else -1
        self._events.put((number, stream))
        self._wake()

    def connection(self, number: int) -> int:
        """Return the number of the connection to a member; -1: none is open."""
        member = self._members.get(number)
        return -1 if member is None or member.out is None else member.connection

    # Messages

    def send(self, number: int, message: AnyMessage) -> None:
        """Send a message, at once or when that is possible: a newer one takes its place meanwhile."""
        member = self._members.setdefault(number, _Member())
        if number in self._ended:
            return
        member.newest = _encode(message)
        self._send_newest(number, member)

    def send_now(self, number: int, message: AnyMessage) -> bool:
        """Send a message if a connection is open, after all before; return whether that is so."""
        member = self._members.get(number)
        if member is None or number in self._ended:
            return False
        if member.out is None:
            self._begin(number)
            return False
        return self._put(number, member, _encode(message))

    def _send_newest(self, number: int, member: _Member) -> None:
        assert member.newest is not None, "the caller has looked"
        if member.out is None:
            self._begin(number)
        elif member.out.unsent < _LATE and self._put(number, member, member.newest):
            member.newest = None

    def _put(self, number: int, member: _Member, packet: bytes) -> bool:
        assert member.out is not None, "the caller has looked"
        try:
            member.out.send(np.frombuffer(_LENGTH.pack(len(packet)) + packet, np.uint8))
        except PeerError:
            self._drop_out(number, member)
            return False
        return True

    # Streams

    def _begin(self, number: int) -> None:
        member = self._members[number]
        if member.opens or member.seat is None or member.refused or self._closed.is_set():
            return
        member.opens = True
        run = partial(self._open, number, member.seat, 0.0 if member.connection < 0 else _PAUSE_S)
        threading.Thread(target=run, name=f"stream to {member.seat.task}", daemon=True).start()

    def _open(self, number: int, seat: MemberSeat, pause_s: float) -> None:
        found: Outgoing | PeerError
        try:
            self._closed.wait(pause_s)
            found = self._open_stream(seat, ATTEMPT_S)
        except PeerError as error:
            found = error
        if self._closed.is_set() and isinstance(found, Outgoing):
            found.close()
        self._events.put((number, found))
        self._wake()

    def settle(self) -> list[int]:
        """Use streams that have been opened, and try again where that has failed; then send what is late.

        Returns: the members that have certainly ended since the last call, after all that they have said.
        """
        while True:
            try:
                number, found = self._events.get_nowait()
            except Empty:
                break
            self._settle(number, found)
        for number, member in self._members.items():
            if member.newest is not None:
                self._send_newest(number, member)
        news, self._news = self._news, []
        return news

    def _settle(self, number: int, found: Outgoing | Incoming | PeerError) -> None:
        member = self._members.setdefault(number, _Member())
        if isinstance(found, Incoming):
            if number < 0 or (member.seat is not None and member.seat.task != found.peer):
                found.close()
                return
            member.come[found.fileno()] = found, bytearray()
            self._watch(number, found, select.EPOLLIN)
            return
        member.opens = False
        if isinstance(found, Outgoing):
            self._connections += 1
            member.out, member.connection = found, self._connections
            self._watch(number, found, select.EPOLLRDHUP)
        elif isinstance(found, PeerGoneError | PeerRefusedError):
            member.refused = True
            self._end_if_over(number, member)
        elif member.newest is not None or number in self._wanted:
            member.connection = max(0, member.connection)
            self._begin(number)

    def _watch(self, number: int, stream: Incoming | Outgoing, events: int) -> None:
        self._of_descriptor[stream.fileno()] = number
        self._poll.register(stream.fileno(), events)

    def _unwatch(self, stream: Incoming | Outgoing) -> None:
        self._poll.unregister(stream.fileno())
        del self._of_descriptor[stream.fileno()]
        stream.close()

    def _drop_out(self, number: int, member: _Member) -> None:
        """Close the stream to a member, and open it again: so it is found whether the member has ended."""
        if member.out is not None:
            self._unwatch(member.out)
            member.out = None
            self._begin(number)

    def _end_if_over(self, number: int, member: _Member) -> None:
        if member.refused and not member.come and number not in self._ended:
            self._ended.add(number)
            self._news.append(number)

    def received(self, descriptor: int) -> tuple[int, list[AnyMessage]]:
        """Return what a member has sent, and its number; -1: this descriptor is not watched."""
        number = self._of_descriptor.get(descriptor, -1)
        member = self._members.get(number)
        if member is None:
            return -1, []
        if descriptor not in member.come:
            self._drop_out(number, member)
            return number, []
        stream, kept = member.come[descriptor]
        found: list[AnyMessage] = []
        try:
            while come := stream.receive_now():
                kept += come
                if stream.is_plain:
                    break  # `events` finds what is left; TLS may keep it to itself
            found = self._cut(stream, kept)
        except PeerError:
            found = self._cut_last(stream, kept)
            self._end_stream(member, descriptor)
            self._end_if_over(number, member)
            if member.out is not None:
                self._drop_out(number, member)
            else:
                self._begin(number)
        return number, found

    def refuse(self, number: int) -> None:
        """Hear a member no more on the streams that have come; it may open others."""
        member = self._members[number]
        for descriptor in list(member.come):
            self._end_stream(member, descriptor)

    def _end_stream(self, member: _Member, descriptor: int) -> None:
        stream, _ = member.come.pop(descriptor)
        self._unwatch(stream)

    def _cut_last(self, stream: Incoming, kept: bytearray) -> list[AnyMessage]:
        try:
            return self._cut(stream, kept)
        except PeerError:
            return []

    def _cut(self, stream: Incoming, kept: bytearray) -> list[AnyMessage]:
        found: list[AnyMessage] = []
        while len(kept) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(kept)
            if length > self._longest:
                raise PeerRefusedError(f"{stream.peer} sends a message of {length} bytes")
            end = _LENGTH.size + length
            if len(kept) < end:
                break
            try:
                found.append(_decode(memoryview(kept)[_LENGTH.size : end]))
            except msgspec.MsgspecError as error:
                raise PeerRefusedError(f"{stream.peer} sends what is no message: {error}") from None
            del kept[:end]
        return found

    # The end

    def flush(self, deadline: float) -> None:
        """Wait until what was said has left, at most until a time of `time.monotonic`."""
        for number, member in self._members.items():
            if member.out is not None and number not in self._ended:
                try:
                    member.out.flush(deadline)
                except PeerError:
                    continue  # it has ended, or reads nothing

    def _streams(self) -> list[Incoming | Outgoing]:
        members = self._members.values()
        outgoing = [member.out for member in members if member.out is not None]
        return [*outgoing, *(stream for member in members for stream, _ in member.come.values())]

    def close_in_child(self) -> None:
        """Close this process's copies of the sockets, which the parent goes on to use."""
        for stream in self._streams():
            stream.close_in_child()

    def close(self) -> None:
        self._closed.set()
        for stream in self._streams():
            self._unwatch(stream)
        self._members.clear()
        while not self._events.empty():
            _, found = self._events.get_nowait()
            if not isinstance(found, PeerError):
                found.close()
