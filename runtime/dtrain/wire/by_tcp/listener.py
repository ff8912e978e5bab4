"""The place where other tasks open streams to this one: a port of its own, beside that of gRPC.

gRPC does not let another listener share its port, so the machine chooses a free one; others hear of it by the
control plane. Every connection goes through the handshake and, where the address has it, through TLS.
"""

import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from dtrain.errors import PeerLostError, PeerRefusedError, SpecError, WaitTimeoutError
from dtrain.messages import Hello
from dtrain.process import pending_limits
from dtrain.process.acceptor import WAITS, Acceptor, Examination, when_ready
from dtrain.wire.by_tcp.greetings import Packets, packed
from dtrain.wire.by_tcp.stream import Incoming
from dtrain.wire.handshake import Door
from dtrain.wire.reaching import places_of
from dtrain.wire.security.credentials import Credentials

if TYPE_CHECKING:  # it loads ssl, which a task without TLS does not need
    from dtrain.wire.by_tcp.encryption import ServerEnd

STOP_LIMIT_S = 0.5
NAME_LIMIT_BYTES = 200
_LOOK_S = 0.05
"""How soon a wait for a stream hears that it was given up."""


class Listener:
    """Accepts streams until `stop`. Threads share it.

    Attributes:
        address: where it listens, ``host:port``, with the host by which others know this task.
    """

    def __init__(
        self,
        own_address: str,
        credentials: Credentials,
        refuse: Callable[[Hello], str | None],
        streams: int,
        bind: str | None = None,
    ) -> None:
        """Bind a free port.

        Args:
            own_address: of the task, ``host:port``; only the host is used.
            credentials: what this task proves itself with.
            refuse: says why a task of the run may not open streams; None if it may.
            streams: how many may be open and not yet taken; for one more the oldest is closed.
            bind: ``host:port`` of which the host is bound, where that is not `own_address`
                (`wire.listening.place_to_listen`).

        Raises:
            SpecError: no port can be bound there.
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
        self._stopped = False
        self._door = Door(credentials, refuse)
        self._encryption = _encryption(credentials, own_address)
        wrap = self._encryption.wrap if self._encryption else None
        self._acceptor = Acceptor(self._socket, pending_limits.STREAMS, self._examine, wrap=wrap)

    def take(
        self,
        task: str | Collection[str],
        name: str,
        deadline: float,
        given_up: Callable[[], str | None] = lambda: None,
    ) -> Incoming:
        """Wait for a stream; it belongs to the caller from then on.

        Args:
            task: that opens it, or several of which any may.
            name: that it gives to the stream.
            deadline: in seconds of `time.monotonic`.
            given_up: says why it is waited for no more; None as long as it is.

        Raises:
            WaitTimeoutError: it has not been opened by the deadline.
            PeerLostError: the listener has stopped, or the stream was given up.
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

    def stop(self) -> None:
        """Stop listening; streams that were not taken are closed, and waits end."""
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

        hello = yield from self._door.hear(receive, send, f"{place[0]}:{place[1]}", names)
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
    from dtrain.wire.by_tcp.encryption import ServerEnd  # ssl: 1 MB and 10 ms

    return ServerEnd(credentials.tls)
