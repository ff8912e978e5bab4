"""Rules for the hosts of a fleet: the order of logins, which hosts fit, and which are alive. Pure.

An sshd refuses logins at random when more than ten are under way (MaxStartups 10:30:100), and sites ban
addresses from which storms of logins come.

A host is heard through its agent. A stream that ends proves nothing about the tasks behind it: ssh may have
been killed, or a cable cut. They are dead for certain when another agent of the run has taken the place of
the earlier one on that host, or when the lease of the agent is over (`dtrain_cli.agent.lease`).
"""

import ipaddress
import math
import sys
from collections.abc import Iterable
from importlib.metadata import version

import msgspec

from dtrain.cluster import TaskId
from dtrain.cluster.hosts import LOOPBACK
from dtrain.config import Host, NetworkSection
from dtrain_cli.agent.lease import LEASE_S, REST_S
from dtrain_cli.agent.messages import PING_S, HostFacts
from dtrain_cli.fleet.link import HostError
from dtrain_cli.targets.target import HostNews

SILENT_S = 4.0
"""Seconds without a message of a host after which the user is told."""
AT_ONCE = 8
"""The most logins that are under way."""
AGAIN_S = (0.3, 0.7, 1.5, 3.0, 5.0)
"""The waits before each new login to a host whose login has failed or ended; the last one repeats."""
LOST_AGAIN_S = 15.0
"""The wait before each new login to a host that is lost: many logins would have it ban this machine."""
APART_S = 0.05
"""Hosts are logged in to again one after the other, by this much."""


class SendPing(msgspec.Struct, frozen=True):
    """Send a ping that echoes the agent's clock."""

    host: str
    heard_s: float


class LogInAgain(msgspec.Struct, frozen=True):
    """Start another agent on a host."""

    host: str


class Gone(msgspec.Struct, frozen=True):
    """The tasks on a host are dead. `usable`: it has another agent; else it is lost, until it has one."""

    host: str
    tasks: tuple[tuple[TaskId, int], ...]
    usable: bool
    silent_s: float


Action = SendPing | HostNews | LogInAgain | Gone


class _Host(msgspec.Struct):
    heard_s: float
    agent_s: float
    ping_s: float
    up: bool = True
    silent: bool = False
    lost: bool = False
    again_s: float = 0.0
    logins: int = 0


