"""Streams of the bytes of arrays between tasks of several hosts, over TCP, after the handshake of all.

gRPC carries messages; a sum of large arrays over it takes three times TCP's processor time
(docs/design/wire.md#streams). A task that wants to be sent streams has a `Listener`; another one opens a
stream to it by `open_stream`. A stream goes one way.

Arrays are sent from where they lie and received to where they belong; nothing says where one ends, so both
ends have to know what comes. Every wait has a deadline.

gRPC does not let another listener share its port, so the machine chooses a free one; others hear of it by the
control plane. Every connection goes through the handshake and, where the address has it, through TLS.
"""

import contextlib
import queue
import socket
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dtrain.config import LinkFault, SimulateSection
from dtrain.errors import PeerGoneError, PeerLostError, PeerRefusedError, SpecError, WaitTimeoutError
from dtrain.messages import Hello, Refusal
from dtrain.process import acceptor
from dtrain.process.acceptor import GREETING_LIMIT_BYTES, WAITS, Acceptor, Examination, when_ready
from dtrain.types import Array
from dtrain.wire.addresses import places_of, unresolved
from dtrain.wire.handshake import ServerHandshake, last_proof, read_greeting
from dtrain.wire.interruptible import LOOK_S, in_own_thread
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.slow_link import Line

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 2))
"""A host that is gone is noticed although nothing is being sent, as over gRPC: seconds, seconds, times."""
_LOOK = struct.pack("2l", 0, int(LOOK_S * 1e6))
_LATE = (TimeoutError, BlockingIOError)
"""Raised each `LOOK_S` while nothing moves."""
_PIECE_BYTES = 256 * 1024
_SMALL_BYTES = 64 * 1024
SSL_WANT_READ = 2
"""The number of the error of TLS that asks for more bytes; its class would load ssl."""


def bytes_of(array: Array) -> memoryview:
    """Return the bytes of a flat contiguous array, not copied."""
    return array.view(np.uint8).data


