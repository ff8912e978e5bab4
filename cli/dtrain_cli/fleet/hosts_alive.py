"""Which hosts of a run are alive, and when the tasks of one that is not may be started elsewhere. Pure.

A host is heard through its agent. A stream that ends proves nothing about the tasks behind it: ssh may have
been killed, or a cable cut. They are dead for certain when another agent of the run has taken the place of
the earlier one on that host, or when the lease of the agent is over (`dtrain_cli.agent.lease`).
"""

from dataclasses import dataclass
from enum import Enum

from dtrain.cluster import TaskId
from dtrain_cli.agent.lease import LEASE_S, REST_S
from dtrain_cli.agent.messages import PING_S

SILENT_S = 4.0
"""Seconds without a message of a host after which the user is told."""
AGAIN_S = (0.0, 1.0, 2.0, 4.0)
"""The waits before each new login to a host whose stream has ended; the last one repeats."""


class Phase(Enum):
    """`UP`: its agent is heard. `CUT`: the stream has ended. `LOST`: it is used no more."""

    UP = "up"
    CUT = "cut"
    LOST = "lost"


@dataclass(frozen=True)
class SendPing:
    """Send a ping that echoes the agent's clock."""

    host: str
    heard_s: float


@dataclass(frozen=True)
class Silent:
    """Tell the user that a host is not heard."""

    host: str


@dataclass(frozen=True)
class HeardAgain:
    """Tell the user that a silent host is heard again."""

    host: str
    after_s: float


@dataclass(frozen=True)
class LogInAgain:
    """Start another agent on a host."""

    host: str


@dataclass(frozen=True)
class Gone:
    """The tasks that ran on a host are dead; `usable` says whether it can run tasks again."""

    host: str
    tasks: tuple[tuple[TaskId, int], ...]
    usable: bool
    silent_s: float


Action = SendPing | Silent | HeardAgain | LogInAgain | Gone


@dataclass
class _Host:
    heard_s: float
    agent_s: float
    ping_s: float
    phase: Phase = Phase.UP
    silent: bool = False
    again_s: float = 0.0
    logins: int = 0


class HostsAlive:
    """The hosts of one run by the launcher's monotonic clock, and the attempt of each task on them.

    Attributes:
        gone_s: the seconds without a word after which a host is lost.
    """

    def __init__(self, lease_s: float = LEASE_S) -> None:
        """Know no host yet; `lease_s` is the lease of every agent."""
        self.gone_s = lease_s + REST_S
        self._hosts: dict[str, _Host] = {}
        self._tasks: dict[TaskId, tuple[str, int]] = {}

    def phase(self, host: str) -> Phase | None:
        """Return the phase of a host; None before its first agent is ready."""
        return self._hosts[host].phase if host in self._hosts else None

    def is_heard(self, host: str) -> bool:
        """Return whether a host has an agent that is not silent."""
        return self.phase(host) is Phase.UP and not self._hosts[host].silent

    def ready(self, host: str, agent_s: float, now_s: float) -> list[Action]:
        """Note that an agent is ready, so that no earlier one is left on its host."""
        before = self._hosts.get(host)
        if before is not None and before.phase is Phase.LOST:
            return []
        self._hosts[host] = _Host(now_s, agent_s, now_s)
        return [] if before is None else [self._gone(host, now_s - before.heard_s, usable=True)]

    def heard(self, host: str, now_s: float, agent_s: float | None = None) -> list[Action]:
        """Note a word of a host, perhaps with its clock."""
        known = self._hosts.get(host)
        if known is None or known.phase is not Phase.UP:
            return []
        after_s = now_s - known.heard_s
        known.heard_s = now_s
        known.agent_s = known.agent_s if agent_s is None else max(known.agent_s, agent_s)
        if not known.silent:
            return []
        known.silent = False
        return [HeardAgain(host, after_s)]

    def cut(self, host: str, now_s: float) -> None:
        """Note that the stream of a host has ended, or that a login to it has failed."""
        known = self._hosts.get(host)
        if known is not None and known.phase is not Phase.LOST:
            known.phase = Phase.CUT
            known.again_s = now_s + AGAIN_S[min(known.logins, len(AGAIN_S) - 1)]

    def started(self, task: TaskId, attempt: int, host: str) -> None:
        """Note that an attempt of a task was sent to a host."""
        self._tasks[task] = host, attempt

    def ended(self, task: TaskId, attempt: int) -> None:
        """Note that an attempt of a task has ended on its host."""
        if self._tasks.get(task, ("", -1))[1] == attempt:
            del self._tasks[task]

    def next_s(self, now_s: float) -> float:
        """Return when `due` may have something to do."""
        moments = [now_s + PING_S]
        for known in self._hosts.values():
            if known.phase is Phase.UP:
                moments.append(known.ping_s)
            elif known.phase is Phase.CUT:
                moments.append(min(known.again_s, known.heard_s + self.gone_s))
        return min(moments)

    def due(self, now_s: float) -> list[Action]:
        """Return what is to be done now."""
        actions: list[Action] = []
        for host, known in self._hosts.items():
            if known.phase is Phase.LOST:
                continue
            silent_s = now_s - known.heard_s
            if silent_s >= self.gone_s:
                known.phase = Phase.LOST
                actions.append(self._gone(host, silent_s, usable=False))
            elif known.phase is Phase.CUT:
                if now_s >= known.again_s:
                    known.again_s = float("inf")
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
            actions.append(Silent(host))
        return actions

    def _gone(self, host: str, silent_s: float, usable: bool) -> Gone:
        tasks = tuple((task, attempt) for task, (where, attempt) in self._tasks.items() if where == host)
        for task, _ in tasks:
            del self._tasks[task]
        return Gone(host, tasks, usable, silent_s)
