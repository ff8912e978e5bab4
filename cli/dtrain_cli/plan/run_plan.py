"""The plan of a launch: from a spec and addresses to one `TaskLaunch` per task. Pure; `dtrain plan` prints
it.

A program's task reads its identity from TF_CONFIG and dtrain's own variables (`dtrain.process.assignment`). A
foreign command gets the same and the variables of other frameworks: RANK and its kin for the training tasks
(the chief is 0; servers have the ranks behind them), TF_GRPC_REUSE_PORT because the launcher holds the ports.
Thread limits are set for every task and never replace the user's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.cluster.certificate_names import LeafNames, task_name
from dtrain.cluster.loopback import is_loopback
from dtrain.config import RunSpec, ServerSection
from dtrain.config.choices import On, Transport
from dtrain.process.assignment import TaskAssignment
from dtrain.process.tensorflow.tf_config import write_tf_config
from dtrain.process.tls_material import TlsMaterial
from dtrain_cli.certificates.authority import AUTHORITY_DAYS
from dtrain_cli.plan.foreign_variables import foreign_variables
from dtrain_cli.plan.task_launch import TaskLaunch
from dtrain_cli.plan.threads import thread_variables

if TYPE_CHECKING:
    from dtrain_cli.certificates.by_library import Authority

START_ORDER = (Role.PS, Role.CHIEF, Role.WORKER, Role.EVALUATOR)
NAME_MAX = 40


@dataclass(frozen=True)
class RunIdentity:
    """Which run the tasks belong to.

    Attributes:
        run_id: different for any two runs.
        run_dir: where everything about it is kept.
        secret: what its connections present.
        authority: makes the certificates of its tasks; None: they have none, or files.
    """

    run_id: str
    run_dir: Path
    secret: str | None = field(default=None, repr=False)
    authority: "Authority | None" = None

    def certificate(self, name: str) -> TlsMaterial | None:
        """Return a new certificate for a task, by its `task_name`; it lives as long as the authority."""
        if self.authority is None:
            return None
        return self.authority.issue(LeafNames.of(self.run_id, name), AUTHORITY_DAYS)


@dataclass(frozen=True)
class Workload:
    """The program of every task: Python with its arguments, or (`program` is None) a foreign command."""

    program: Path | None
    arguments: tuple[str, ...]
    cwd: Path

    @property
    def foreign(self) -> bool:
        """Return whether it is a foreign command, which knows nothing of dtrain."""
        return self.program is None

    def named(self, spec: RunSpec, earlier: str | None = None) -> RunSpec:
        """Return the spec with the run's name: as set, else the `earlier` one, else that of the program."""
        if "name" in spec.said or spec.name != RunSpec.name:
            return spec
        if earlier is not None:
            return replace(spec, name=earlier)
        scripts = (word for word in self.arguments if word.endswith(".py"))
        stem = Path(self.program or next(scripts, self.arguments[0])).stem
        name = re.sub(r"[^\w.-]", "-", stem, flags=re.ASCII).lstrip(".-")[:NAME_MAX]
        return replace(spec, name=name or spec.name)


@dataclass(frozen=True)
class HostShare:
    """The cores of a task's host, and how many tasks train there."""

    cores: int
    replicas: int


@dataclass(frozen=True)
class Machine:
    """The properties of this machine on which the plan depends.

    Attributes:
        python: the interpreter that runs programs.
        cores: how many cores the tasks share.
        environment: the user's variables, which every task inherits; only looked at, to override none of the
            thread limits.
        master: where PyTorch's server is to be, for MASTER_ADDR and MASTER_PORT of foreign commands.
        shares: what tasks on other hosts have there.
    """

    python: str
    cores: int
    environment: Mapping[str, str]
    master: tuple[str, int] | None = None
    shares: Mapping[TaskId, HostShare] = field(default_factory=dict)

    def limits(self, task: TaskId, spec: RunSpec) -> dict[str, str]:
        """Return the variables that limit a task's threads."""
        if (share := self.shares.get(task)) is not None:
            return thread_variables(spec, share.cores, spec.environment, share.replicas)
        return thread_variables(spec, self.cores, {**self.environment, **spec.environment})


