"""The plan of a launch: from a spec and addresses to a `TaskLaunch` for each task. Pure.

`dtrain plan` prints it. A program's task reads its identity from TF_CONFIG and dtrain's own variables
(`dtrain.process.assignment`). A foreign command gets the same and the variables of other frameworks: RANK
and its kin for the training tasks, and TF_GRPC_REUSE_PORT because the launcher holds the ports. Thread
limits are set for every task and never replace the user's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from dtrain.cluster import TRAINING_ROLES, ClusterSpec, Role, TaskId
from dtrain.cluster.hosts import is_loopback
from dtrain.cluster.spec import LeafNames, task_name
from dtrain.config import ClusterSection, RunSpec, ServerSection
from dtrain.config.choices import On, Transport
from dtrain.formats.remote_files import masked
from dtrain.process.assignment import ATTEMPT, TaskAssignment
from dtrain.process.resources import THREAD_LIMITS, USERS_LIMIT
from dtrain.process.tensorflow import write_tf_config
from dtrain.process.tls_material import TlsMaterial
from dtrain.runs.files import RunFiles
from dtrain_cli.certificates.authority import AUTHORITY_DAYS


class TaskLaunch(msgspec.Struct, frozen=True):
    """One task, ready to be started.

    Attributes:
        address: where it serves; None for the evaluator.
        program: the Python program; None for a foreign command.
        command: the argv that is run; for a program the equivalent ``python -m dtrain.task PROGRAM ARGS``.
        arguments: the program's own arguments, or those of the foreign command (without the executable).
        environment: the variables that dtrain sets, on top of the inherited ones.
        private: those that only the task itself may see; they are recorded nowhere.
        needs_grpc: whether a `.py` program's task serves, or its servers may not be on this host.
        attempt: how often the task has been restarted.
    """

    task: TaskId
    address: str | None
    program: Path | None
    command: tuple[str, ...]
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: Path
    run_dir: Path
    needs_grpc: bool
    private: Mapping[str, str] = msgspec.field(default_factory=dict)
    attempt: int = 0

    def __repr__(self) -> str:
        return f"TaskLaunch({self.task})"  # without what is private

    @property
    def log(self) -> Path:
        return RunFiles(self.run_dir).log(self.task, self.attempt)

    def for_attempt(self, attempt: int) -> "TaskLaunch":
        return replace(self, attempt=attempt, environment={**self.environment, ATTEMPT: str(attempt)})

    def to_dict(self) -> dict[str, Any]:
        return {
            "task": str(self.task),
            "address": self.address,
            "program": str(self.program) if self.program else None,
            "command": list(self.command),
            "arguments": list(self.arguments),
            "environment": {name: masked(value) for name, value in self.environment.items()},
            "cwd": str(self.cwd),
            "attempt": self.attempt,
            "log": str(self.log),
        }


if TYPE_CHECKING:
    from dtrain_cli.certificates.by_library import Authority

START_ORDER = (Role.PS, Role.CHIEF, Role.WORKER, Role.EVALUATOR)


def tasks_of(cluster: ClusterSection) -> list[TaskId]:
    return [TaskId(role, index) for role in START_ORDER for index in range(cluster.count(role))]


NAME_MAX = 40


@dataclass(frozen=True)
class RunIdentity:
    """The run to which the tasks belong; `authority` makes their certificates, if these are no files."""

    run_id: str
    run_dir: Path
    secret: str | None = field(default=None, repr=False)
    authority: "Authority | None" = None

    def certificate(self, name: str) -> TlsMaterial | None:
        """Return a new certificate for a task, by its `task_name`; it lives as long as the authority."""
        if self.authority is None:
            return None
        return self.authority.issue(LeafNames.of(self.run_id, name), AUTHORITY_DAYS)


class Workload(msgspec.Struct, frozen=True):
    """The program of every task: Python with its arguments, or (`program` is None) a foreign command."""

    program: Path | None
    arguments: tuple[str, ...]
    cwd: Path

    @property
    def foreign(self) -> bool:
        return self.program is None

    def named(self, spec: RunSpec, earlier: str | None = None) -> RunSpec:
        """Return the spec with the run's name: as set, else the `earlier` one, else that of the program."""
        if "name" in spec.said or spec.name != RunSpec().name:
            return spec
        if earlier is not None:
            return replace(spec, name=earlier)
        scripts = (word for word in self.arguments if word.endswith(".py"))
        stem = Path(self.program or next(scripts, self.arguments[0])).stem
        name = re.sub(r"[^\w.-]", "-", stem, flags=re.ASCII).lstrip(".-")[:NAME_MAX]
        return replace(spec, name=name or spec.name)


