"""The cluster spec without its addresses' meaning: how to train, save, restart and misbehave. CONTRACT section 3.

All of it is frozen data. Types say what a field may hold, `problems()` says what types cannot: ranges and rules between
fields. Whoever reads a spec (the launcher, with file, line and column; a constructor, with the argument's name) shows what
`problems()` yields; nobody repeats the rules.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import dtrain.cluster as clusters
from dtrain.errors import SpecError

Problem = tuple[tuple[str | int, ...], str]
"""Where (the path of keys from the top of the section) and what is wrong, what was expected."""

STRATEGIES = ("parameter_server", "single")
PARTITIONERS = {"fixed_shards": set(), "min_size": {"max_shards"}, "max_size": {"max_shards"}}
NOT_YET = {"compression": ("bf16", "fp16")}
"""Values that CONTRACT names and this version cannot honour: refused, never ignored."""
ROLES = tuple(role.value for role in clusters.Role)
STRICT = {"extra": "forbid"}


def _at_least(section: Any, minimum: float, *names: str) -> Iterator[Problem]:
    for name in names:
        value = getattr(section, name)
        if value is not None and not (math.isfinite(value) and value >= minimum):
            yield (name,), f"expected a number of at least {minimum}, found {value}"


@dataclass(frozen=True)
class ClusterSection:
    """How many tasks of each role, or at which addresses. A count means: pick ports on this machine."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

    chief: int | tuple[str, ...] = 0
    worker: int | tuple[str, ...] = 0
    ps: int | tuple[str, ...] = 0
    evaluator: int | tuple[str, ...] = 0

    def count(self, role: str) -> int:
        """Number of tasks of a role."""
        value: int | tuple[str, ...] = getattr(self, role)
        return value if isinstance(value, int) else len(value)

    def problems(self) -> Iterator[Problem]:
        """What is wrong beyond types."""
        for role in ROLES:
            if self.count(role) < 0:
                yield (
                    (role,),
                    f"expected a count of at least 0 or a list of addresses, found {self.count(role)}",
                )
            elif role in ("chief", "evaluator") and self.count(role) > 1:
                yield (role,), f"a cluster has at most one {role}, found {self.count(role)}"
        if self.chief == 0 and self.worker == 0:
            yield (), "nobody trains: expected a chief or at least one worker"
        seen: dict[str, str] = {}
        for role in ROLES:
            value = getattr(self, role)
            for index, address in enumerate(() if isinstance(value, int) else value):
                if reason := address_problem(address):
                    yield (role, index), reason
                elif address in seen:
                    yield (role, index), f"{address} is already the address of {seen[address]}"
                seen.setdefault(address, f"{role}:{index}")


def address_problem(address: str) -> str | None:
    """Why a text is no ``host:port`` address (``[::1]:2222`` for IPv6), or None if it is one."""
    host, colon, port = address.rpartition(":")
    if not colon or not host:
        return f"expected host:port, found {address!r}"
    if not port.isdecimal() or not 0 < int(port) < 65536:
        return f"expected a port from 1 to 65535 after the last colon, found {address!r}"
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return f"an IPv6 address needs brackets, such as [::1]:2222, found {address!r}"
    if any(character.isspace() or character == "/" for character in host):
        return f"expected host:port without spaces, slashes or a scheme, found {address!r}"
    return None


