"""The `simulate` section: faults on purpose."""

import contextlib
import math
from collections.abc import Iterator

import msgspec

import dtrain.cluster as clusters
from dtrain.config.plain_data import Problem, below, too_little
from dtrain.errors import SpecError


class KillFault(msgspec.Struct, frozen=True):
    """Kill a task with SIGKILL once, at a global step or a time after the start; a seed draws from a pair."""

    task: str
    at_step: int | tuple[int, int] | None = None
    at_s: float | tuple[float, float] | None = None


class PauseFault(msgspec.Struct, frozen=True):
    """Stop a task with SIGSTOP once and continue it `for_s` seconds later; when is said as in `KillFault`."""

    task: str
    for_s: float
    at_step: int | tuple[int, int] | None = None
    at_s: float | tuple[float, float] | None = None


def _moment_problems(fault: KillFault | PauseFault) -> Iterator[Problem]:
    if (fault.at_step is None) == (fault.at_s is None):
        yield (), "expected exactly one of at_step and at_s"
    for name in ("at_step", "at_s"):
        moment = getattr(fault, name)
        first, last = moment if isinstance(moment, tuple) else (moment or 0, moment or 0)
        if not 0 <= first <= last < math.inf:
            yield (
                (name,),
                f"expected a number of at least 0, or two of which the second is not less, found {moment}",
            )
    if isinstance(fault, PauseFault) and not 0 < fault.for_s < math.inf:
        yield ("for_s",), f"expected a number above 0, found {fault.for_s}"


class LinkFault(msgspec.Struct, frozen=True):
    """Make the connection of two tasks slow, on every transport."""

    between: tuple[str, str]
    latency_ms: float = 0.0
    bandwidth_mbit_s: float | None = None

    def problems(self) -> Iterator[Problem]:
        if problem := too_little(self.latency_ms, 0):
            yield ("latency_ms",), problem
        bandwidth = self.bandwidth_mbit_s
        if bandwidth is not None and not (math.isfinite(bandwidth) and bandwidth > 0):
            yield ("bandwidth_mbit_s",), f"expected a number above 0, found {bandwidth}"
        with contextlib.suppress(SpecError):  # that a name is no task is said where all names are looked at
            one, other = self.ends
            if one == other:
                yield ("between",), f"expected two different tasks, found {one} twice"

    def misses(self, host: clusters.TaskId, *, stages: bool) -> str | None:
        """Return why no message goes between a known link's ends; None if some do.

        Args:
            host: the task that hosts the control plane; of stages it is the first one.
            stages: whether replicas are stages of a pipeline, in the order of their numbers.
        """
        one, other = self.ends
        never = f"{one} and {other} never talk"
        if one == other or (stages and host in (one, other)):
            return None
        if stages and one.trains and other.trains:
            near = abs(one.index - other.index) == 1
            return None if near else f"{never}: a stage talks to its neighbours and to {host}"
        if not stages and clusters.Role.PS not in (one.role, other.role):
            return f"{never}: expected a ps at one end"
        if not stages and (one.trains or other.trains or host in (one, other)):
            return None
        return f"{never}: servers and the evaluator talk to {host} alone"

    @property
    def ends(self) -> tuple[clusters.TaskId, clusters.TaskId]:
        """Raise a `SpecError` if a name is no task."""
        return clusters.TaskId.parse(self.between[0]), clusters.TaskId.parse(self.between[1])


class SimulateSection(msgspec.Struct, frozen=True):
    """Make a cluster behave badly on purpose, reproducibly."""

    seed: int = 0
    slow: dict[str, float] = msgspec.field(default_factory=dict)
    kill: tuple[KillFault, ...] = ()
    pause: tuple[PauseFault, ...] = ()
    network: tuple[LinkFault, ...] = ()

    def problems(self) -> Iterator[Problem]:
        for task, factor in self.slow.items():
            if not (math.isfinite(factor) and factor >= 1):
                yield ("slow", task), f"expected a factor of at least 1, found {factor}"
            with contextlib.suppress(SpecError):  # as below, of links
                if self.slowness(clusters.TaskId.parse(task)) != factor:
                    yield ("slow", task), f"{clusters.TaskId.parse(task)} is given two factors"
        for kind in ("kill", "pause"):
            for index, fault in enumerate(getattr(self, kind)):
                yield from below((kind, index), _moment_problems(fault))
        for index, link in enumerate(self.network):
            yield from below(("network", index), link.problems())
            with contextlib.suppress(SpecError):
                if self.link(*link.between) is not link:
                    yield (
                        ("network", index, "between"),
                        f"the link of {' and '.join(link.between)} is described twice",
                    )

    def foreign_problems(self) -> Iterator[Problem]:
        """Yield what cannot be done to a foreign command, whose steps, work and messages are unseen."""
        moments = [
            (kind, index, "at_step")
            for kind in ("kill", "pause")
            for index, f in enumerate(getattr(self, kind))
            if f.at_step
        ]
        for path in [
            *(("slow", task) for task in self.slow),
            *moments,
            *(("network", i) for i in range(len(self.network))),
        ]:
            yield path, "this needs a PROGRAM.py; a command after -- can be killed and paused, by at_s"

    def slowness(self, task: clusters.TaskId) -> float:
        """Return the factor by which a task's own computation is slowed down; 1 without one."""
        return next(
            (factor for name, factor in self.slow.items() if clusters.TaskId.parse(name) == task), 1.0
        )

    def link(self, one: str, other: str) -> LinkFault | None:
        ends = {clusters.TaskId.parse(one), clusters.TaskId.parse(other)}
        return next((link for link in self.network if set(link.ends) == ends), None)

    def named_tasks(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from ((("slow", task), task) for task in self.slow)
        for kind in ("kill", "pause"):
            yield from (((kind, i, "task"), fault.task) for i, fault in enumerate(getattr(self, kind)))
        for i, link in enumerate(self.network):
            yield from ((("network", i, "between", end), task) for end, task in enumerate(link.between))
