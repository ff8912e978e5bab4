"""Streams of one task for one lane, and the messages on them between hosts that agree on steps.

    message:  length (u32, little endian) | msgpack of HostState or Direction
              length | msgpack of Record or StepCall | the bytes that belong to it

Messages may be lost with a connection: the sender says all it knows again and again, sends every record
that is not known to have come, and all calls of the newest steps on a new connection. Where a connection has
ended, another replica of the host may speak for it by now: a host is gone when no process listens at the
address of any of its replicas. Any other one may come back.

A lane is a slice of the variables with its own streams; on each host one task carries it out. Streams belong
to one attempt of one membership, as their names say: after a failure all are closed and others opened, so
that no byte of a sum that was given up is ever taken for one of the next.
"""

import contextlib
import math
import queue
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np

from dtrain.collectives.between_hosts.all_reduce import Route
from dtrain.errors import PeerError, PeerGoneError, PeerRefusedError
from dtrain.messages.replicas import Direction, HostState, LedgerRecord, Seat, StepCall
from dtrain.process.clock import Clock, Running
from dtrain.roles.collective.between_hosts.calls import LONGEST_BYTES as LONGEST_CALL_BYTES
from dtrain.roles.collective.between_hosts.calls import CallsToSend, SaidCall, call_of
from dtrain.roles.collective.between_hosts.records import Records, StoredRecord
from dtrain.types import Array
from dtrain.wire.streams import Incoming, Outgoing

Open = Callable[[str, str, float], Outgoing]
"""Opens a stream to a task under a name, within so many seconds."""
Take = Callable[[str | Collection[str], str, float, Callable[[], str | None]], Incoming]
"""Waits for a stream of a task, or of any of several, under a name until a deadline, or until it is given up:
see `Listener`.
"""


class Ways:
    """The streams of one lane. Several threads may use it, but one way only one of them."""

    def __init__(self, tasks: Mapping[int, str], name: str, open_: Open, take: Take) -> None:
        """Open nothing yet; `name` tells the membership, the attempt and the lane."""
        self._tasks = tasks
        self._name = name
        self._open = open_
        self._take = take
        self._outgoing: dict[Route, Outgoing] = {}
        self._incoming: dict[Route, Incoming] = {}
        self._ended: str | None = None
        self.blamed = -1

    def outgoing(self, way: Route, deadline: float) -> Outgoing:
        if (stream := self._outgoing.get(way)) is None:
            task = self._tasks[way.target]
            stream = self._open(task, f"{self._name} {way.label}", max(0.0, deadline - time.monotonic()))
            self._outgoing[way] = stream
            self._end_late(stream)
        return stream

    def incoming(self, way: Route, deadline: float) -> Incoming:
        if (stream := self._incoming.get(way)) is None:
            name = f"{self._name} {way.label}"
            stream = self._take(self._tasks[way.source], name, deadline, lambda: self._ended)
            self._incoming[way] = stream
            self._end_late(stream)
        return stream

    @property
    def bytes_sent(self) -> int:
        return sum(stream.bytes_sent for stream in list(self._outgoing.values()))

    @property
    def bytes_received(self) -> int:
        return sum(stream.bytes_received for stream in list(self._incoming.values()))

    def flush(self, deadline: float) -> None:
        for stream in list(self._outgoing.values()):
            stream.flush(deadline)

    def blame(self, host: int) -> None:
        """Note which host makes a sum fail; only the first one counts."""
        if self.blamed < 0 and self._ended is None:
            self.blamed = host

    def abort(self, reason: str) -> None:
        """From any thread: make all waits, also later ones, raise PeerLostError with this reason."""
        self._ended = self._ended or reason
        for stream in self._streams():
            stream.abort(reason)

    def close(self) -> None:
        for stream in self._streams():
            stream.close()

    def _streams(self) -> list[Incoming | Outgoing]:
        return [*self._outgoing.values(), *self._incoming.values()]

    def _end_late(self, stream: Incoming | Outgoing) -> None:
        if self._ended is not None:
            stream.abort(self._ended)


NAME = "agreement"
LONGEST_BYTES = 16 << 20
_PAUSE_S = 0.02
_ATTEMPT_S = 2.0
_TRIES = 2
"""The number of times that something is sent to a replica of a silent host before another one is tried."""
_LENGTH = struct.Struct("<I")
Said = HostState | Direction | LedgerRecord | StepCall
_decoder: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)
_encode = msgspec.msgpack.Encoder().encode