@dataclass(frozen=True)
class TrainingSection:
    """How the replicas' gradients become new variables. Names and defaults are CONTRACT section 3's."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

    strategy: str = "parameter_server"
    updates: Literal["sync", "async"] = "async"
    backup_workers: int = 0
    replicas_to_aggregate: int | None = None
    chief_trains: bool = True
    too_few: Literal["wait", "shrink", "fail"] = "wait"
    too_few_timeout_s: float = 60.0
    staleness_bound: int | None = None
    stale_gradients: Literal["apply", "drop", "scale", "compensate"] = "apply"
    max_staleness: int | None = None
    compensation: float = 0.04
    on_stale: Literal["skip", "retry_same_batch"] = "skip"
    warmup_steps: int = 0
    nan_policy: Literal["refuse", "skip", "fail"] = "refuse"
    deterministic: bool = False
    placement: Literal["round_robin", "greedy"] = "round_robin"
    partitioner: dict[str, int] | None = None
    compression: Literal["none", "bf16", "fp16"] | dict[str, float] = "none"
    transport: Literal["auto", "grpc", "local"] = "auto"
    seed: int = 0

    def problems(self) -> Iterator[Problem]:
        """What is wrong beyond types."""
        if self.strategy not in STRATEGIES:
            yield ("strategy",), f"this version has {' and '.join(STRATEGIES)}, found {self.strategy!r}"
        yield from _at_least(self, 0, "backup_workers", "too_few_timeout_s", "staleness_bound", "max_staleness")
        yield from _at_least(self, 0, "compensation", "warmup_steps", "seed")
        yield from _at_least(self, 1, "replicas_to_aggregate")
        if self.backup_workers and self.replicas_to_aggregate is not None:
            yield ("replicas_to_aggregate",), "give either backup_workers or replicas_to_aggregate, not both"
        if self.updates == "async" and (self.backup_workers or self.replicas_to_aggregate is not None):
            name = "backup_workers" if self.backup_workers else "replicas_to_aggregate"
            yield (name,), "backup replicas belong to updates: sync; this spec trains with updates: async"
        if self.updates == "sync" and self.staleness_bound:
            yield (
                ("staleness_bound",),
                "a staleness bound belongs to updates: async; this spec trains with updates: sync",
            )
        if self.stale_gradients == "drop" and self.max_staleness is None:
            yield ("stale_gradients",), "drop needs max_staleness: gradients staler than it are dropped"
        yield from self._partitioner_problems()
        for name, values in NOT_YET.items():
            if getattr(self, name) in values:
                yield (name,), f"{getattr(self, name)!r} is not in this version; leave {name} at its default"
        if isinstance(self.compression, dict):
            yield ("compression",), "this version sends gradients uncompressed; leave compression at its default"

    def _partitioner_problems(self) -> Iterator[Problem]:
        if self.partitioner is None:
            return
        kinds = set(self.partitioner) & set(PARTITIONERS)
        if len(kinds) != 1 or set(self.partitioner) - kinds - PARTITIONERS[min(kinds)]:
            expected = "{fixed_shards: n}, {min_size: bytes, max_shards: n} or {max_size: bytes, max_shards: n}"
            yield ("partitioner",), f"expected one of {expected}, found {self.partitioner}"
        for name, value in self.partitioner.items():
            if value < 1:
                yield ("partitioner", name), f"expected at least 1, found {value}"

    def replicas_needed(self, replicas: int) -> int:
        """N of rule 1: how many contributions make one synchronous update when `replicas` train."""
        return self.replicas_to_aggregate or replicas - self.backup_workers


@dataclass(frozen=True)
class CheckpointSection:
    """When checkpoints are written, which are kept, at which URL copies; one is always written at step 0 and at the end."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

    every_s: float | None = 30.0
    every_steps: int | None = None
    keep: int = 5
    keep_every_n_hours: float | None = None
    remote: str | None = None

    def problems(self) -> Iterator[Problem]:
        """What is wrong beyond types."""
        if self.remote is not None and "://" not in self.remote:
            yield ("remote",), f"expected a URL such as s3://bucket/run, found {self.remote!r}"
        yield from _at_least(self, 0.1, "every_s")
        yield from _at_least(self, 1, "every_steps", "keep")
        yield from _at_least(self, 0, "keep_every_n_hours")


@dataclass(frozen=True)
class RestartSection:
    """What happens when a task of one role dies. Backoff doubles; the count is forgotten after 60 healthy seconds."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

    policy: Literal["never", "on_failure", "always"] = "on_failure"
    max: int = 3
    backoff_s: float = 1.0

    def problems(self) -> Iterator[Problem]:
        """What is wrong beyond types."""
        yield from _at_least(self, 0, "max", "backoff_s")


DEFAULT_RESTART = {role: RestartSection(max=1 if role == "chief" else 3) for role in ROLES}


@dataclass(frozen=True)
class KillFault:
    """Kill a task with SIGKILL once, at a global step or a time after the start; of a pair the seed draws one between."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

    task: str
    at_step: int | tuple[int, int] | None = None
    at_s: float | tuple[float, float] | None = None


