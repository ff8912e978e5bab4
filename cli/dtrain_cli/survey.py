"""`dtrain check --hosts`: whether some hosts can run a cluster together, and how well."""

import contextlib
import os
import secrets
import selectors
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from dtrain.config import Host, NetworkSection, RunSpec, read_hosts
from dtrain.config.choices import On
from dtrain.errors import DtrainError, SpecError
from dtrain_cli.agent.messages import (
    PING_S,
    Answer,
    AskClock,
    FileFound,
    FindFile,
    Held,
    HoldPorts,
    HostFacts,
    Listen,
    Order,
    Ping,
    Pong,
    PortsListening,
    TimeOfDay,
    Tried,
    Try,
)
from dtrain_cli.console.streams import print_json, say
from dtrain_cli.fleet.host_rules import Logins, address_of, unfit
from dtrain_cli.fleet.link import HostError, Link, Opener
from dtrain_cli.fleet.locations import host_port
from dtrain_cli.placement import hosts_of_addresses
from dtrain_cli.targets.slurm_allocation import Srun, read_allocation
from dtrain_cli.targets.ssh import Ssh

CLOCK_S = 2.0
"""A clock that differs by more is named: certificates and the times in logs go by it."""
_DASH = "-"


class HostFound(msgspec.Struct):
    """Facts that were found out about one host.

    Attributes:
        login_s: from the start of its login to the first message of its agent.
        clock_s: how much later its clock is than this machine's.
        sees_folder: whether this command's working directory is the same folder there.
        unreached: why it cannot connect to another host, by that host's name.
    """

    host: str
    login_s: float | None = None
    python: str | None = None
    dtrain: str | None = None
    clock_s: float | None = None
    sees_folder: bool | None = None
    address: str | None = None
    problem: str | None = None
    unreached: dict[str, str] = msgspec.field(default_factory=dict)


HEADINGS = ("host", "ssh", "Python", "dtrain", "clock", "address", "this folder")


def row(found: HostFound) -> tuple[str, ...]:
    if found.login_s is None:
        return (found.host, "no", *[_DASH] * 5)
    folder = {True: "seen", False: "not there", None: _DASH}[found.sees_folder]
    clock = _DASH if found.clock_s is None else f"{found.clock_s:+.3f} s"
    known = (found.python or _DASH, found.dtrain or _DASH)
    return (found.host, f"{found.login_s:.1f} s", *known, clock, found.address or _DASH, folder)


