"""A spec: all sections, and the rules between them."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypedDict

import msgspec
from msgspec.structs import replace

import dtrain.cluster as clusters
from dtrain.config.choices import On, Success, Validation
from dtrain.config.plain_data import Problem, below
from dtrain.config.sections import (
    DEFAULT_RESTART,
    ROLES,
    CheckpointSection,
    ClusterSection,
    DataSection,
    RestartSection,
    SecuritySection,
    WaitSection,
    environment_problems,
)
from dtrain.config.simulate_section import SimulateSection
from dtrain.config.targets import (
    CodeSection,
    KubernetesSection,
    NetworkSection,
    Places,
    SlurmSection,
    WrittenHosts,
    code_problems,
    hosts_problems,
)
from dtrain.config.training_section import (
    AsyncSection,
    CentralStorageSection,
    InOneTask,
    MirroredSection,
    MultiWorkerMirroredSection,
    PipelineSection,
    ServerSection,
    SingleSection,
    TrainingSection,
    TrainingSettings,
    kind_of,
    on_servers,
    replicas_problems,
    stages_problems,
    too_many_together,
)
from dtrain.errors import SpecError

NO_SERVERS = (
    "training on parameter servers needs at least one ps task in the cluster, found none: start some "
    "(`--ps 1`, or `ps: 1` in the spec), train among workers alone (`--strategy multi_worker_mirrored`), or "
    "in one process (`--strategy single`)"
)

_SECTIONS = ("cluster", "checkpoint", "security", "simulate", "network", "slurm", "kubernetes")
RoleName = Literal["chief", "worker", "ps", "evaluator"]
_ON_HOSTS = (On.SSH, On.SLURM)
_USED_BY: dict[str, tuple[On, ...]] = {
    **dict.fromkeys(("hosts", "place", "python", "network"), _ON_HOSTS),
    "code": (*_ON_HOSTS, On.KUBERNETES),
    "slurm": (On.SLURM,),
    "kubernetes": (On.KUBERNETES, On.TRAINER),
}
"""The keys that mean something to some engines alone, and those."""


class WrittenSpec(TypedDict, total=False):
    """A spec as written: a key that is not there is unset."""

    name: str
    on: On
    cluster: ClusterSection
    training: TrainingSettings
    data: DataSection
    checkpoint: CheckpointSection
    success: Success
    restart: dict[RoleName, RestartSection]
    wait: WaitSection
    hold_ports: bool
    security: SecuritySection
    trace: bool
    environment: dict[str, str]
    secrets: tuple[str, ...]
    simulate: SimulateSection
    hosts: WrittenHosts
    place: Places
    code: CodeSection
    python: str
    network: NetworkSection
    slurm: SlurmSection
    kubernetes: KubernetesSection


class RunSpec(msgspec.Struct, frozen=True):
    """A whole cluster spec (docs/reference/spec.md).

    `said` has the name and the `training` section as the spec file, the shortcuts and `--set` gave them. They
    win over the program's constructor, whatever their values. A spec file has no such key; in memory, in the
    environment of a task and in the run directory it goes with the spec.
    """

    name: str = "run"
    on: On = On.LOCAL
    cluster: ClusterSection = msgspec.field(default_factory=ClusterSection)
    training: TrainingSection = msgspec.field(default_factory=AsyncSection)
    data: DataSection = msgspec.field(default_factory=DataSection)
    checkpoint: CheckpointSection = msgspec.field(default_factory=CheckpointSection)
    success: Success = Success.LEADER
    restart: dict[RoleName, RestartSection] = msgspec.field(default_factory=dict)
    wait: WaitSection = msgspec.field(default_factory=WaitSection)
    hold_ports: bool = True
    security: SecuritySection = msgspec.field(default_factory=SecuritySection)
    trace: bool = False
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    simulate: SimulateSection = msgspec.field(default_factory=SimulateSection)
    hosts: WrittenHosts = ()
    place: Places = msgspec.field(default_factory=dict)
    code: CodeSection | None = None
    python: str | None = None
    network: NetworkSection = msgspec.field(default_factory=NetworkSection)
    slurm: SlurmSection = msgspec.field(default_factory=SlurmSection)
    kubernetes: KubernetesSection = msgspec.field(default_factory=KubernetesSection)
    said: dict[str, Any] = msgspec.field(default_factory=dict)

    def problems(self) -> Iterator[Problem]:
        """Yield the mistakes that types do not exclude, in every section and between sections."""
        if not self.name or len(self.name) > 100 or not all(c.isalnum() or c in "._-" for c in self.name):
            yield (
                ("name",),
                f"expected letters, digits, '.', '_' and '-', at most 100 of them, found {self.name!r}",
            )
        elif self.name.startswith((".", "-")):
            yield ("name",), f"expected a letter or digit first, found {self.name!r}"
        for section in _SECTIONS:
            yield from below((section,), getattr(self, section).problems())
        yield from environment_problems(self.environment, self.secrets)
        yield from hosts_problems(self.hosts, self.place)
        if self.code is not None:
            yield from below(("code",), code_problems(self.code))
        if self.python is not None and (not self.python.isprintable() or self.python.strip("/ ") == ""):
            yield ("python",), f"expected the path of an interpreter, found {self.python[:80]!r}"
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
        stages = isinstance(self.training, PipelineSection)
        for index, link in enumerate(self.simulate.network):
            with contextlib.suppress(SpecError):
                if reason := link.misses(self.cluster.control_host, stages=stages):
                    yield ("simulate", "network", index, "between"), reason
        yield from below(("training",), replicas_problems(self.training, self.replicas))

    def unused(self) -> Iterator[Problem]:
        """Yield the settings that a launch has no use for as it is, before `resolved`; none is a mistake."""
        for name, engines in _USED_BY.items():
            if self.on not in engines and getattr(self, name) != getattr(EMBEDDED_DEFAULT, name):
                yield (name,), f"not used by `on: {self.on}`; did you mean `--on {engines[0]}`?"
        for role in ROLES[1:] if isinstance(self.training, SingleSection) and self.cluster.chief else ():
            if self.cluster.count(role):
                yield ("cluster", role), "not used by `strategy: single`, which is one process"

    def program_problems(self) -> Iterator[Problem]:
        """Yield what is wrong for a program that trains on this cluster, and right for other commands."""
        if isinstance(self.training, ServerSection):
            if self.cluster.count("ps") == 0:
                yield ("cluster", "ps"), NO_SERVERS
        elif not isinstance(self.training, SingleSection):
            yield from self._problems_without_servers()
        if self.training.validation == Validation.EVALUATOR and self.cluster.count("evaluator") == 0:
            yield (
                ("training", "validation"),
                "evaluator needs an evaluator task; this spec has none: add `evaluator: 1` to cluster",
            )

    def _problems_without_servers(self) -> Iterator[Problem]:
        strategy = self.training.strategy
        if (servers := self.cluster.count("ps")) > 0:
            text = f"{strategy} trains without parameter servers: expected 0 ps tasks, found {servers}"
            yield ("cluster", "ps"), text
        yield from below(("training",), too_many_together(self.training, self.replicas))
        trainers = self.cluster.count("chief") + self.cluster.count("worker")
        yield from below(("training",), stages_problems(self.training, trainers))
        if isinstance(self.training, InOneTask) and trainers > 1:
            text = (
                f"{strategy} trains in one task, with training.replicas threads: expected one chief or one "
                f"worker, found {trainers} tasks that train; `--set training.replicas={trainers}` asks for "
                "as many threads"
            )
            yield ("cluster", "worker"), text

    @property
    def replicas(self) -> int:
        """T: the number of replicas: of tasks that train, or of threads in the one that does."""
        if isinstance(self.training, MirroredSection | CentralStorageSection):
            return self.training.replicas
        return self.cluster.count("worker") + (
            self.cluster.count("chief") if self.training.chief_trains else 0
        )

    def restart_of(self, role: str) -> RestartSection:
        given: dict[str, RestartSection] = dict(self.restart.items())
        return given.get(role, DEFAULT_RESTART[role])

    @property
    def on_servers(self) -> ServerSection:
        return on_servers(self.training)

    def secured(self, environment: Mapping[str, str]) -> "RunSpec":
        """Return the same spec with what the environment says of `security`; may raise a `SpecError`."""
        return replace(self, security=self.security.completed(environment))

    def resolved(self) -> "RunSpec":
        """Return the same spec with the one task of the strategy `single`, which leads."""
        if isinstance(self.training, SingleSection):
            return replace(self, cluster=ClusterSection(chief=1))
        return self


EMBEDDED_DEFAULT = RunSpec(cluster=ClusterSection(chief=1, worker=2, ps=2, evaluator=1))
"""The spec of `dtrain launch PROGRAM.py` when none is given."""


def default_cluster(strategy: str, stages: object = None) -> ClusterSection:
    """Return the tasks of `dtrain launch --strategy STRATEGY PROGRAM.py`, of those that are not named.

    `stages` are those of a pipeline, as they are written.
    """
    kind = kind_of({"strategy": strategy})
    if kind in (MultiWorkerMirroredSection, PipelineSection):
        cluster = replace(EMBEDDED_DEFAULT.cluster, ps=0)
        count = len(stages) if isinstance(stages, list | tuple) else stages
        return replace(cluster, worker=max(0, count - 1)) if isinstance(count, int) else cluster
    if issubclass(kind, InOneTask):
        return replace(EMBEDDED_DEFAULT.cluster, worker=0, ps=0, evaluator=int(kind is not SingleSection))
    return EMBEDDED_DEFAULT.cluster