@dataclass(frozen=True)
class PauseFault:
    """Stop a task with SIGSTOP once and continue it `for_s` seconds later; when is said as in `KillFault`."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

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
            yield (name,), f"expected a number of at least 0, or two of which the second is not less, found {moment}"
    if isinstance(fault, PauseFault) and not 0 < fault.for_s < math.inf:
        yield ("for_s",), f"expected a number above 0, found {fault.for_s}"


@dataclass(frozen=True)
class LinkFault:
    """Make the connection of two tasks slow, on every transport."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

    between: tuple[str, str]
    latency_ms: float = 0.0
    bandwidth_mbit_s: float | None = None

    def problems(self) -> Iterator[Problem]:
        """What is wrong beyond types, and apart from which tasks exist."""
        yield from _at_least(self, 0, "latency_ms")
        bandwidth = self.bandwidth_mbit_s
        if bandwidth is not None and not (math.isfinite(bandwidth) and bandwidth > 0):
            yield ("bandwidth_mbit_s",), f"expected a number above 0, found {bandwidth}"
        with contextlib.suppress(SpecError):  # that a name is no task is said where all names are looked at
            if reason := _never_talk(*self.ends):
                yield ("between",), reason

    @property
    def ends(self) -> tuple[clusters.TaskId, clusters.TaskId]:
        """The two tasks.

        Raises:
            SpecError: a name is no task.
        """
        return clusters.TaskId.parse(self.between[0]), clusters.TaskId.parse(self.between[1])


def _never_talk(one: clusters.TaskId, other: clusters.TaskId) -> str | None:
    """Why no message ever goes between two tasks; None if some do."""
    if one == other:
        return f"expected two different tasks, found {one} twice"
    if clusters.Role.PS not in (one.role, other.role):
        return f"{one} and {other} never talk: expected a ps at one end"
    if not (one.trains or other.trains) and clusters.TaskId(clusters.Role.PS, 0) not in (one, other):
        return f"{one} and {other} never talk: servers and the evaluator talk to ps:0 alone"
    return None


