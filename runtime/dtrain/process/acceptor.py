"""The acceptor of a listener, and the limits of connections that have proven nothing yet.

One thread hears them all: a process that opens connections and says nothing costs no thread, and keeps
nobody else out. The limits stand in one table, a row for every listener of dtrain's.
"""

import contextlib
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable
from typing import TypeVar

import msgspec

from dtrain.errors import PeerLostError, PeerRefusedError


class PendingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the connections to one listener that have not proven yet that they belong to the run.

    Attributes:
        connections: how many may wait at a time. For one more the oldest of the source with the most is
            closed; gRPC, which accepts by itself, closes the new one.
        wait_s: how long each may take for its proof.
        message_bytes: the longest message that it may send before.
    """

    connections: int
    wait_s: float
    message_bytes: int


GREETING_LIMIT_BYTES = 4096

GRPC_LIMITS = PendingLimits(connections=256, wait_s=2.0, message_bytes=8192)
"""Connections beside those that the run's tasks may have open. The message is the metadata of a call, in
which a greeting is a third longer. A task whose proof takes longer than `wait_s` connects again."""
STREAM_LIMITS = PendingLimits(connections=64, wait_s=10.0, message_bytes=GREETING_LIMIT_BYTES)
"""TCP connections between replicas (`wire.streams`), the time of a TLS handshake included."""
ONE_HOST_LIMITS = PendingLimits(connections=256, wait_s=10.0, message_bytes=GREETING_LIMIT_BYTES)
"""The Unix socket of a server (`wire.one_host`)."""


_RETRY_S = 0.05

WAITS: tuple[type[OSError], ...] = (BlockingIOError,)
Result = TypeVar("Result")
Examination = Generator[None, None, Callable[[], None]]
"""Hears one connection: yields where it has to wait for more, and returns what takes the connection over once
it has proven itself. An OSError, PeerLostError or PeerRefusedError closes the connection."""


def when_ready(
    call: Callable[[], Result], waits: tuple[type[OSError], ...] = WAITS
) -> Generator[None, None, Result]:
    """Call until there is something to read; `waits` say that there is nothing yet."""
    while True:
        try:
            return call()
        except waits:
            yield


class _Pending(msgspec.Struct, eq=False):
    connection: socket.socket
    source: Hashable
    until_s: float
    examination: Examination


class Acceptor:
    """Accepts and hears connections, from its own thread, until `stop`."""

    def __init__(
        self,
        listener: socket.socket,
        limits: PendingLimits,
        examine: Callable[[socket.socket], Examination],
        source: Callable[[socket.socket], Hashable] = lambda connection: connection.getpeername()[0],
        wrap: Callable[[socket.socket], socket.socket] | None = None,
    ) -> None:
        """Begin.

        Args:
            listener: listens; who shuts it down ends the thread.
            limits: of the connections that wait.
            examine: see `Examination`; its connection does not block.
            source: who has opened a connection, by default its address; an OSError closes the connection.
            wrap: puts encryption around a connection.
        """
        self._listener = listener
        self._limits = limits
        self._examine = examine
        self._source = source
        self._wrap = wrap
        self._pending: dict[int, _Pending] = {}
        self._ready = select.epoll()
        self._stopped = threading.Event()
        listener.setblocking(False)
        self._ready.register(listener, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="pending connections", daemon=True)
        self._thread.start()

    def stop(self, limit_s: float) -> None:
        """Close the connections that have not proven themselves; wait for the thread at most so long."""
        self._stopped.set()
        with contextlib.suppress(OSError):  # it has been stopped before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(limit_s)

    def _run(self) -> None:
        while not self._stopped.is_set():
            first = next(iter(self._pending.values()), None)
            wait_s = None if first is None else max(0.0, first.until_s - time.monotonic())
            for descriptor, _ in self._ready.poll(wait_s):
                if descriptor == self._listener.fileno():
                    self._accept()
                elif (pending := self._pending.get(descriptor)) is not None:
                    self._receive(pending)
            now_s = time.monotonic()
            for late in [each for each in self._pending.values() if each.until_s <= now_s]:
                self._close(late)
        for left in list(self._pending.values()):
            self._close(left)
        self._ready.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            self._stopped.wait(_RETRY_S)  # one that has gone again, or no descriptor left for it
            return
        try:
            connection.setblocking(False)
            source = self._source(connection)
            connection = self._wrap(connection) if self._wrap else connection
        except OSError:
            connection.close()
            return
        until_s = time.monotonic() + self._limits.wait_s
        pending = _Pending(connection, source, until_s, self._examine(connection))
        self._pending[connection.fileno()] = pending
        self._ready.register(connection, select.EPOLLIN)
        if len(self._pending) > self._limits.connections:
            self._evict()

    def _evict(self) -> None:
        """Close the oldest connection of the source that has most of them."""
        number = Counter(each.source for each in self._pending.values())
        self._close(
            max(self._pending.values(), key=lambda each: number[each.source])
        )  # the first of the highest

    def _receive(self, pending: _Pending) -> None:
        """Take what has come of a connection, which goes on waiting, is handed on, or closed."""
        try:
            next(pending.examination)
        except StopIteration as proven:
            self._forget(pending)
            proven.value()
        except (OSError, PeerLostError, PeerRefusedError):
            self._close(pending)

    def _close(self, pending: _Pending) -> None:
        self._forget(pending)
        pending.connection.close()

    def _forget(self, pending: _Pending) -> None:
        self._ready.unregister(pending.connection)
        self._pending.pop(pending.connection.fileno())
