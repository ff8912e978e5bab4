"""`dtrain check --hosts`: whether some hosts can run a cluster together, and how well."""

import contextlib
import hashlib
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from dtrain.config import Host, NetworkSection, RunSpec, read_hosts
from dtrain.config.choices import On
from dtrain_cli.agent.lease import LEASE_S
from dtrain_cli.agent.messages import Done, FindFile, HoldPorts, HostFacts
from dtrain_cli.console.streams import print_json, say
from dtrain_cli.fleet.agents import AgentHost, Agents
from dtrain_cli.fleet.host_rules import address_of, unfit
from dtrain_cli.fleet.link import HostError
from dtrain_cli.fleet.locations import host_port
from dtrain_cli.fleet.mirror import Mirror
from dtrain_cli.fleet.preparation import Preparation
from dtrain_cli.placement import hosts_of, hosts_of_addresses
from dtrain_cli.targets.signals import SignalInbox
from dtrain_cli.targets.slurm_allocation import Srun, read_allocation
from dtrain_cli.targets.ssh import AgentOpener, Ssh

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
    known = (found.python or _DASH, found.dtrain or _DASH, f"{found.clock_s or 0.0:+.3f} s")
    return (found.host, f"{found.login_s:.1f} s", *known, found.address or _DASH, folder)


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
    found = HostSurvey(hosts, opener, spec.network).found_out(Path.cwd())
    reasons, noted = list(problems(found)), list(remarks(found, str(Path.cwd())))
    if as_json:
        print_json({"hosts": msgspec.to_builtins(found), "mistakes": reasons, "remarks": noted})
    else:
        click.echo("\n".join(table(found)))
    for line in noted:
        say(line)
    if reasons:
        raise HostError("\n".join(reasons))


def _hosts(spec: RunSpec) -> tuple[list[Host], AgentOpener]:
    python = spec.python or sys.executable
    if spec.on is On.SLURM and (allocation := read_allocation(os.environ)) is not None:
        chosen = read_hosts(spec.hosts) if spec.hosts else hosts_of_addresses(spec.cluster)
        return allocation.hosts(chosen), Srun(allocation, python, foreign=True)
    return hosts_of(spec), Ssh(python, foreign=True)


LOGIN_S = 20.0
"""For all logins, and so much more for each dozen of hosts: few are under way at once."""
_LOGIN_S_A_HOST = LOGIN_S / 12


class HostSurvey:
    """The visits to some hosts, through agents that belong to no run."""

    def __init__(self, hosts: Sequence[Host], opener: AgentOpener, network: NetworkSection) -> None:
        self._hosts = {host.host: host for host in hosts}
        self._found = {name: HostFound(name) for name in self._hosts}
        self._network = network
        self._signals = SignalInbox()
        self._agents = Agents(opener, None, Mirror(Path(os.devnull), lambda *_: False), LEASE_S)
        self._agents.wake_on(self._signals)
        self._steps = Preparation(self._agents, self._signals, say, needed=False)

    def found_out(self, folder: Path) -> list[HostFound]:
        with contextlib.closing(self._agents):
            self._steps.log_in(list(self._hosts), LOGIN_S + _LOGIN_S_A_HOST * len(self._hosts))
            for host, member in self._agents.members.items():
                if member.welcome is not None:
                    self._note(self._found[host], member.welcome, member)
            self._find_folder(folder)
            self._try_pairs()
        for host, why in self._steps.unfit.items():
            self._found[host].problem = self._found[host].problem or why
        return list(self._found.values())

    @property
    def _there(self) -> list[str]:
        return [host for host in self._hosts if host not in self._steps.unfit]

    def _note(self, found: HostFound, welcome: HostFacts, member: AgentHost) -> None:
        found.login_s, found.clock_s = member.login_s, welcome.wall_s - member.greeted_s
        found.python, found.dtrain = welcome.python, welcome.version
        found.problem = unfit(found.host, welcome)
        try:
            alone = len(self._hosts) == 1
            found.address = address_of(self._hosts[found.host], welcome, self._network, alone)
        except HostError as error:
            found.problem = found.problem or str(error)

    def _find_folder(self, folder: Path) -> None:
        content = secrets.token_bytes(16)
        unwritable = contextlib.suppress(OSError)
        with unwritable, tempfile.NamedTemporaryFile(dir=folder, prefix=".dtrain-check-") as mark:
            mark.write(content)
            mark.flush()
            question = FindFile(mark.name, hashlib.sha256(content).hexdigest())
            for host, answer in self._steps.ask(dict.fromkeys(self._there, question), Done).items():
                self._found[host].sees_folder = answer.problem is None

    def _try_pairs(self) -> None:
        ports = self._network.port_range
        first, last = (0, 0) if ports is None else (ports.start, ports.stop - 1)
        own = {host: address for host in self._there if (address := self._found[host].address) is not None}
        orders = {host: HoldPorts(address, 1, first, last) for host, address in own.items()}
        held = self._steps.hold_ports(orders)
        hosts = {host_port(own[host], port): host for host, (port,) in held.items()}
        wanted = {host: [address for address in hosts if hosts[address] != host] for host in hosts.values()}
        tried = self._steps.unreached(wanted)
        for host, addresses in wanted.items():
            unheard = dict.fromkeys(addresses if host not in tried else (), "its agent has not answered")
            for address, why in (unheard | tried.get(host, {})).items():
                self._found[host].unreached[hosts[address]] = why