class HostShare(msgspec.Struct, frozen=True):
    """The cores of a task's host, and how many tasks train there."""

    cores: int
    replicas: int


class Machine(msgspec.Struct, frozen=True):
    """The properties of this machine on which the plan depends.

    Attributes:
        environment: the user's variables, which every task inherits. A thread limit among them is kept.
        master: where PyTorch's server is to be, for MASTER_ADDR and MASTER_PORT of foreign commands.
        shares: what tasks on other hosts have there.
    """

    python: str
    cores: int
    environment: Mapping[str, str]
    master: tuple[str, int] | None = None
    shares: Mapping[TaskId, HostShare] = msgspec.field(default_factory=dict)

    def limits(self, task: TaskId, spec: RunSpec) -> dict[str, str]:
        """Return the limits of a task's threads; a user's limit holds unless training is deterministic."""
        if (share := self.shares.get(task)) is not None:
            environment, threads = spec.environment, threads_per_task(spec, share.cores, share.replicas)
        else:
            environment = {**self.environment, **spec.environment}
            threads = threads_per_task(spec, self.cores)
        users = None if spec.training.deterministic else environment.get(USERS_LIMIT)
        return limits_beside(environment, users or str(threads))


class RunPlan(msgspec.Struct, frozen=True):
    """Everything that a launch starts, in this order: servers, chief, workers, evaluator."""

    run: RunIdentity
    spec: RunSpec
    cluster: ClusterSpec
    tasks: tuple[TaskLaunch, ...]

    @property
    def leader(self) -> TaskId:
        """The task whose success is the run's."""
        leader = self.cluster.leader
        if leader is None:
            raise AssertionError("a spec in which no task trains is refused")
        return leader

    def to_dict(self) -> dict[str, Any]:
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
    """Lay out every task of a launch on this machine. `addresses` are those of all tasks."""
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
        own = assignment.to_environment(write_tf_config(addresses, task))
        environment = {**spec.environment, **own, **machine.limits(task, spec)}
        if workload.foreign:
            environment |= foreign_variables(task, addresses, machine.master)
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


def threads_per_task(spec: RunSpec, cores: int, replicas: int | None = None) -> int:
    """Return how many threads each of the host's tasks may use; `replicas` train there (None: all)."""
    if spec.training.deterministic:
        return 1
    return max(1, cores // max(1, spec.replicas if replicas is None else replicas))


def limits_beside(environment: Mapping[str, str], threads: str) -> dict[str, str]:
    """Return the variables that limit a task's threads, without those that the user has set."""
    return {name: threads for name in THREAD_LIMITS if name not in environment}


MASTER_PORT_BEHIND = 5000
"""How far MASTER_PORT is from the leader's own port: no other task of its host is there."""
_PORT_MAX = 65_535


def foreign_variables(
    task: TaskId, addresses: ClusterSpec, master: tuple[str, int] | None = None
) -> dict[str, str]:
    """Return a task's variables beside its TF_CONFIG.

    RANK counts the training tasks (the chief is 0), the servers have the ranks behind them; LOCAL_RANK and
    LOCAL_WORLD_SIZE count the training tasks of this task's host. `master` is the host and port of the first
    training task's own service (MASTER_ADDR, MASTER_PORT); None: its host, and a port that follows from its
    address.
    """
    variables = {"TF_GRPC_REUSE_PORT": "true", "PYTHONUNBUFFERED": "1"}
    training = list(addresses.tasks(*TRAINING_ROLES))
    ranks = [*training, *addresses.tasks(Role.PS)]
    if task in ranks:
        variables["RANK"] = str(ranks.index(task))
    if task in training:
        beside = [each for each in training if _host(addresses, each) == _host(addresses, task)]
        if master is None:  # no two tasks differ in the port that follows from the leader's address
            own_port = int((addresses.address(training[0]) or "").rpartition(":")[2])
            behind = own_port + MASTER_PORT_BEHIND
            port = behind if behind <= _PORT_MAX else own_port - MASTER_PORT_BEHIND
            master = _host(addresses, training[0]), port
        variables |= {
            "LOCAL_RANK": str(beside.index(task)),
            "WORLD_SIZE": str(len(training)),
            "LOCAL_WORLD_SIZE": str(len(beside)),
            "MASTER_ADDR": master[0],
            "MASTER_PORT": str(master[1]),
        }
    return variables


def _host(addresses: ClusterSpec, task: TaskId) -> str:
    host = (addresses.address(task) or "").rpartition(":")[0]
    return host.removeprefix("[").removesuffix("]")
