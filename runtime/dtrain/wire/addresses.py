"""Addresses: where a task listens, and why another one cannot be reached, before anything is said there.

On Debian and its like a host's own name means 127.0.1.1 on that host: a server that listened there would be
reached by no other host. In containers and behind a router the address that others use is none of this
machine's at all: `--bind` then says where to listen.
"""

import contextlib
import errno
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Any, NamedTuple

from dtrain.cluster.hosts import is_loopback
from dtrain.errors import SpecError, WaitTimeoutError
from dtrain.process.assignment import TaskAssignment

Tell = Callable[[str | None], None]
"""Called with the reason why a peer cannot be reached, again and again while that is so, and with None once
it is reached.
"""

Look = Callable[[socket.socket], str | None]
"""Says why a connection that is open, and that it uses up, cannot be used; None if it can."""

SILENT = "it accepts connections and does not answer"
PROBE_S = 2.0
"""How long an address may take to accept a connection: as long as an attempt of gRPC."""
PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5
"""How soon to look again, at first and later: a name server is asked each time."""
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


def obstacle(address: str, timeout_s: float = PROBE_S, look: Look | None = None) -> str | None:
    """Return why no connection can be opened to an address; None if one was accepted. Each address that the
    name stands for is tried for `timeout_s`.
    """
    try:
        places = places_of(address)
    except OSError as error:
        return unresolved(address, error)
    reason = ""
    for family, place in places:
        with socket.socket(family) as probe:  # create_connection would load the tables of IDNA
            probe.settimeout(timeout_s)
            try:
                probe.connect(place)
            except OSError as error:
                reason = _named(error)
            else:
                return look(probe) if look is not None else None
    return reason


def reach(peer: str, address: str, timeout_s: float, tell: Tell, look: Look | None = None) -> None:
    reason = _outlasts(partial(obstacle, address, look=look), timeout_s, tell)
    if reason is not None:
        raise not_reached(peer, address, timeout_s, reason)


def _outlasts(obstacle: Callable[[], str | None], timeout_s: float, tell: Tell) -> str | None:
    """Wait until there is no obstacle; return the last one if it is still there after the timeout."""
    deadline_s = time.monotonic() + timeout_s
    pause_s = PAUSE_S
    while (reason := obstacle()) is not None:
        tell(reason)
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return reason
        time.sleep(min(pause_s, left_s))
        pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S)
    return None


def not_reached(peer: str, address: str, timeout_s: float, reason: str) -> WaitTimeoutError:
    return WaitTimeoutError(
        f"{peer} at {address} did not accept a connection within {timeout_s:.3g} s: {reason}"
    )


def silence(address: str, *, tls: bool) -> str:
    return SILENT if tls or is_loopback(address) else f"{SILENT}, or expects TLS: see --tls-cert"


def wait_for_name(address: str, timeout_s: float, tell: Tell) -> None:
    reason = _outlasts(partial(name_obstacle, address), timeout_s, tell)
    if reason is not None:
        raise SpecError(f"cannot listen at {address}: {reason}; looked for {timeout_s:g} s (wait.start_s)")
    tell(None)


def unresolved(address: str, error: OSError) -> str:
    host = address.rpartition(":")[0]
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
        return f"the name {host} cannot be looked up now ({error.strerror})"
    return f"no such name: {host} ({error.strerror or error})"


def name_obstacle(address: str) -> str | None:
    try:
        places_of(address)
    except OSError as error:
        return unresolved(address, error)
    return None


def listening_obstacle(address: str) -> str | None:
    """Return why no server of this machine can listen at an address; None if one can. Of a name that stands
    for several addresses one must be free, and none in use.
    """
    try:
        places = places_of(address)
    except OSError as error:
        return unresolved(address, error)
    errors: list[OSError] = []
    for family, place in places:
        with socket.socket(family) as probe:
            # connections that have just ended are no hindrance
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(place)
                probe.listen(1)
            except OSError as error:
                errors.append(error)
    taken = [error for error in errors if error.errno == errno.EADDRINUSE]
    refused = taken or (errors if len(errors) == len(places) else [])
    return _not_bound(refused[0]) if refused else None


def places_of(address: str) -> list[tuple[socket.AddressFamily, Any]]:
    host, _, port = address.rpartition(":")
    # As bytes: a text is put through the tables of IDNA first, which are a megabyte.
    found = socket.getaddrinfo(host.strip("[]").encode(), int(port), type=socket.SOCK_STREAM)
    return [(family, place) for family, _, _, _, place in found]


def _named(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if error.errno == errno.ECONNREFUSED:
        return "refused: nothing listens there"
    if error.errno in _NO_ROUTE:
        return f"no route to it ({error.strerror})"
    return error.strerror or str(error)


def _not_bound(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process listens there; end it, or give this task another address"
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            "this machine does not have that address; start the task where it belongs, or correct the address"
        )
    if error.errno == errno.EACCES:
        return "the port is reserved for the administrator; give this task one above 1023"
    return error.strerror or str(error)


ALL_INTERFACES = "[::]"
"""gRPC takes it for every interface, of both families."""

Lookup = Callable[[str], Sequence[str]]
"""The IP addresses that a ``host:port`` stands for on this host; none if the name cannot be looked up."""


class ListeningPlace(NamedTuple):
    """A ``host:port`` where a task listens, and `why`, for its user, if it is not the one that others use."""

    address: str
    why: str | None = None


def place_to_listen(assignment: TaskAssignment) -> ListeningPlace:
    cluster, task = assignment.cluster, assignment.task
    others = [address for each in cluster.tasks() if each != task and (address := cluster.address(each))]
    return listening(assignment.address, others, assignment.bind, _addresses)


def listening(address: str, others: Sequence[str], bind: str | None, lookup: Lookup) -> ListeningPlace:
    """Return where a task listens that is reached at `address`, and whose peers are at `others`.

    `bind` is the host, or ``host:port``, that the user wants; None: as the address says.
    """
    host, _, port = address.rpartition(":")
    if bind is not None:
        has_port = bind.rpartition(":")[2].isdecimal() and not (bind.count(":") > 1 and "]" not in bind)
        wanted = bind if has_port else f"{bind}:{port}"
        return ListeningPlace(wanted, f"listens at {wanted} (--bind); others reach it at {address}")
    if _is_number(host) or not _all_loopback(lookup(address)):
        return ListeningPlace(address)
    hosts = {other.rpartition(":")[0] for other in others} - {host}
    away = sorted(other for other in hosts if not _all_loopback(lookup(f"{other}:{port}")))
    if not away:
        return ListeningPlace(address)
    wanted = f"{ALL_INTERFACES}:{port}"
    return ListeningPlace(
        wanted,
        f"listens on every interface, port {port}: {host} means {lookup(address)[0]} here, where {away[0]} "
        "would not reach it; --bind ADDRESS says otherwise",
    )


def _is_number(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ip_address(host.strip("[]"))
        return True
    return False


def _all_loopback(addresses: Sequence[str]) -> bool:
    return bool(addresses) and all(ip_address(each).is_loopback for each in addresses)


def _addresses(address: str) -> Sequence[str]:
    with contextlib.suppress(OSError):
        return [str(place[0]).partition("%")[0] for _, place in places_of(address)]
    return []
