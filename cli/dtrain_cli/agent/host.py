"""The host of an agent: its facts, the ports that are held there, and its way to other hosts."""

import errno
import ipaddress
import os
import selectors
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version

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
_OTHER_FILES = 128


def hold(order: HoldPorts, held: HeldPorts) -> Held:
    allow_open_files(2 * (len(held.ports) + order.count) + _OTHER_FILES)
    where = f"{order.first} to {order.last}" if order.first else "any"
    problem = f"{order.count} free ports are needed on {order.address} ({where})"
    found: list[int] = []
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
    if len(found) == order.count:
        if order.loose:
            held.release(found[-1])
        return Held(found)
    for port in found:
        held.release(port)
    return Held([], problem)


def _candidates(order: HoldPorts, held: HeldPorts) -> Iterator[int]:
    yield from order.wanted
    taken = {*order.wanted, *held.ports}
    if order.first:
        yield from (port for port in range(order.first, order.last + 1) if port not in taken)
        return
    for _ in range(order.count + _PICKS_MAX):
        try:
            yield pick_port()
        except RunError:
            return


def unreachable(addresses: Iterable[str], timeout_s: float) -> dict[str, str]:
    """Return why each address (``host:port``) that does not answer cannot be reached."""
    problems: dict[str, str] = {}
    deadline_s = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for address in addresses:
            try:
                trying = _begin(address)
            except OSError as error:
                problems[address] = error.strerror or str(error)
            else:
                selector.register(trying, selectors.EVENT_WRITE, address)
        while selector.get_map() and (left_s := deadline_s - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                tried = key.fileobj
                assert isinstance(tried, socket.socket)
                if number := tried.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    problems[key.data] = os.strerror(number)
                selector.unregister(tried)
                tried.close()
        for key in list(selector.get_map().values()):
            problems[key.data] = f"no answer within {timeout_s:g} s"
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
    return problems


def _begin(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    family, kind, protocol, _, place = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM
    )[0]
    trying = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
    number = trying.connect_ex(place)
    if number not in (0, errno.EINPROGRESS):
        trying.close()
        raise OSError(number, os.strerror(number))
    return trying