class HostsAlive:
    """The hosts of one run by the launcher's monotonic clock, and the attempt of each task on them.

    A host is up while its stream lasts. It is lost after `gone_s` seconds without a message.
    """

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.gone_s = lease_s + REST_S
        self._hosts: dict[str, _Host] = {}
        self._tasks: dict[TaskId, tuple[str, int]] = {}

    def is_up(self, host: str) -> bool:
        return host in self._hosts and self._hosts[host].up

    def told_s(self, host: str) -> float:
        """Return the newest moment of the agent's own clock; what it sent before has come before."""
        return self._hosts[host].agent_s if host in self._hosts else -math.inf

    def is_heard(self, host: str) -> bool:
        return self.is_up(host) and not self._hosts[host].silent

    def expect(self, hosts: Iterable[str], now_s: float) -> None:
        """Have hosts logged in to for the first time."""
        self._hosts = {host: _Host(math.inf, 0.0, 0.0, up=False, again_s=now_s) for host in hosts}

    def forget(self, host: str) -> None:
        self._hosts.pop(host, None)

    def ready(self, host: str, agent_s: float, now_s: float) -> list[Action]:
        """Note that an agent is ready, so that no earlier one is left on its host."""
        before = self._hosts.get(host)
        self._hosts[host] = _Host(now_s, agent_s, now_s)
        first = before is None or before.heard_s == math.inf
        return [] if first or before is None else [self._gone(host, now_s - before.heard_s, usable=True)]

    def heard(self, host: str, now_s: float, agent_s: float | None = None) -> list[Action]:
        known = self._hosts.get(host)
        if known is None or not known.up:
            return []
        after_s = now_s - known.heard_s
        known.heard_s = now_s
        known.agent_s = known.agent_s if agent_s is None else max(known.agent_s, agent_s)
        if not known.silent:
            return []
        known.silent = False
        return [HostNews("heard again", host, f"{host} is heard again, after {after_s:.0f} s")]

    def cut(self, host: str, now_s: float) -> None:
        known = self._hosts.get(host)
        if known is not None:
            known.up = False
            wait_s = LOST_AGAIN_S if known.lost else AGAIN_S[min(max(known.logins - 1, 0), len(AGAIN_S) - 1)]
            known.again_s = now_s + wait_s + APART_S * ([*self._hosts].index(host) % AT_ONCE)

    def started(self, task: TaskId, attempt: int, host: str) -> None:
        self._tasks[task] = host, attempt

    def ended(self, task: TaskId, attempt: int) -> None:
        if self._tasks.get(task, ("", -1))[1] == attempt:
            del self._tasks[task]

    def next_s(self, now_s: float) -> float:
        moments = [now_s + PING_S]
        for known in self._hosts.values():
            moments.append(known.ping_s if known.up else known.again_s)
            if not known.lost:
                moments.append(known.heard_s + self.gone_s)
        return min(moments)

    def due(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        room = AT_ONCE - sum(known.again_s == math.inf for known in self._hosts.values())
        for host, known in self._hosts.items():
            silent_s = now_s - known.heard_s
            if silent_s >= self.gone_s and not known.lost:
                known.lost = True
                self.cut(host, now_s)
                actions.append(self._gone(host, silent_s, usable=False))
            elif not known.up:
                if now_s >= known.again_s and room > 0:
                    room -= 1
                    known.again_s = math.inf
                    known.logins += 1
                    actions.append(LogInAgain(host))
            else:
                actions += self._watch(host, known, now_s)
        return actions

    def _watch(self, host: str, known: _Host, now_s: float) -> list[Action]:
        actions: list[Action] = []
        if now_s >= known.ping_s:
            known.ping_s = now_s + PING_S
            actions.append(SendPing(host, known.agent_s))
        if now_s - known.heard_s >= SILENT_S and not known.silent:
            known.silent = True
            limit = f"it is lost after {self.gone_s:g} s without a word"
            actions.append(HostNews("silent", host, f"{host} is not heard, and is waited for: {limit}"))
        return actions

    def _gone(self, host: str, silent_s: float, usable: bool) -> Gone:
        tasks = tuple((task, attempt) for task, (where, attempt) in self._tasks.items() if where == host)
        for task, _ in tasks:
            del self._tasks[task]
        return Gone(host, tasks, usable, silent_s)


HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def unfit(host: str, welcome: HostFacts, own: str | None = None) -> str | None:
    """Return why an agent cannot serve this launcher; `own` is the launcher's version of dtrain."""
    own = own or version("dtrain")
    if welcome.version != own:
        return (
            f"{host}: {welcome.executable} has dtrain {welcome.version} there, and this is {own}; "
            "install the same version on both"
        )
    if welcome.python != HERE:
        return (
            f"{host}: {welcome.executable} is Python {welcome.python}, and this is {HERE}; name an equal one "
            "with `--set python=PATH`"
        )
    return None if welcome.no_room is None else f"{host}: {welcome.no_room}"


def address_of(host: Host, welcome: HostFacts, network: NetworkSection, alone: bool) -> str:
    """Return the address at which other hosts reach the tasks of a host; with `alone`, loopback will do."""
    found = host.address or _in_network(host, welcome, network) or welcome.reached_at
    if found is None and alone:
        found = LOOPBACK
    if found is None:
        raise HostError(
            f"{host.host}: its address is not known, because the login did not come by ssh; write it in the "
            f"spec as `hosts: [{{host: {host.host}, address: ...}}]`"
        )
    return found


def _in_network(host: Host, welcome: HostFacts, network: NetworkSection) -> str | None:
    if network.interface is None:
        return None
    subnet = network.subnet
    for name, entries in welcome.addresses.items():
        for entry in entries:
            address = ipaddress.ip_interface(entry).ip
            wanted = name == network.interface if subnet is None else address in subnet
            if wanted and not address.is_link_local:
                return str(address)
    known = ", ".join(f"{name} {' '.join(entries)}" for name, entries in welcome.addresses.items())
    raise HostError(f"{host.host}: it has no address in {network.interface}; it has {known}")
