"""The address at which a task listens, which need not be the one that others use.

On Debian and its like a host's own name means 127.0.1.1 on that host: a server that listened there would be
reached by no other host. In containers and behind a router the address that others use is none of this
machine's at all: `--bind` then says where to listen.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from dtrain.process.assignment import TaskAssignment
from dtrain.wire.reaching import places_of

ALL_INTERFACES = "[::]"
"""gRPC takes it for every interface, of both families."""

Lookup = Callable[[str], Sequence[str]]
"""The IP addresses that a ``host:port`` stands for on this host; none if the name cannot be looked up."""


class Listening(NamedTuple):
    """Where a task listens.

    Attributes:
        address: ``host:port``.
        why: the reason, for its user, where that is not the address that others use.
    """

    address: str
    why: str | None = None


def place_to_listen(assignment: TaskAssignment) -> Listening:
    """Return where a task listens."""
    cluster, task = assignment.cluster, assignment.task
    others = [address for each in cluster.tasks() if each != task and (address := cluster.address(each))]
    return listening(assignment.address, others, assignment.bind, _addresses)


def listening(address: str, others: Sequence[str], bind: str | None, lookup: Lookup) -> Listening:
    """Return where a task listens.

    Args:
        address: at which the others reach it.
        others: their own.
        bind: the host, or ``host:port``, that the user wants; None: as the address says.
        lookup: see `Lookup`.
    """
    host, _, port = address.rpartition(":")
    if bind is not None:
        wanted = bind if _has_port(bind) else f"{bind}:{port}"
        return Listening(wanted, f"listens at {wanted} (--bind); others reach it at {address}")
    if _is_number(host) or not _all_loopback(lookup(address)):
        return Listening(address)
    hosts = {other.rpartition(":")[0] for other in others} - {host}
    away = sorted(other for other in hosts if not _all_loopback(lookup(f"{other}:{port}")))
    if not away:
        return Listening(address)
    wanted = f"{ALL_INTERFACES}:{port}"
    return Listening(
        wanted,
        f"listens on every interface, port {port}: {host} means {lookup(address)[0]} here, where {away[0]} "
        "would not reach it; --bind ADDRESS says otherwise",
    )


def _has_port(bind: str) -> bool:
    return bind.rpartition(":")[2].isdecimal() and not (bind.count(":") > 1 and "]" not in bind)


def _is_number(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ip_address(host.strip("[]"))
        return True
    return False


def _all_loopback(addresses: Sequence[str]) -> bool:
    return bool(addresses) and all(ip_address(each).is_loopback for each in addresses)


def _addresses(address: str) -> Sequence[str]:
    return list(_looked_up(address))


def _looked_up(address: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for _, place in places_of(address):
            yield str(place[0]).partition("%")[0]
