"""One direction of bytes to or from another task, over a connection that has been let in.

Arrays are sent from where they lie and received to where they belong; nothing says where one ends, so both
ends have to know what comes. Every wait has a deadline.
"""

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable

import numpy as np

from dtrain.config import LinkFault
from dtrain.errors import PeerLostError, WaitTimeoutError
from dtrain.types import Array
from dtrain.wire.answers import LOOK_S
from dtrain.wire.slow_link import Line

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 2))
"""A host that is gone is noticed although nothing is being sent, as over gRPC: seconds, seconds, times."""
_LOOK = struct.pack("2l", 0, int(LOOK_S * 1e6))
_LATE = (TimeoutError, BlockingIOError)
"""Raised each `LOOK_S` while nothing moves."""


def bytes_of(array: Array) -> memoryview:
    """Return the bytes of a flat contiguous array where they lie."""
    return array.view(np.uint8).data


class _End:
    """The connection at either end, and the reason why it ended."""

    def __init__(self, peer: str, connection: socket.socket) -> None:
        self.peer = peer
        self._connection = connection
        self._ended: str | None = None
        if type(connection) is socket.socket:
            connection.settimeout(None)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection.setsockopt(socket.SOL_SOCKET, option, _LOOK)
        else:  # of TLS, which OpenSSL would wait for without end; polling costs 10% of a sum
            connection.settimeout(LOOK_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def abort(self, reason: str) -> None:
        """Make the wait under way, and all later ones, raise PeerLostError with the first such reason."""
        self._ended = self._ended or reason
        with contextlib.suppress(OSError):
            # Not the method of a TLS connection, which would let a thread in the midst of it read ciphertext.
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def _lost(self, why: str) -> PeerLostError:
        self._ended = self._ended or f"lost the stream of {self.peer} ({why})"
        return PeerLostError(self._ended)


class Incoming(_End):
    """The receiving end of a stream."""

    def __init__(self, peer: str, connection: socket.socket) -> None:
        super().__init__(peer, connection)
        self.bytes_received = 0

    def receive(self, into: Array, deadline: float) -> None:
        """Fill an array, flat and contiguous, with the next bytes that come.

        Args:
            into: it belongs to the caller again when this returns or raises.
            deadline: in seconds of `time.monotonic`.

        Raises:
            WaitTimeoutError: the bytes have not come by the deadline.
            PeerLostError: the connection is gone, or was aborted.
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

    def close(self) -> None:
        """Close the connection; no thread may be in `receive`."""
        self.abort(f"the stream of {self.peer} is closed")
        self._connection.close()


class Outgoing(_End):
    """The sending end of a stream, with a thread of its own."""

    def __init__(
        self,
        peer: str,
        connection: socket.socket,
        fault: LinkFault | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take a connection over; `fault` makes it slow (`wire.slow_link`)."""
        super().__init__(peer, connection)
        self.bytes_sent = 0
        self._clock = clock
        self._line = None if fault is None else Line(fault)
        self._queue: queue.SimpleQueue[tuple[Array, float] | threading.Event | None] = queue.SimpleQueue()
        self._waiting = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"stream to {peer}", daemon=True)
        self._thread.start()

    def send(self, block: Array) -> None:
        """Send an array, flat and contiguous, after all others; it must not change before `flush` returns.

        Raises:
            PeerLostError: the connection is gone, or was aborted.
        """
        if self._ended is not None:
            raise PeerLostError(self._ended)
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
        """Close the connection, once the thread has ended."""
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
            del item

    def _send(self, view: memoryview) -> None:
        while view and self._ended is None:
            try:
                count = self._connection.send(view)
            except _LATE:
                continue  # the peer takes nothing; `flush` has a deadline
            except OSError as error:
                self._lost(error.strerror or str(error))
                return
            self.bytes_sent += count
            view = view[count:]
