"""TLS of streams, with the certificates of gRPC's connections. Only a task that has TLS loads this file."""

import socket
import ssl
from collections.abc import Generator
from typing import Any

from dtrain.process.acceptor import WAITS, when_ready
from dtrain.wire.security.certificates import Certificate, context
from dtrain.wire.security.tls import Tls


class ServerEnd:
    """The serving end's context, made again where files were replaced.

    Attributes:
        waits: raised by a connection that does not block and needs more bytes.
    """

    waits = (*WAITS, ssl.SSLWantReadError, ssl.SSLWantWriteError)

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._used: Certificate | None = None

    def wrap(self, connection: socket.socket) -> ssl.SSLSocket:
        """Return a connection with TLS, whose handshake has not begun."""
        now = self._tls.certificates.current()
        if now is not self._used:
            self._context = context(now.material, server=True)
            self._used = now
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def agreed(self, connection: socket.socket) -> Generator[None, None, list[str]]:
        """Return the names in the certificate of a client, once TLS has been agreed upon."""
        assert isinstance(connection, ssl.SSLSocket)
        yield from when_ready(connection.do_handshake, self.waits)
        said: dict[str, Any] = dict(connection.getpeercert() or {})
        return [name for _, name in said.get("subjectAltName", ())]


def client_end(connection: socket.socket, tls: Tls, peer: str, host: str) -> ssl.SSLSocket:
    """Return a connection to a peer with TLS; the server's certificate must be the peer's.

    Raises:
        OSError: there is no TLS there, or the certificate is another one's.
    """
    made = context(tls.certificates.current().material, server=False)
    made.check_hostname = True
    return made.wrap_socket(connection, server_hostname=tls.server_name(peer) or host)
