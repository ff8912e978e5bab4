"""The messages between hosts that agree on steps, each on a stream of its own in each direction.

    message:  length (u32, little endian) | msgpack of HostState or Direction
              length | msgpack of Record or StepCall | the bytes that belong to it

Messages may be lost with a connection: the sender says all it knows again and again, sends every record
that is not known to have come, and all calls of the newest steps on a new connection. A host whose connection
has ended and at whose address no process listens is gone; any other one may come back.
"""

import contextlib
import math
import queue
import struct
from collections.abc import Callable, Collection, Mapping
from functools import partial

import msgspec
import numpy as np

from dtrain.errors import PeerError, PeerGoneError, PeerRefusedError
from dtrain.messages.between_hosts import Direction, HostState, Record, Seat, StepCall
from dtrain.process.clock import Clock, Running
from dtrain.roles.collective.between_hosts.records import Recorded, Records
from dtrain.roles.collective.between_hosts.step_calls import LONGEST_BYTES as LONGEST_CALL_BYTES
from dtrain.roles.collective.between_hosts.step_calls import CallsToSend, SaidCall, call_of
from dtrain.roles.collective.between_hosts.ways import Open, Take
from dtrain.types import Array
from dtrain.wire.by_tcp.stream import Incoming, Outgoing

NAME = "agreement"
LONGEST_BYTES = 16 << 20
_PAUSE_S = 0.02
_ATTEMPT_S = 2.0
_LENGTH = struct.Struct("<I")
Said = HostState | Direction | Record | StepCall
_decoder: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)
_encode = msgspec.msgpack.Encoder().encode

Heard = Callable[[int, HostState | Direction | Recorded | SaidCall], None]
"""Takes a message of a host; called from threads of the links."""
Gone = Callable[[int], None]
"""Told that all processes of a host have ended; called from threads of the links."""


class Links:
    """The connections of one host to all others, until `close`."""

    def __init__(
        self,
        own: int,
        others: Mapping[int, Seat],
        open_: Open,
        take: Take,
        heard: Heard,
        gone: Gone,
        clock: Clock,
        records: Records,
        longest_record: int,
        calls: CallsToSend,
    ) -> None:
        """Begin to connect.

        Args:
            own: the number of this host.
            others: by host, the replica that speaks for it.
            open_: see `Ways`.
            take: see `Ways`.
            heard: see `Heard`.
            gone: see `Gone`.
            clock: starts threads.
            records: to be sent to all others.
            longest_record: the bytes that one which comes has at most.
            calls: to be sent.
        """
        self._records = records
        self._calls = calls
        self._calls_sent: dict[int, int] = {}
        self._longest_record = longest_record
        self._sent: dict[int, int] = {}
        self._open = open_
        self._take = take
        self._heard = heard
        self._gone = gone
        self._clock = clock
        self._own = own
        self._closed: str | None = None
        self._retired: set[int] = set()
        self._newest: dict[int, _Newest] = {}
        self._streams: dict[tuple[int, str], Incoming | Outgoing] = {}
        self._threads: list[Running] = []
        for host, seat in others.items():
            self.add(host, seat)

    def add(self, host: int, seat: Seat) -> None:
        """Begin to connect to another host, unless that was begun before."""
        if host in self._newest:
            return
        self._newest[host] = _Newest()
        for run in (self._speak, self._listen):
            self._threads.append(self._clock.start(partial(run, host, seat), f"agreement with {seat.task}"))

    def keep(self, hosts: Collection[int]) -> None:
        """End the connections to all others."""
        for host in self._newest.keys() - set(hosts) - self._retired:
            self._retired.add(host)
            self._newest[host].put(None)
            for direction in ("in", "out"):
                if (stream := self._streams.get((host, direction))) is not None:
                    stream.abort("this host has been left behind")

    def _over(self, host: int) -> str | None:
        """Return why a host is not heard any more; None while it is."""
        return self._closed or ("this host has been left behind" if host in self._retired else None)

    def send(self, host: int, message: HostState | Direction) -> None:
        """Send a message, in the place of one that has not been sent yet."""
        if host in self._newest:
            self._newest[host].put(_encode(message))

    def send_unsent(self) -> None:
        """Have those records and calls sent that have not been."""
        for newest in list(self._newest.values()):
            newest.put_again(b"")

    def close(self) -> None:
        """End all connections and threads."""
        self._closed = "the agreement with other hosts has ended"
        for newest in self._newest.values():
            newest.put(None)
        for stream in list(self._streams.values()):
            stream.abort(self._closed)
        for thread in self._threads:
            thread.join(2 * _ATTEMPT_S)
        for stream in list(self._streams.values()):
            stream.close()

    def _speak(self, host: int, seat: Seat) -> None:
        """Send what is newest, on a connection that is opened again where it breaks."""
        while (packet := self._newest[host].get()) is not None and self._closed is None:
            try:
                stream = self._outgoing(host, seat)
                if packet:  # without one the connection alone is wanted: its end tells of the host's
                    stream.send(_packed(packet))
                for head, body in self._records.after(self._sent[host]):
                    stream.send(_packed(_encode(head)))
                    stream.send(np.frombuffer(body, np.uint8))
                    self._sent[host] = head.position
                self._send_calls(host, stream)
            except (PeerGoneError, PeerRefusedError):  # nobody is there, or another process
                self._gone(host)
                return
            except PeerError:
                if self._over(host) is not None:
                    return
                self._drop(host, "out")
                self._newest[host].put_again(packet)
                self._clock.sleep(_PAUSE_S)

    def _send_calls(self, host: int, stream: Outgoing) -> None:
        for position, (head, body) in self._calls.after(host, self._calls_sent[host]):
            stream.send(_packed(_encode(head)))
            if body:
                stream.send(np.frombuffer(body, np.uint8))
            self._calls_sent[host] = position

    def _outgoing(self, host: int, seat: Seat) -> Outgoing:
        stream = self._streams.get((host, "out"))
        if stream is None:
            self._calls_sent[host] = 0
            self._sent[host] = self._records.acknowledged(host)
            stream = self._keep(host, "out", self._open(seat.task, f"{NAME} {self._own} {host}", _ATTEMPT_S))
        return stream  # type: ignore[return-value]

    def _listen(self, host: int, seat: Seat) -> None:
        while self._over(host) is None:
            with contextlib.suppress(PeerError):
                name = f"{NAME} {host} {self._own}"
                stream = self._take(seat.task, name, math.inf, lambda: self._over(host))
                self._keep(host, "in", stream)
                while True:
                    self._heard(host, _received(stream, self._longest_record))
            self._drop(host, "in")
            self._drop(host, "out")  # opened again at once, it tells whether the host is gone
            self._newest[host].put_again(b"")

    def _keep(self, host: int, direction: str, stream: Incoming | Outgoing) -> Incoming | Outgoing:
        self._streams[host, direction] = stream
        if self._closed is not None:
            stream.abort(self._closed)
        return stream

    def _drop(self, host: int, direction: str) -> None:
        if (stream := self._streams.pop((host, direction), None)) is not None:
            stream.close()