def table(hosts: Sequence[HostFound]) -> Iterator[str]:
    rows = [HEADINGS, *map(row, hosts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def problems(hosts: Sequence[HostFound]) -> Iterator[str]:
    address = {found.host: found.address for found in hosts}
    for found in hosts:
        if found.problem is not None:
            yield found.problem
        for other, why in found.unreached.items():
            yield (
                f"{found.host} ({found.address}) cannot reach {other} ({address.get(other)}): {why}; open "
                "its ports in the firewalls (`network.ports` names them), or give `network.interface`"
            )


def remarks(hosts: Sequence[HostFound], folder: str) -> Iterator[str]:
    """Yield what does not stop a cluster, but is worth knowing."""
    for found in hosts:
        if found.clock_s is not None and abs(found.clock_s) > CLOCK_S:
            late = "ahead of" if found.clock_s > 0 else "behind"
            yield (
                f"{found.host}: its clock is {abs(found.clock_s):.1f} s {late} this machine's; the times in "
                "logs and certificates go by it"
            )
    seen = [found.host for found in hosts if found.sees_folder]
    unseen = [found.host for found in hosts if found.sees_folder is False]
    if unseen and seen:
        yield f"{folder} is on {', '.join(seen)} the same folder as here, and not on {', '.join(unseen)}"
    elif unseen:
        yield f"no host sees {folder}: code is sent to them, and the chief's checkpoints stay on its host"


def check_hosts(spec: RunSpec, as_json: bool) -> None:
    """Print one table of a spec's hosts; raise a `HostError` if they cannot run a cluster together."""
    hosts, opener = _hosts(spec)
    with Visits(opener, hosts, spec.network, say) as visits:
        found = visits.survey(Path.cwd())
    reasons, noted = list(problems(found)), list(remarks(found, str(Path.cwd())))
    if as_json:
        print_json({"hosts": msgspec.to_builtins(found), "mistakes": reasons, "remarks": noted})
    else:
        click.echo("\n".join(table(found)))
    for line in noted:
        say(line)
    if reasons:
        raise HostError("\n".join(reasons))


def _hosts(spec: RunSpec) -> tuple[list[Host], Opener]:
    python = spec.python or sys.executable
    said = read_hosts(spec.hosts) if spec.hosts else hosts_of_addresses(spec.cluster)
    if spec.on is On.SLURM and (allocation := read_allocation(os.environ)) is not None:
        return allocation.hosts(said), Srun(allocation, python, foreign=True)
    if not said:
        raise SpecError("hosts: found none; give `--hosts h1,h2`, or a spec with `hosts`")
    return said, Ssh(python, foreign=True)


T = TypeVar("T")
LOGIN_S = 20.0
"""For all logins, and so much more for each dozen of hosts: few are under way at once."""
_LOGIN_S_A_HOST = LOGIN_S / 12
ANSWER_S = 10.0
CONNECT_S = 5.0
_TICK_S = 0.1
_CLOCK_LOOKS = 3


class Visit(msgspec.Struct):
    """The process that carries the streams of one host's agent."""

    link: Link
    begun_s: float = msgspec.field(default_factory=time.monotonic)
    welcome: HostFacts | None = None
    heard_s: float = 0.0


class Visits:
    """The visits to some hosts, which are ended as this context is left."""

    def __init__(
        self, opener: Opener, hosts: Sequence[Host], network: NetworkSection, say: Callable[[str], None]
    ) -> None:
        self._say = say
        self.found = {host.host: HostFound(host.host) for host in hosts}
        self._hosts = {host.host: host for host in hosts}
        self._opener = opener
        self._network = network
        self._visits: dict[str, Visit] = {}
        self._selector = selectors.DefaultSelector()
        self._ping_s = 0.0
        ports = network.port_range
        self._ports = (0, 0) if ports is None else (ports.start, ports.stop - 1)
        self._logins = Logins(self._hosts)

    def __enter__(self) -> "Visits":
        return self

    def __exit__(self, *_: object) -> None:
        for visit in self._visits.values():
            visit.link.kill()
        self._selector.close()

    def survey(self, folder: Path) -> list[HostFound]:
        self._log_in()
        self._measure_clocks()
        self._find_folder(folder)
        self._try_pairs()
        return list(self.found.values())

    def _log_in(self) -> None:
        allowed_s = LOGIN_S + _LOGIN_S_A_HOST * len(self._hosts)
        deadline_s = time.monotonic() + allowed_s
        while not self._logins.done and time.monotonic() < deadline_s:
            for host in self._logins.begin(time.monotonic()):
                try:
                    visit = Visit(Link(host, self._opener.open(host)))
                except DtrainError as error:
                    self.found[host].problem = str(error)
                    self._logins.succeeded(host)
                    continue
                self._visits[host] = visit
                self._selector.register(visit.link, selectors.EVENT_READ, visit)
            self._turn()
        for host in self._logins.missing:
            reason = self.found[host].problem or f"{host}: no answer within {allowed_s:.0f} s"
            self.found[host].problem = reason
            if host in self._visits:
                self._end(self._visits[host], reason)

    def _turn(self) -> list[tuple[str, Answer]]:
        """Return the answers of a moment, each with its host, and keep the leases."""
        answers: list[tuple[str, Answer]] = []
        for key, _ in self._selector.select(_TICK_S):
            answers += self._receive(key.data)
        now_s = time.monotonic()
        if now_s >= self._ping_s:
            self._ping_s = now_s + PING_S
            for visit in self._visits.values():
                if visit.welcome is not None:
                    visit.link.send(Ping(visit.heard_s))
        for visit in self._visits.values():
            visit.link.pump()
        return answers

    def _receive(self, visit: Visit) -> list[tuple[str, Answer]]:
        host = visit.link.host
        try:
            answers = visit.link.read()
        except HostError as error:
            self._end(visit, str(error))
            return []
        for answer in answers:
            if isinstance(answer, Pong | HostFacts):
                visit.heard_s = max(visit.heard_s, answer.monotonic_s)
            if isinstance(answer, HostFacts):
                self._welcomed(visit, answer)
        if visit.link.over:
            reason, again = self._opener.explain(host, visit.link.exit_code(), visit.link.words())
            self._end(visit, reason, again)
        return [(host, answer) for answer in answers]

    def _welcomed(self, visit: Visit, welcome: HostFacts) -> None:
        found = self.found[visit.link.host]
        visit.welcome = welcome
        self._logins.succeeded(found.host)
        found.login_s = time.monotonic() - visit.begun_s
        found.python, found.dtrain = welcome.python, welcome.version
        found.problem = unfit(found.host, welcome)
        try:
            alone = len(self._hosts) == 1
            found.address = address_of(self._hosts[found.host], welcome, self._network, alone)
        except HostError as error:
            found.problem = found.problem or str(error)

    def _end(self, visit: Visit, reason: str, again: bool = False) -> None:
        """End a visit; `again` says whether another login may succeed where this one has not."""
        host = visit.link.host
        self.found[host].problem = reason = self.found[host].problem or reason
        self._selector.unregister(visit.link)
        visit.link.kill()
        del self._visits[host]
        if again and visit.welcome is None and self._logins.failed(host, time.monotonic()):
            self._say(f"{reason}; trying again")
        else:
            self._logins.succeeded(host)

    def _ask(self, orders: Mapping[str, Order], kind: type[T], timeout_s: float = ANSWER_S) -> dict[str, T]:
        for host, order in orders.items():
            if host in self._visits:
                self._visits[host].link.send(order)
        found: dict[str, T] = {}
        deadline_s = time.monotonic() + timeout_s
        while self._visits.keys() & orders.keys() - found.keys() and time.monotonic() < deadline_s:
            for host, answer in self._turn():
                if host in orders and isinstance(answer, kind):
                    found.setdefault(host, answer)
        return found

    def _measure_clocks(self) -> None:
        for host in list(self._visits):
            measurements = []
            for _ in range(_CLOCK_LOOKS):
                before_s = time.time()
                answer = self._ask({host: AskClock()}, TimeOfDay).get(host)
                took_s = time.time() - before_s
                if answer is not None:
                    measurements.append((took_s, answer.wall_s - before_s - took_s / 2))
            if measurements:
                self.found[host].clock_s = min(measurements)[1]

    def _find_folder(self, folder: Path) -> None:
        mark = folder / f".dtrain-check-{secrets.token_hex(8)}"
        content = secrets.token_bytes(16)
        try:
            descriptor = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:  # a folder in which nothing can be written
            return
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            for host, seen in self._ask(
                dict.fromkeys(self._visits, FindFile(str(mark), content)), FileFound
            ).items():
                self.found[host].sees_folder = seen.there
        finally:
            with contextlib.suppress(OSError):
                mark.unlink()

    def _try_pairs(self) -> None:
        held = self._ask(
            {
                host: HoldPorts(address, 1, *self._ports)
                for host in self._visits
                if (address := self.found[host].address) is not None
            },
            Held,
        )
        addresses: dict[str, str] = {}
        for host, answer in held.items():
            if (reason := answer.lacking(1)) is not None:
                self.found[host].problem = f"{host}: {reason}"
            else:
                addresses[host] = host_port(self.found[host].address or "", answer.ports[0])
        self._ask(dict.fromkeys(addresses, Listen(True)), PortsListening)
        others = {host: {each: to for each, to in addresses.items() if each != host} for host in addresses}
        orders = {host: Try(list(wanted.values()), CONNECT_S) for host, wanted in others.items() if wanted}
        tried = self._ask(orders, Tried, CONNECT_S + ANSWER_S)
        for host in orders:
            found = tried.get(host)
            for other, address in others[host].items():
                why = "its agent has not answered" if found is None else found.problems.get(address)
                if why is not None:
                    self.found[host].unreached[other] = why