class _End:
    def __init__(self, peer: str, connection: socket.socket) -> None:
        self.peer = peer
        self._connection = connection
        self._ended: str | None = None
        self.is_plain = type(connection) is socket.socket
        if self.is_plain:
            connection.settimeout(None)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection.setsockopt(socket.SOL_SOCKET, option, _LOOK)
        else:  # of TLS, which OpenSSL would wait for without end; polling costs 10% of a sum
            connection.settimeout(LOOK_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def fileno(self) -> int:
        return self._connection.fileno()

    def abort(self, reason: str) -> None:
        """Make the wait under way, and all later ones, raise PeerLostError with the first such reason."""
        self._ended = self._ended or reason
        with contextlib.suppress(OSError):
            # Not the method of a TLS connection, which would let a thread in the midst of it read ciphertext.
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def close_in_child(self) -> None:
        """Close the copy that a forked process has."""
        self._connection.close()

    def _lost(self, why: str) -> PeerLostError:
        self._ended = self._ended or f"lost the stream of {self.peer} ({why})"
        return PeerLostError(self._ended)


class Incoming(_End):
    """The receiving end of a stream."""

    def __init__(self, peer: str, connection: socket.socket) -> None:
        super().__init__(peer, connection)
        self.bytes_received = 0

    def receive(self, into: Array, deadline: float) -> None:
        """Fill an array, flat and contiguous, with the next bytes; raise a `WaitTimeoutError` at the
        deadline, in seconds of `time.monotonic`, and a `PeerLostError` where the connection is gone or was
        aborted.
        """
        view = bytes_of(into)
        while view:
            if self._ended is not None:
                raise PeerLostError(self._ended)
            try:
                count = self._connection.recv_into(view)
            except _LATE:
                if time.monotonic() >= deadline:
                    raise WaitTimeoutError(
                        f"{self.peer} has not sent {len(view)} of {into.nbytes} bytes in time"
                    ) from None
                continue
            except OSError as error:
                raise self._lost(error.strerror or str(error)) from None
            if not count:
                raise self._lost("it has ended the connection")
            self.bytes_received += count
            view = view[count:]

    def receive_now(self) -> bytes:
        """Return bytes that have come, without a wait; none: more may come. From the first call on this is
        the only way to receive. Raises a `PeerLostError` where the connection is gone or was aborted.
        """
        if self._ended is not None:
            raise PeerLostError(self._ended)
        if self._connection.gettimeout() != 0:
            self._connection.setblocking(False)
        try:
            come = self._connection.recv(_PIECE_BYTES)
        except OSError as error:
            if isinstance(error, BlockingIOError) or error.errno == SSL_WANT_READ:
                return b""
            raise self._lost(error.strerror or str(error)) from None
        if not come:
            raise self._lost("it has ended the connection")
        self.bytes_received += len(come)
        return come

    def close(self) -> None:
        self.abort(f"the stream of {self.peer} is closed")
        self._connection.close()


class Outgoing(_End):
    """The sending end of a stream, with a thread of its own; `fault` makes it slow (`wire.slow_link`)."""

    def __init__(
        self,
        peer: str,
        connection: socket.socket,
        fault: LinkFault | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(peer, connection)
        self.bytes_sent = 0
        self._clock = clock
        self._line = None if fault is None else Line(fault)
        self._queue: queue.SimpleQueue[tuple[Array, float] | threading.Event | None] = queue.SimpleQueue()
        self._waiting = threading.Event()
        self._put, self._left = 0, 0
        self._at_once = self._line is None and self.is_plain
        self._thread = threading.Thread(target=self._run, name=f"stream to {peer}", daemon=True)
        self._thread.start()

    @property
    def unsent(self) -> int:
        """How many arrays, about, have not left."""
        return self._queue.qsize()

    def send(self, block: Array) -> None:
        """Send an array, flat and contiguous, after all others; it must not change before `flush` returns.
        What is small leaves at once if it can: a thread that is woken for it costs more than it does.
        """
        if self._ended is not None:
            raise PeerLostError(self._ended)
        if self._at_once and self._put == self._left and block.nbytes <= _SMALL_BYTES:
            left = self._send(bytes_of(block), socket.MSG_DONTWAIT)
            if not left:
                return
            block = np.frombuffer(left, np.uint8)
        self._put += 1
        arrival_s = self._line.arrival_s(self._clock(), (block,)) if self._line is not None else 0.0
        self._queue.put((block, arrival_s))

    def flush(self, deadline: float) -> None:
        """Wait until all arrays have left; errors as of `Incoming.receive`."""
        left = threading.Event()
        self._queue.put(left)
        while not left.wait(min(LOOK_S, max(0.0, deadline - time.monotonic()))):
            if self._ended is None and time.monotonic() >= deadline:
                raise WaitTimeoutError(f"{self.peer} has not taken what was sent to it in time")
            if not self._thread.is_alive():
                break
        if self._ended is not None:
            raise PeerLostError(self._ended)

    def abort(self, reason: str) -> None:
        super().abort(reason)
        self._waiting.set()

    def close(self) -> None:
        self.abort(f"the stream to {self.peer} is closed")
        self._queue.put(None)
        self._thread.join(4 * LOOK_S)
        self._connection.close()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            if self._ended is None:
                block, arrival_s = item
                if arrival_s:
                    self._waiting.wait(max(0.0, arrival_s - self._clock()))
                self._send(bytes_of(block))
            self._left += 1
            del item

    def _send(self, view: memoryview, flags: int = 0) -> memoryview:
        """Send bytes; return those that are left, where the connection takes no more without a wait."""
        while view and self._ended is None:
            try:
                count = self._connection.send(view, flags)
            except _LATE:
                if flags:
                    break
                continue  # the peer takes nothing; `flush` has a deadline
            except OSError as error:
                self._lost(error.strerror or str(error))
                break
            self.bytes_sent += count
            view = view[count:]
        return view


_LENGTH = struct.Struct("<H")
_SHORTEST_S = 0.001


def packed(packet: bytes) -> bytes:
    return _LENGTH.pack(len(packet)) + packet


class Packets:
    """The packets that come on one connection; never more bytes are read than belong to the next one.

    `deadline` is that of all packets, in seconds of `time.monotonic`.
    """

    def __init__(self, connection: socket.socket, deadline: float | None = None) -> None:
        self._connection = connection
        self._deadline = deadline
        self._parts = bytearray()

    def next(self) -> bytes:
        """Return the next packet; what has come of it is kept where a connection that does not block has no
        more. Raises a `PeerLostError` at the connection's end, and a `PeerRefusedError` for too long a
        packet.
        """
        while True:
            needed = _LENGTH.size
            if len(self._parts) >= needed:
                needed += _LENGTH.unpack_from(self._parts)[0]
                if needed - _LENGTH.size > GREETING_LIMIT_BYTES:
                    raise PeerRefusedError("the connection did not open with a dtrain hello")
                if len(self._parts) == needed:
                    packet = bytes(self._parts[_LENGTH.size :])
                    self._parts.clear()
                    return packet
            if self._deadline is not None:
                self._connection.settimeout(max(_SHORTEST_S, self._deadline - time.monotonic()))
            come = self._connection.recv(needed - len(self._parts))
            if not come:
                raise PeerLostError("the connection was ended within the handshake")
            self._parts += come


def open_stream(
    peer: str,
    address: str,
    name: str,
    credentials: Credentials,
    timeout_s: float,
    simulate: SimulateSection | None = None,
) -> Outgoing:
    """Open a stream to a task that listens at an address; the call returns once it is accepted. The peer
    knows the stream by its `name`, of at most 200 bytes; `simulate` may make the link slow. Raises a
    `PeerGoneError` if no process listens there, a `PeerLostError` if the connection broke or there is no
    way there, a `WaitTimeoutError`, or a `PeerRefusedError` if the process is not the peer or refuses this
    task.
    """
    connection = in_own_thread(
        partial(_opened, peer, address, name, credentials, time.monotonic() + timeout_s), "opening a stream"
    )
    fault = None if simulate is None else simulate.link(credentials.hello.task, peer)
    return Outgoing(peer, connection, fault)


def _opened(peer: str, address: str, name: str, credentials: Credentials, deadline: float) -> socket.socket:
    connection = None
    try:
        connection = _connected(address, deadline)
        if credentials.tls is not None and credentials.tls.covers(address):
            from dtrain.wire.security.tls import client_end  # ssl: 1 MB and 10 ms

            host = address.rpartition(":")[0].strip("[]")
            connection = client_end(connection, credentials.tls, peer, host)
        _shake_hands(Packets(connection, deadline), connection, peer, address, name, credentials)
        return connection
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, TimeoutError):
            raise WaitTimeoutError(f"{peer} at {address} did not answer to a new stream in time") from None
        if isinstance(error, OSError):
            why = _why(address, error)
            kind = PeerGoneError if isinstance(error, ConnectionRefusedError) else PeerLostError
            raise kind(f"cannot open a stream to {peer} at {address}: {why}") from None
        raise


def _connected(address: str, deadline: float) -> socket.socket:
    places = places_of(address)
    for number, (family, place) in enumerate(places, 1):
        connection = socket.socket(family)
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            connection.connect(place)
            return connection
        except OSError:
            connection.close()
            if number == len(places):
                raise
    raise AssertionError("a name that is found stands for at least one address")


def _shake_hands(
    packets: Packets, connection: socket.socket, peer: str, address: str, name: str, credentials: Credentials
) -> None:
    def ask(greeting: bytes) -> bytes:
        connection.sendall(packed(greeting))
        return packets.next()

    proof = last_proof(peer, f"{peer} at {address}", credentials, ask)
    connection.sendall(packed(proof) + packed(name.encode()))
    answer = read_greeting(packets.next())
    if isinstance(answer, Refusal):
        raise PeerRefusedError(f"{peer} at {address}: {answer.reason}")


def _why(address: str, error: OSError) -> str:
    return unresolved(address, error) if isinstance(error, socket.gaierror) else error.strerror or str(error)


if TYPE_CHECKING:  # it loads ssl, which a task without TLS does not need
    from dtrain.wire.security.tls import ServerEnd

STOP_LIMIT_S = 0.5
NAME_LIMIT_BYTES = 200
_LOOK_S = 0.05
"""How soon a wait for a stream hears that it was given up."""


class Listener:
    """Accepts streams until `stop`. Threads share it."""

    def __init__(
        self,
        own_address: str,
        credentials: Credentials,
        refuse: Callable[[Hello], str | None],
        streams: int,
        bind: str | None = None,
    ) -> None:
        """Bind a free port, of the host of `bind` or else of `own_address`; raise a `SpecError` if none can
        be bound. Of more than `streams` that are open and not yet accepted the oldest is closed.
        """
        host = own_address.rpartition(":")[0]
        try:
            family, place = places_of(f"{(bind or own_address).rpartition(':')[0]}:0")[0]
            everywhere = family is socket.AF_INET6 and place[0] == "::" and socket.has_dualstack_ipv6()
            self._socket = socket.create_server(
                place[:2], family=family, backlog=128, dualstack_ipv6=everywhere
            )
        except OSError as error:
            raise SpecError(f"cannot listen for streams at {host}: {error.strerror or error}") from None
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self._limit = streams
        self._changed = threading.Condition()
        self._open: OrderedDict[tuple[str, str], Incoming] = OrderedDict()
        self._routes: dict[str, Callable[[str, Incoming], None]] = {}
        self._stopped = False
        self._handshake = ServerHandshake(credentials, refuse)
        self._encryption = _encryption(credentials, own_address)
        wrap = self._encryption.wrap if self._encryption else None
        self._acceptor = Acceptor(self._socket, acceptor.STREAM_LIMITS, self._examine, wrap=wrap)

    def accept(
        self,
        task: str | Collection[str],
        name: str,
        deadline: float,
        given_up: Callable[[], str | None] = lambda: None,
    ) -> Incoming:
        """Wait for a stream of this name, opened by `task` or any of several; it then belongs to the caller.
        Raises a `WaitTimeoutError` at the deadline, in seconds of `time.monotonic`, and a `PeerLostError`
        after `stop`, or with the reason that `given_up` returns.
        """
        tasks = [task] if isinstance(task, str) else list(task)
        with self._changed:
            while (stream := self._opened(tasks, name)) is None:
                left_s = deadline - time.monotonic()
                if self._stopped:
                    raise PeerLostError(f"the streams of {', '.join(tasks)} are no longer waited for")
                if (reason := given_up()) is not None:
                    raise PeerLostError(reason)
                if left_s <= 0:
                    raise WaitTimeoutError(f"{', '.join(tasks)} has not opened its stream {name!r} in time")
                self._changed.wait(min(_LOOK_S, left_s))
        return stream

    def _opened(self, tasks: Collection[str], name: str) -> Incoming | None:
        there = (self._open.pop((task, name), None) for task in tasks)
        return next((stream for stream in there if stream is not None), None)

    def route(self, prefix: str, take: Callable[[str, Incoming], None]) -> None:
        """Give each stream to `take` whose name begins so, with the rest of the name, as soon as it comes."""
        with self._changed:
            self._routes[prefix] = take
            there = [key for key in self._open if key[1].startswith(prefix)]
            for key in there:
                take(key[1].removeprefix(prefix), self._open.pop(key))

    def end_route(self, prefix: str) -> None:
        with self._changed:
            del self._routes[prefix]

    def stop(self) -> None:
        self._acceptor.stop(STOP_LIMIT_S)
        with self._changed:
            self._stopped = True
            left = list(self._open.values())
            self._open.clear()
            self._changed.notify_all()
        for stream in left:
            stream.close()
        self._socket.close()

    def _examine(self, connection: socket.socket) -> Examination:
        place, names, waits = connection.getpeername(), None, WAITS
        if self._encryption is not None:
            waits = self._encryption.waits
            names = yield from self._encryption.agreed(connection)
        receive = partial(when_ready, Packets(connection).next, waits)

        def send(greeting: bytes) -> None:
            connection.send(packed(greeting))

        hello = yield from self._handshake.receive_hello(receive, send, f"{place[0]}:{place[1]}", names)
        name = yield from receive()
        if len(name) > NAME_LIMIT_BYTES:
            raise PeerRefusedError(f"the name of a stream has {len(name)} bytes")
        return partial(self._admit, connection, hello.task, name.decode(errors="replace"))

    def _admit(self, connection: socket.socket, task: str, name: str) -> None:
        try:
            stream = Incoming(task, connection)
        except OSError:  # it has gone again
            connection.close()
            return
        with self._changed:
            prefix = next((each for each in self._routes if name.startswith(each)), None)
            if prefix is not None:
                self._routes[prefix](name.removeprefix(prefix), stream)
                return
            replaced = self._open.pop((task, name), None)
            self._open[task, name] = stream
            if replaced is None and len(self._open) > self._limit:
                _, replaced = self._open.popitem(last=False)
            self._changed.notify_all()
        if replaced is not None:
            replaced.close()


def _encryption(credentials: Credentials, own_address: str) -> "ServerEnd | None":
    if credentials.tls is None or not credentials.tls.covers(own_address):
        return None
    from dtrain.wire.security.tls import ServerEnd  # ssl: 1 MB and 10 ms

    return ServerEnd(credentials.tls)
