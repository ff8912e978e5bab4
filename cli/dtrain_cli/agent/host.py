"""The host of an agent: its facts, the ports that are held there, and its way to other hosts."""

import contextlib
import errno
import ipaddress
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import repeat

from dtrain.errors import RunError
from dtrain.process.resources import allow_open_files, usable_cores
from dtrain_cli.agent.messages import Held, HoldPorts, HostFacts
from dtrain_cli.agent.run_folders import check_room, run_folder
from dtrain_cli.plan.ports import HeldPorts, pick_port


def welcome(environment: Mapping[str, str]) -> HostFacts:
    return HostFacts(
        version=version("dtrain"),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        executable=sys.executable,
        host=socket.gethostname(),
        monotonic_s=time.monotonic(),
        wall_s=time.time(),
        cores=usable_cores(environment),
        reached_at=reached_at(environment.get("SSH_CONNECTION", "")),
        addresses=_addresses(),
        no_room=_no_room(),
    )


def reached_at(connection: str) -> str | None:
    """Return the server's address in SSH_CONNECTION (ssh(1)): client, its port, server, its port."""
    words = connection.split()
    return words[2].partition("%")[0] if len(words) == 4 and words[2] != "UNKNOWN" else None


def _no_room() -> str | None:
    folder = next(each for each in run_folder("", "").parents if each.is_dir())
    try:
        check_room(folder)
    except RunError as error:
        return str(error)
    return None


def _addresses() -> dict[str, list[str]]:
    import psutil

    found: dict[str, list[str]] = {}
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6) and entry.netmask:
                prefix = int(ipaddress.ip_address(entry.netmask)).bit_count()
                found.setdefault(name, []).append(f"{entry.address.partition('%')[0]}/{prefix}")
    return found


_PICKS_MAX = 100
_TRIED_AT_ONCE = 256
_OTHER_FILES = 128


def hold(order: HoldPorts, held: HeldPorts) -> Held:
    allow_open_files(2 * (len(held.ports) + order.count) + _OTHER_FILES)
    where = f"{order.first} to {order.last}" if order.first else "any"
    problem = f"{order.count} free ports are needed on {order.address} ({where})"
    found: list[int] = []
    with contextlib.suppress(RunError):  # this machine has no free port left
        for port in _candidates(order, held):
            if len(found) == order.count:
                break
            try:
                held.hold(order.address, port)
                found.append(port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    problem = f"{order.address} cannot be bound: {error.strerror}"
                    break
    whole = len(found) == order.count
    for port in found[-1:] if whole and order.loose else () if whole else found:
        held.release(port)
    return Held(found) if whole else Held([], problem)


def _candidates(order: HoldPorts, held: HeldPorts) -> Iterator[int]:
    yield from order.wanted
    taken = {*order.wanted, *held.ports}
    if order.first:
        yield from (port for port in range(order.first, order.last + 1) if port not in taken)
    else:
        yield from (pick_port() for _ in range(order.count + _PICKS_MAX))


def unreachable(addresses: Sequence[str], timeout_s: float) -> dict[str, str]:
    """Return why each address (``host:port``) that does not answer cannot be reached."""
    with ThreadPoolExecutor(max(1, min(len(addresses), _TRIED_AT_ONCE))) as pool:
        reasons = pool.map(_why_unreachable, addresses, repeat(timeout_s))
        return {address: why for address, why in zip(addresses, reasons, strict=True) if why}


def _why_unreachable(address: str, timeout_s: float) -> str | None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except OSError as error:
        return error.strerror or f"no answer within {timeout_s:g} s"
    return None
