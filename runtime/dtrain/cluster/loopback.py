"""The addresses of this host that no other host can reach."""

import contextlib
import socket

LOOPBACK = "127.0.0.1"


def is_loopback(address: str) -> bool:
    """Return whether a ``host:port`` address is this host's own, which other hosts cannot reach."""
    host = address.rpartition(":")[0].strip("[]")
    with contextlib.suppress(OSError):
        return socket.inet_pton(socket.AF_INET, host)[0] == 127
    return host in ("localhost", "::1")
