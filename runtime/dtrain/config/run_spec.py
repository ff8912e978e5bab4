"""A spec: all sections, and the rules between them."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

import dtrain.cluster as clusters
from dtrain.config.checkpoint_section import CheckpointSection
from dtrain.config.choices import Success, Validation
from dtrain.config.cluster_section import ClusterSection
from dtrain.config.problems import Problem
from dtrain.config.restart_section import DEFAULT_RESTART, RestartSection
from dtrain.config.security_section import SecuritySection
from dtrain.config.simulate_section import SimulateSection
from dtrain.config.training_rules import replicas_problems
from dtrain.config.training_section import (
    AsyncSection,
    ServerSection,
    SingleSection,
    SyncSection,
    TrainingSection,
    TrainingSettings,
    on_servers,
)
from dtrain.config.wait_section import WaitSection
from dtrain.errors import SpecError

NO_SERVERS = (
    "training on parameter servers needs at least one ps task in the cluster, found none: start some "
    "(`--ps 1`, or `ps: 1` in the spec), or train in one process (`--strategy single`)"
)

RoleName = Literal["chief", "worker", "ps", "evaluator"]


class WrittenSpec(TypedDict, total=False):
    """A spec as written: a key that is not there is unset."""

    name: str
    cluster: ClusterSection
    training: TrainingSettings
    checkpoint: CheckpointSection
    success: Success
    restart: dict[RoleName, RestartSection]
    wait: WaitSection
    hold_ports: bool
    security: SecuritySection
    trace: bool
    simulate: SimulateSection


@dataclass(frozen=True)
class RunSpec:
    """A whole cluster spec. `dtrain.config` knows the rules; who reads the file knows lines and columns.

    Attributes:
        said: the name and the `training` section as the spec file, the shortcuts and `--set` gave them. They
            win over the program's constructor, whatever their values. A spec file has no such key; in memory,
            in the environment of a task and in the run directory it goes with the spec.
    """

    name: str = "run"
    cluster: ClusterSection = field(default_factory=ClusterSection)
    training: TrainingSection = field(default_factory=AsyncSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    success: Success = Success.LEADER
    restart: dict[RoleName, RestartSection] = field(default_factory=dict)
    wait: WaitSection = field(default_factory=WaitSection)
    hold_ports: bool = True
    security: SecuritySection = field(default_factory=SecuritySection)
    trace: bool = False
    simulate: SimulateSection = field(default_factory=SimulateSection)
    said: dict[str, Any] = field(default_factory=dict, compare=False)

    def problems(self) -> Iterator[Problem]:
        """Yield the mistakes that types do not exclude, in every section and between sections."""
        if not self.name or len(self.name) > 100 or not all(c.isalnum() or c in "._-" for c in self.name):
            yield (
                ("name",),
                f"expected letters, digits, '.', '_' and '-', at most 100 of them, found {self.name!r}",
            )
        elif self.name.startswith((".", "-")):
            yield ("name",), f"expected a letter or digit first, found {self.name!r}"
        for section in ("cluster", "checkpoint", "wait", "security", "simulate"):
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
        for index, link in enumerate(self.simulate.network):
            with contextlib.suppress(SpecError):
                if self.cluster.count("ps") and (reason := link.misses(self.cluster.control_host)):
                    yield ("simulate", "network", index, "between"), reason
        yield from ((("training", *path), text) for path, text in self.training_problems())

    def training_problems(self) -> Iterator[Problem]:
        """Yield what is wrong with `training` on a cluster of this size."""
        if isinstance(self.training, SyncSection):
            yield from replicas_problems(self.training, self.replicas)

    def program_problems(self) -> Iterator[Problem]:
        """Yield what is wrong for a program that trains on this cluster, and right for other commands."""
        if not isinstance(self.training, SingleSection) and self.cluster.count("ps") == 0:
            yield ("cluster", "ps"), NO_SERVERS
        if self.training.validation == Validation.EVALUATOR and self.cluster.count("evaluator") == 0:
            yield (
                ("training", "validation"),
                "evaluator needs an evaluator task; this spec has none: add `evaluator: 1` to cluster",
            )

    def command_problems(self) -> Iterator[Problem]:
        """Yield what is wrong where any other command runs on it, of which less can be simulated."""
        yield from ((("simulate", *path), text) for path, text in self.simulate.foreign_problems())

    @property
    def replicas(self) -> int:
        """T: the number of tasks that train."""
        return self.cluster.count("worker") + (
            self.cluster.count("chief") if self.training.chief_trains else 0
        )

    def restart_of(self, role: str) -> RestartSection:
        """Return the restart rule of a role: the spec's, else the default of docs/reference/spec.md."""
        given: dict[str, RestartSection] = dict(self.restart.items())
        return given.get(role, DEFAULT_RESTART[role])

    @property
    def on_servers(self) -> ServerSection:
        """The `training` section of a run that trains on parameter servers; only such a run asks."""
        return on_servers(self.training)

    def secured(self, environment: Mapping[str, str]) -> "RunSpec":
        """Return the same spec with what the environment says of `security`.

        Raises:
            SpecError: it cannot be used; see `SecuritySection.completed`.
        """
        return replace(self, security=self.security.completed(environment))

    def resolved(self) -> "RunSpec":
        """Return the same spec with its consequences written out.

        A staleness bound of 0 is synchronous training without backups; the strategy `single` has one task,
        which leads.
        """
        if isinstance(self.training, SingleSection):
            return replace(self, cluster=ClusterSection(chief=1))
        return self


EMBEDDED_DEFAULT = RunSpec(cluster=ClusterSection(chief=1, worker=2, ps=2, evaluator=1))
"""The spec of `dtrain launch PROGRAM.py` when none is given."""