class _Newest:
    """The newest packet that is to be sent to one host."""

    def __init__(self) -> None:
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._packet: bytes | None = b""
        self._ended = False
        self._there = True

    def put(self, packet: bytes | None) -> None:
        """Have this sent next; None: nothing more."""
        self._ended = self._ended or packet is None
        self._packet = packet
        self._there = True
        self._wake.put(None)

    def put_again(self, packet: bytes) -> None:
        """Have this sent next, if there is nothing newer."""
        if not self._there:
            self.put(packet or self._packet or b"")

    def get(self) -> bytes | None:
        """Wait for the newest."""
        while not (self._there or self._ended):
            self._wake.get()
        self._there = False
        return None if self._ended else self._packet


def _packed(packet: bytes) -> Array:
    return np.frombuffer(_LENGTH.pack(len(packet)) + packet, np.uint8)


def _received(stream: Incoming, longest_record: int) -> HostState | Direction | Recorded | SaidCall:
    """Return the next message.

    Raises:
        PeerError: the connection is gone, or brings something else.
    """
    head = np.empty(_LENGTH.size, np.uint8)
    stream.receive(head, math.inf)
    (nbytes,) = _LENGTH.unpack(head.tobytes())
    if nbytes > LONGEST_BYTES:
        raise PeerRefusedError(f"{stream.peer} sends a message of {nbytes} bytes")
    packet = np.empty(nbytes, np.uint8)
    stream.receive(packet, math.inf)
    try:
        message = _decoder.decode(packet.tobytes())
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise PeerRefusedError(f"{stream.peer} sends what is no message: {error}") from None
    if isinstance(message, HostState | Direction):
        return message
    longest = longest_record if isinstance(message, Record) else LONGEST_CALL_BYTES
    if not 0 <= message.nbytes <= longest:
        raise PeerRefusedError(f"{stream.peer} sends a {type(message).__name__} of {message.nbytes} bytes")
    body = np.empty(message.nbytes, np.uint8)
    if body.size:
        stream.receive(body, math.inf)
    if isinstance(message, Record):
        return Recorded(message, body.tobytes())
    said = SaidCall(message, body.tobytes())
    if message.examples < 0:
        call_of(said)  # what another host describes wrongly ends its connection
    return said
