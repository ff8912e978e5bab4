"""Ports of this machine that stay ours for a whole run.

A default gRPC server shares its port with any stranger that asks (SO_REUSEPORT), so two runs could exchange
gradients silently. Here a port is picked, bound exclusively, and only then marked SO_REUSEPORT; the socket
never listens and is held for the run. The task's own server can bind the port, also after a restart; a plain
bind, `bind(0)` and other users cannot, and until the server is up a connection is refused at once.
"""

import contextlib
import errno
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import portpicker

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.cluster.hosts import LOOPBACK
from dtrain.config import ClusterSection, Problem
from dtrain.errors import RunError, SpecError
from dtrain.process.resources import allow_open_files

_SERVING_ROLES = (Role.CHIEF, Role.WORKER, Role.PS)
_PICKS_MAX = 100
_OTHER_FILES = 32
_UNPRIVILEGED = 1024
_CLIENT_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


class HeldPorts(msgspec.Struct):
    """Bound, never listening sockets. A context manager: leaving it lets all ports go."""

    _sockets: list[socket.socket] = msgspec.field(default_factory=list)

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(holder.getsockname()[1] for holder in self._sockets)

    def hold(self, host: str, port: int) -> None:
        """Hold one given port; raise an `OSError` if it is in use, or its host is not this machine."""
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as closing:
            holder = closing.enter_context(socket.socket(family, kind, protocol))
            try:
                holder.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                _bind_after_others(holder, address)
            # After the bind, not before: before, it would let us share a port that a stranger already has.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            closing.pop_all()
        self._sockets.append(holder)

    def pick(self) -> int:
        for _ in range(_PICKS_MAX):
            port = pick_port()
            try:
                self.hold(LOOPBACK, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise RunError(f"cannot hold a port on {LOOPBACK}: {error.strerror}") from None
            else:
                return port
        raise RunError(
            f"no free port on {LOOPBACK} after {_PICKS_MAX} tries; do other programs take them all the time?"
        )

    def listen(self, on: bool) -> None:
        """Accept connections on every port without reading from them, or stop that; the ports stay held."""
        for holder in self._sockets:
            if on:
                holder.listen()
            else:
                holder.shutdown(socket.SHUT_RDWR)

    def release(self, port: int) -> None:
        """Let one port go, for a server that cannot share it. Releasing twice is allowed."""
        for holder in [holder for holder in self._sockets if holder.getsockname()[1] == port]:
            self._sockets.remove(holder)
            holder.close()

    def close(self) -> None:
        while self._sockets:
            self._sockets.pop().close()

    def __enter__(self) -> "HeldPorts":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _bind_after_others(holder: socket.socket, address: Any) -> None:
    """Bind a port that is used by nothing but connections in TIME_WAIT.

    With SO_REUSEADDR the kernel ignores these, and another holder too, until one of the two listens. So
    listen for a moment: the kernel refuses that if another process holds the port.
    """
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(address)
    holder.listen(1)
    holder.shutdown(socket.SHUT_RDWR)  # the port stays bound
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)


def pick_master_port() -> int:
    """Return a port for MASTER_PORT that is free now and never given to a client.

    It cannot be held, because its server does not share it.
    """
    first, last = map(int, _CLIENT_PORTS.read_text().split())
    served = [port for port in range(_UNPRIVILEGED, 1 << 16) if not first <= port <= last]
    tries = random.sample(served, min(_PICKS_MAX, len(served)))
    return next((port for port in tries if portpicker.is_port_free(port)), None) or pick_port()


def pick_port() -> int:
    try:
        port: int = portpicker.pick_unused_port()
    except portpicker.NoFreePortFoundError:
        raise RunError("this machine has no free port left") from None
    return port


def hold_addresses(section: ClusterSection) -> tuple[ClusterSpec, HeldPorts]:
    """Turn a spec's counts into loopback addresses and hold every port that the cluster names.

    Raises:
        SpecError: a given address is in use, or belongs to another machine; every such address is named.
        RunError: no ports could be had.
    """
    held = HeldPorts()
    try:
        if problems := [f"{'.'.join(map(str, path))}: {text}" for path, text in _hold_given(section, held)]:
            raise SpecError("\n".join(problems))
        return _addresses(section, held), held
    except (SpecError, RunError):
        held.close()
        raise


def _addresses(section: ClusterSection, held: HeldPorts) -> ClusterSpec:
    """Return the addresses of a cluster; held ports are picked for the tasks that it only counts."""
    given = {role.value: getattr(section, role) for role in _SERVING_ROLES}
    allow_open_files(sum(each for each in given.values() if isinstance(each, int)) + _OTHER_FILES)
    addresses = {
        role: [f"{LOOPBACK}:{held.pick()}" for _ in range(each)] if isinstance(each, int) else each
        for role, each in given.items()
    }
    return ClusterSpec.from_lists(**addresses)


def address_problems(section: ClusterSection) -> Iterator[Problem]:
    """Yield the given addresses that `hold_addresses` refuses now; none is held afterwards."""
    with HeldPorts() as held:
        yield from _hold_given(section, held)


def example_addresses(section: ClusterSection) -> ClusterSpec:
    """Return addresses as a launch might get them, for `dtrain plan`. The ports are not held."""
    with HeldPorts() as held:
        return _addresses(section, held)


def _hold_given(section: ClusterSection, held: HeldPorts) -> Iterator[Problem]:
    """Hold the addresses that the spec writes out; yield what is wrong with them."""
    for role in _SERVING_ROLES:
        given = getattr(section, role)
        for index, address in enumerate(() if isinstance(given, int) else given):
            host, _, port = address.rpartition(":")
            try:
                held.hold(host.strip("[]"), int(port))
            except OSError as error:
                yield ("cluster", role, index), _refusal(TaskId(role, index), address, error)


def _refusal(task: TaskId, address: str, error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{address} is not an address of this machine, and launch starts every task here; "
            f"start {task} over there with `dtrain {task.role} --spec SPEC --index {task.index} PROGRAM.py`"
        )
    if error.errno == errno.EADDRINUSE:
        return (
            f"{address} is in use by another process; write a count instead of addresses to have free "
            "ports picked"
        )
    return f"{address} cannot be bound: {error.strerror}"