@dataclass(frozen=True)
class SimulateSection:
    """Make a cluster behave badly on purpose, reproducibly."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

    seed: int = 0
    slow: dict[str, float] = field(default_factory=dict)
    kill: tuple[KillFault, ...] = ()
    pause: tuple[PauseFault, ...] = ()
    network: tuple[LinkFault, ...] = ()

    def problems(self) -> Iterator[Problem]:
        """What is wrong beyond types, and apart from which tasks exist (see `RunSpec.problems`)."""
        for task, factor in self.slow.items():
            if not (math.isfinite(factor) and factor >= 1):
                yield ("slow", task), f"expected a factor of at least 1, found {factor}"
            with contextlib.suppress(SpecError):  # as below, of links
                if self.slowness(clusters.TaskId.parse(task)) != factor:
                    yield ("slow", task), f"{clusters.TaskId.parse(task)} is given two factors"
        for kind in ("kill", "pause"):
            for index, fault in enumerate(getattr(self, kind)):
                yield from (((kind, index, *path), text) for path, text in _moment_problems(fault))
        for index, link in enumerate(self.network):
            yield from ((("network", index, *path), text) for path, text in link.problems())
            with contextlib.suppress(SpecError):
                if self.link(*link.between) is not link:
                    yield ("network", index, "between"), f"the link of {' and '.join(link.between)} is described twice"

    def foreign_problems(self) -> Iterator[Problem]:
        """What cannot be done to a foreign command: dtrain sees neither its steps nor its computation nor its messages."""
        moments = [
            (kind, index, "at_step") for kind in ("kill", "pause") for index, f in enumerate(getattr(self, kind)) if f.at_step
        ]
        for path in [*(("slow", task) for task in self.slow), *moments, *(("network", i) for i in range(len(self.network)))]:
            yield path, "this needs a PROGRAM.py; a command after -- can be killed and paused, by at_s"

    def slowness(self, task: clusters.TaskId) -> float:
        """How many times as long a task's own computation takes; 1 where nothing is said of it."""
        return next((factor for name, factor in self.slow.items() if clusters.TaskId.parse(name) == task), 1.0)

    def link(self, one: str, other: str) -> LinkFault | None:
        """What makes the connection of two tasks slow; None: nothing."""
        ends = {clusters.TaskId.parse(one), clusters.TaskId.parse(other)}
        return next((link for link in self.network if set(link.ends) == ends), None)

    def named_tasks(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Every place that names a task, with the name."""
        yield from ((("slow", task), task) for task in self.slow)
        for kind in ("kill", "pause"):
            yield from (((kind, i, "task"), fault.task) for i, fault in enumerate(getattr(self, kind)))
        for i, link in enumerate(self.network):
            yield from ((("network", i, "between", end), task) for end, task in enumerate(link.between))


@dataclass(frozen=True)
class RunSpec:
    """A whole cluster spec. `dtrain.config` knows the rules; who reads the file knows lines and columns."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

    name: str = "run"
    cluster: ClusterSection = field(default_factory=ClusterSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    success: Literal["leader", "all_workers"] = "leader"
    restart: dict[Literal["chief", "worker", "ps", "evaluator"], RestartSection] = field(default_factory=dict)
    hold_ports: bool = True
    secret_file: str | None = None
    simulate: SimulateSection = field(default_factory=SimulateSection)

    def problems(self) -> Iterator[Problem]:
        """What is wrong beyond types, in every section and between sections."""
        if not self.name or len(self.name) > 100 or not all(c.isalnum() or c in "._-" for c in self.name):
            yield (
                ("name",),
                f"expected letters, digits, '.', '_' and '-', at most 100 of them, found {self.name!r}",
            )
        elif self.name.startswith((".", "-")):
            yield ("name",), f"expected a letter or digit first, found {self.name!r}"
        for section in ("cluster", "training", "checkpoint", "simulate"):
            yield from (((section, *path), text) for path, text in getattr(self, section).problems())
        for role, restart in self.restart.items():
            yield from ((("restart", role, *path), text) for path, text in restart.problems())
        yield from self._problems_between_sections()

    def _problems_between_sections(self) -> Iterator[Problem]:
        for path, name in self.simulate.named_tasks():
            try:
                task = clusters.TaskId.parse(name)
            except SpecError as error:
                yield ("simulate", *path), str(error)
                continue
            if task.index >= self.cluster.count(task.role):
                yield (
                    ("simulate", *path),
                    f"the cluster has no {task}: {task.role} is {self.cluster.count(task.role)}",
                )
        if self.training.strategy == "parameter_server" and self.training.updates == "sync":
            replicas = self.replicas
            if 0 < replicas <= self.training.backup_workers:
                text = f"of {replicas} replicas at most {replicas - 1} can be backups, found {self.training.backup_workers}"
                yield ("training", "backup_workers"), text

    @property
    def replicas(self) -> int:
        """T of rule 1: how many tasks train."""
        return self.cluster.count("worker") + (self.cluster.count("chief") if self.training.chief_trains else 0)

    def restart_of(self, role: str) -> RestartSection:
        """The restart rule of a role: the spec's, else CONTRACT's default."""
        given: dict[str, RestartSection] = dict(self.restart.items())
        return given.get(role, DEFAULT_RESTART[role])

    def resolved(self) -> "RunSpec":
        """The same spec with what follows from it written out.

        A staleness bound of 0 is synchronous training without backups; the strategy `single` has one task, which leads.
        """
        if self.training.strategy == "single":
            return replace(self, cluster=ClusterSection(chief=1))
        if self.training.updates == "async" and self.training.staleness_bound == 0:
            training = replace(self.training, updates="sync", staleness_bound=None, backup_workers=0)
            return replace(self, training=training)
        return self


EMBEDDED_DEFAULT = RunSpec(cluster=ClusterSection(chief=1, worker=2, ps=2, evaluator=1))
"""The spec of `dtrain launch PROGRAM.py` when none is given."""