Heard = Callable[[int, HostState | Direction | StoredRecord | SaidCall], None]
"""Takes a message of a host; called from threads of the links."""
Gone = Callable[[int], None]
"""Told that all processes of a host have ended; called from threads of the links."""


class Links:
    """The connections of one host to all others, until `close`."""

    def __init__(
        self,
        own: int,
        open_: Open,
        take: Take,
        heard: Heard,
        gone: Gone,
        clock: Clock,
        records: Records,
        longest_record: int,
        calls: CallsToSend,
    ) -> None:
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
        self._ended: set[int] = set()
        self._newest: dict[int, _Newest] = {}
        self._replicas: dict[int, _Replicas] = {}
        self._streams: dict[tuple[int, str], Incoming | Outgoing] = {}
        self._speaking: list[Running] = []
        self._listening: list[Running] = []

    def know(self, host: int, seats: Sequence[Seat]) -> None:
        """Note replicas of another host, and connect to it."""
        if host in self._newest:
            self._replicas[host].add(seats)
            return
        self._replicas[host] = _Replicas(seats)
        self._newest[host] = _Newest()
        what = f"agreement with {seats[0].task}"
        self._speaking.append(self._clock.start(partial(self._speak, host), what))
        self._listening.append(self._clock.start(partial(self._listen, host), what))

    def retain(self, hosts: Collection[int]) -> None:
        """Send no more records and calls to all others, which have been left behind.

        Their messages are still received: a host that comes back has to be told that it was left behind.
        """
        self._retired |= self._newest.keys() - set(hosts)

    def _over(self, host: int) -> str | None:
        """Return why a host is not heard any more, or None."""
        return self._closed or ("all its processes have ended" if host in self._ended else None)

    def send(self, host: int, message: HostState | Direction) -> None:
        """Send a message in the place of one that was not sent yet."""
        if host in self._newest:
            self._newest[host].put(_encode(message))

    def send_unsent(self) -> None:
        for host, newest in list(self._newest.items()):
            if host not in self._retired:
                newest.put_again(b"")

    def close(self) -> None:
        """Send the newest messages, and end all connections and threads."""
        for newest in self._newest.values():
            newest.put(None)
        for thread in self._speaking:
            thread.join(2 * _ATTEMPT_S)
        self._closed = "the agreement with other hosts has ended"
        for stream in list(self._streams.values()):
            stream.abort(self._closed)
        for thread in (*self._speaking, *self._listening):
            thread.join(2 * _ATTEMPT_S)
        for stream in list(self._streams.values()):
            stream.close()

    def _speak(self, host: int) -> None:
        while (packet := self._newest[host].get()) is not None:
            try:
                stream = self._outgoing(host)
                if packet:  # without one the connection alone is wanted: its end tells of the replica's
                    stream.send(_packed(packet))
                if host not in self._retired:
                    self._send_kept(host, stream)
                if (host, "in") not in self._streams:
                    self._replicas[host].is_silent()
            except (PeerGoneError, PeerRefusedError):  # no process listens there, or another one
                if self._replicas[host].ended() and (host, "in") not in self._streams:
                    self._ended.add(host)
                    self._gone(host)  # after all that it has said
                    return
                self._newest[host].put_again(packet)
                self._clock.sleep(_PAUSE_S)
            except PeerError:
                if self._over(host) is not None:
                    return
                self._drop(host, "out")
                self._newest[host].put_again(packet)
                self._clock.sleep(_PAUSE_S)
        with contextlib.suppress(PeerError):
            if (host, "out") in self._streams:
                self._outgoing(host).flush(time.monotonic() + _ATTEMPT_S)

    def _send_kept(self, host: int, stream: Outgoing) -> None:
        for head, body in self._records.after(self._sent[host]):
            stream.send(_packed(_encode(head)))
            stream.send(np.frombuffer(body, np.uint8))
            self._sent[host] = head.position
        for position, (call, body) in self._calls.after(host, self._calls_sent[host]):
            stream.send(_packed(_encode(call)))
            if body:
                stream.send(np.frombuffer(body, np.uint8))
            self._calls_sent[host] = position

    def _outgoing(self, host: int) -> Outgoing:
        task, stream = self._replicas[host].next(), self._streams.get((host, "out"))
        if stream is None or stream.peer != task:
            self._drop(host, "out")
            self._calls_sent[host] = 0
            self._sent[host] = self._records.acknowledged(host)
            stream = self._store(host, "out", self._open(task, f"{NAME} {self._own} {host}", _ATTEMPT_S))
        return stream  # type: ignore[return-value]

    def _listen(self, host: int) -> None:
        replicas = self._replicas[host]
        while self._over(host) is None:
            with contextlib.suppress(PeerError):
                name, tasks = f"{NAME} {host} {self._own}", replicas.tasks

                def given_up(tasks: Sequence[str] = tasks) -> str | None:
                    return self._over(host) or (None if tasks == replicas.tasks else "there are others")

                stream = self._take(tasks, name, math.inf, given_up)
                self._store(host, "in", stream)
                replicas.speaks(stream.peer)
                self._newest[host].put_again(b"")
                while True:
                    self._heard(host, _received(stream, self._longest_record))
            self._drop(host, "in")
            self._drop(host, "out")  # opened again at once, it tells whether the replica has ended
            self._newest[host].put_again(b"")

    def _store(self, host: int, direction: str, stream: Incoming | Outgoing) -> Incoming | Outgoing:
        self._streams[host, direction] = stream
        if self._closed is not None:
            stream.abort(self._closed)
        return stream

    def _drop(self, host: int, direction: str) -> None:
        if (stream := self._streams.pop((host, direction), None)) is not None:
            stream.close()


