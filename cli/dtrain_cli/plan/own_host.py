"""The address of this machine that others of its network reach."""

import socket

import psutil

from dtrain.cluster.loopback import is_loopback
from dtrain.errors import SpecError

_FAR_AWAY = "203.0.113.1"
"""An address of documentation: nothing is sent, the kernel only says by which interface it would leave."""


def own_host(peer: str | None = None) -> str:
    """Return the IPv4 address by which this machine reaches a peer; without one, the default route's.

    Raises:
        SpecError: it has no address on a network, or several and no default route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((peer or _FAR_AWAY, 9))
            host: str = asked.getsockname()[0]
            if not is_loopback(f"{host}:1"):
                return host
        except OSError:
            pass
    addresses = [
        each.address
        for interface in psutil.net_if_addrs().values()
        for each in interface
        if each.family is socket.AF_INET and not is_loopback(f"{each.address}:1")
    ]
    if len(addresses) != 1:
        found = ", ".join(addresses) or "none"
        raise SpecError(f"which address of this machine do others reach? expected one, found {found}")
    return addresses[0]
