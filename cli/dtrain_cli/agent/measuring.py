"""Latency and bandwidth from this host to others, each measurement in a thread of its own.

Another host measures as soon as it has said the token; until then one thread hears all.
"""

import contextlib
import hmac
import socket
import threading
import time
from collections import deque
from functools import partial

from dtrain.errors import PeerRefusedError
from dtrain.process import pending_limits
from dtrain.process.acceptor import Acceptor, Examination, when_ready
from dtrain_cli.agent.messages import Measure, Measured, Serve, Serving

PINGS = 10
TOKEN_BYTES = pending_limits.MEASURING.message_bytes
STOP_LIMIT_S = 0.5
_PING = b"p"
_BULK = b"b"
_SIZE_BYTES = 8
_FIRST_BYTES = 1 << 20
_BULK_BYTES_MAX = 64 << 20
_BULK_S = 0.2
"""The second transfer is made as large as this time allows at the speed of the first."""
_PIECE = bytes(1 << 18)


class Measuring:
    """The measurements of one agent; `done` returns those that have ended since."""

    def __init__(self) -> None:
        self._done: deque[Measured] = deque()
        self._acceptor: Acceptor | None = None

    def serve(self, order: Serve) -> Serving:
        """Answer measurements of other hosts that know the token, until `close`."""
        try:
            listener = _listener(order)
        except OSError as error:
            return Serving(0, f"cannot listen on {order.address}: {error.strerror}")
        port = listener.getsockname()[1]
        self._acceptor = Acceptor(listener, pending_limits.MEASURING, partial(_examine, order.token))
        return Serving(port)

    def measure(self, order: Measure) -> None:
        """Begin a measurement."""
        threading.Thread(target=self._measure, args=(order,), daemon=True).start()

    def done(self) -> list[Measured]:
        """Return the measurements that have ended."""
        return [self._done.popleft() for _ in range(len(self._done))]

    def close(self) -> None:
        """Serve no more."""
        if self._acceptor is not None:
            self._acceptor.stop(STOP_LIMIT_S)

    def _measure(self, order: Measure) -> None:
        try:
            latency_s, bytes_per_s = _measured(order)
        except OSError as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
            self._done.append(Measured(order.address, 0.0, 0.0, reason))
        else:
            self._done.append(Measured(order.address, latency_s, bytes_per_s))


def _listener(order: Serve) -> socket.socket:
    """Return a socket that listens on the first free port of the order's."""
    family = socket.AF_INET6 if ":" in order.address else socket.AF_INET
    for port in range(order.first, order.last):
        with contextlib.suppress(OSError):
            return socket.create_server((order.address, port), family=family)
    return socket.create_server((order.address, order.last), family=family)


def _measured(order: Measure) -> tuple[float, float]:
    """Return the shortest round trip of a byte, and the bytes a second of a transfer."""
    host, _, port = order.address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=order.timeout_s) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(order.token)
        latencies_s = []
        for _ in range(PINGS):
            begun_s = time.perf_counter()
            link.sendall(_PING)
            _receive(link, 1)
            latencies_s.append(time.perf_counter() - begun_s)
        rate = _transfer(link, _FIRST_BYTES)
        return min(latencies_s), _transfer(link, min(_BULK_BYTES_MAX, max(_FIRST_BYTES, int(rate * _BULK_S))))


def _transfer(link: socket.socket, nbytes: int) -> float:
    """Send so many bytes and wait until they are there; return the bytes a second."""
    begun_s = time.perf_counter()
    link.sendall(_BULK + nbytes.to_bytes(_SIZE_BYTES, "big"))
    for start in range(0, nbytes, len(_PIECE)):
        link.sendall(_PIECE[: nbytes - start])
    _receive(link, 1)
    return nbytes / (time.perf_counter() - begun_s)


def _examine(token: bytes, connection: socket.socket) -> Examination:
    """Hear the token of a host that would like to measure; it is let go as soon as it says anything else."""
    said = b""
    while len(said) < len(token):
        said += (piece := (yield from when_ready(partial(connection.recv, len(token) - len(said)))))
        if not piece:
            raise ConnectionResetError
    if not hmac.compare_digest(said, token):
        raise PeerRefusedError("it does not know the token")
    return threading.Thread(target=_answer, args=(connection,), daemon=True).start


def _answer(link: socket.socket) -> None:
    """Serve one measurement."""
    with link:
        try:
            link.settimeout(30.0)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while kind := link.recv(1):
                if kind == _BULK:
                    left = min(_BULK_BYTES_MAX, int.from_bytes(_receive(link, _SIZE_BYTES), "big"))
                    while left and (piece := link.recv(min(left, len(_PIECE)))):
                        left -= len(piece)
                link.sendall(_PING)
        except OSError:
            return


def _receive(link: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        piece = link.recv(nbytes - len(data))
        if not piece:
            raise ConnectionResetError(0, "the other host has closed the connection")
        data += piece
    return data
