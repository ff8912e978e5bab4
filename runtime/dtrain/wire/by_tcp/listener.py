"""The place where other tasks open streams to this one: a port of its own, beside that of gRPC.

gRPC does not let another listener share its port, so the machine chooses a free one; others hear of it by the
control plane. Every connection goes through the handshake and, where the address has it, through TLS.
"""

import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection

from dtrain.errors import PeerLostError, SpecError, WaitTimeoutError
from dtrain.messages import Hello
from dtrain.wire.by_tcp.lobby import Lobby
from dtrain.wire.by_tcp.stream import TcpIncoming
from dtrain.wire.handshake import Door
from dtrain.wire.reaching import places_of
from dtrain.wire.security.credentials import Credentials

STOP_LIMIT_S = 0.5
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
        self._open: OrderedDict[tuple[str, str], TcpIncoming] = OrderedDict()
        self._stopped = False
        encryption = None
        if credentials.tls is not None and credentials.tls.covers(own_address):
            from dtrain.wire.by_tcp.encryption import ServerEnd  # ssl: 1 MB and 10 ms

            encryption = ServerEnd(credentials.tls)
        self._lobby = Lobby(self._socket, Door(credentials, refuse), encryption, self._admit)

    def take(
        self,
        task: str | Collection[str],
        name: str,
        deadline: float,
        given_up: Callable[[], str | None] = lambda: None,
    ) -> TcpIncoming:
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

    def _opened(self, tasks: Collection[str], name: str) -> TcpIncoming | None:
        there = (self._open.pop((task, name), None) for task in tasks)
        return next((stream for stream in there if stream is not None), None)

    def stop(self) -> None:
        """Stop listening; streams that were not taken are closed, and waits end."""
        self._lobby.stop(STOP_LIMIT_S)
        with self._changed:
            self._stopped = True
            left = list(self._open.values())
            self._open.clear()
            self._changed.notify_all()
        for stream in left:
            stream.close()
        self._socket.close()

    def _admit(self, connection: socket.socket, hello: Hello, name: str) -> None:
        try:
            stream = TcpIncoming(hello.task, connection)
        except OSError:  # it has gone again
            connection.close()
            return
        with self._changed:
            replaced = self._open.pop((hello.task, name), None)
            self._open[hello.task, name] = stream
            if replaced is None and len(self._open) > self._limit:
                _, replaced = self._open.popitem(last=False)
            self._changed.notify_all()
        if replaced is not None:
            replaced.close()