class _Replicas:
    """The replicas of one other host, and which of them have ended. Threads share it."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._lock = threading.Lock()
        self._seats: dict[str, Seat] = {}
        self._ended: set[Seat] = set()
        self._tried, self._silent = seats[0], 0
        self._speaks = seats[0].task
        self.add(seats)

    def add(self, seats: Sequence[Seat]) -> None:
        """Take note of replicas; none of those before is forgotten, as it may live."""
        with self._lock:
            self._seats |= {seat.task: seat for seat in seats}

    @property
    def tasks(self) -> Sequence[str]:
        with self._lock:
            return list(self._seats)

    def speaks(self, task: str) -> None:
        with self._lock:
            self._speaks, self._silent = task, 0

    def is_silent(self) -> None:
        """Take note that something was sent, and none of them has opened a stream to this host."""
        with self._lock:
            self._silent += 1

    def next(self) -> str:
        """Return the replica to connect to: the one that spoke last, or after its end or silence the next."""
        with self._lock:
            live = [task for task, seat in self._seats.items() if seat not in self._ended] or [self._speaks]
            live.sort(key=lambda task: task != self._speaks)
            task = live[self._silent // _TRIES % len(live)]
            self._tried = self._seats[task]
            return task

    def ended(self) -> bool:
        """Note that no process listens where the last one was tried; return whether all have ended."""
        with self._lock:
            self._ended.add(self._tried)
            return self._ended >= set(self._seats.values())


class _Newest:
    def __init__(self) -> None:
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._packet = b""
        self._ended = False
        self._there = True

    def put(self, packet: bytes | None) -> None:
        """Send this next; None: nothing more."""
        if packet is None:
            self._ended = True
        else:
            self._packet, self._there = packet, True
        self._wake.put(None)

    def put_again(self, packet: bytes) -> None:
        """Send this next, unless there is something newer or the end has come."""
        if not self._there and not self._ended:
            self.put(packet or self._packet or b"")

    def get(self) -> bytes | None:
        """Wait for the newest; None: it was sent, and the end has come."""
        while not (self._there or self._ended):
            self._wake.get()
        there, self._there = self._there, False
        return self._packet if there else None


def _packed(packet: bytes) -> Array:
    return np.frombuffer(_LENGTH.pack(len(packet)) + packet, np.uint8)


def _received(stream: Incoming, longest_record: int) -> HostState | Direction | StoredRecord | SaidCall:
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
    longest = longest_record if isinstance(message, LedgerRecord) else LONGEST_CALL_BYTES
    if not 0 <= message.nbytes <= longest:
        raise PeerRefusedError(f"{stream.peer} sends a {type(message).__name__} of {message.nbytes} bytes")
    body = np.empty(message.nbytes, np.uint8)
    if body.size:
        stream.receive(body, math.inf)
    if isinstance(message, LedgerRecord):
        return StoredRecord(message, body.tobytes())
    said = SaidCall(message, body.tobytes())
    if message.examples < 0:
        call_of(said)  # what another host describes wrongly ends its connection
    return said