@dataclass(frozen=True)
class RunPlan:
    """Everything that a launch starts.

    Attributes:
        run: which run it is.
        spec: the resolved spec.
        cluster: the addresses, as TF_CONFIG has them.
        tasks: in the order of starting: servers, chief, workers, evaluator.
    """

    run: RunIdentity
    spec: RunSpec
    cluster: ClusterSpec
    tasks: tuple[TaskLaunch, ...]

    @property
    def leader(self) -> TaskId:
        """Return the task whose success is the run's."""
        leader = self.cluster.leader
        if leader is None:
            raise AssertionError("a spec in which no task trains is refused")
        return leader

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for plan.json and `dtrain plan --json`."""
        return {
            "run": self.run.run_id,
            "name": self.spec.name,
            "run_dir": str(self.run.run_dir),
            "cluster": self.cluster.to_dict(),
            "tasks": [launch.to_dict() for launch in self.tasks],
        }


def build_plan(
    spec: RunSpec,
    addresses: ClusterSpec,
    run: RunIdentity,
    workload: Workload,
    machine: Machine,
) -> RunPlan:
    """Lay out every task of a launch on this machine.

    Args:
        spec: a spec without problems.
        addresses: the address of every task, counts already filled in (`dtrain_cli.plan.ports`).
        run: the run's identity.
        workload: what the tasks run.
        machine: what they run on.
    """
    tasks = [
        *addresses.tasks(),
        *(TaskId(Role.EVALUATOR, index) for index in range(spec.cluster.count("evaluator"))),
    ]
    tasks.sort(key=lambda task: (START_ORDER.index(task.role), task.index))
    command = workload.arguments
    if workload.program is not None:
        command = (machine.python, "-m", "dtrain.task", str(workload.program), *workload.arguments)
    by_grpc = isinstance(spec.training, ServerSection) and spec.training.transport == Transport.GRPC
    far = by_grpc or not all(map(is_loopback, addresses.servers))
    wait = spec.wait
    if spec.on in (On.SSH, On.SLURM):  # the launcher waits for a host, and then starts its tasks elsewhere
        longer = {"server_s": wait.server_s + wait.start_s, "leader_s": wait.leader_s + wait.start_s}
        wait = replace(wait, **longer)
    launches = []
    for task in tasks:
        assignment = TaskAssignment(
            task,
            addresses,
            replace(spec, wait=wait),
            run.run_id,
            run_dir=run.run_dir,
            secret=None if workload.foreign else run.secret,
            launched=True,
            tls=run.certificate(task_name(task)),
        )
        environment = _environment(assignment, workload, machine, machine.limits(task, spec))
        launches.append(
            TaskLaunch(
                task=task,
                address=addresses.address(task),
                program=workload.program,
                command=command,
                arguments=workload.arguments[1:] if workload.foreign else workload.arguments,
                environment=environment,
                cwd=workload.cwd,
                run_dir=run.run_dir,
                needs_grpc=far or task.role is Role.PS,
                private={} if workload.foreign else assignment.private,
            )
        )
    return RunPlan(run, spec, addresses, tuple(launches))


def _environment(
    assignment: TaskAssignment, workload: Workload, machine: Machine, limits: Mapping[str, str]
) -> dict[str, str]:
    """Return a task's variables: the spec's, and over them dtrain's own and the limits of threads."""
    own = assignment.to_environment(write_tf_config(assignment.cluster, assignment.task))
    environment = {**assignment.spec.environment, **own, **limits}
    if workload.foreign:
        environment |= foreign_variables(assignment.task, assignment.cluster, machine.master)
    return environment
