"""One task started by hand: who it is and in which cluster, from the first of these that says so.

1. the classic flags (`dtrain.process.tensorflow.classic_flags`), before the program or among its arguments
2. a spec that writes addresses
3. the TF_CONFIG of the environment

The rest of a spec (how to train, when to save) always comes from `--spec` and `--set`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import ClusterSection, RunSpec
from dtrain.errors import SpecError
from dtrain.process.access import check_access, secret_in_file
from dtrain.process.assignment import TF_CONFIG, TaskAssignment
from dtrain.process.private_variables import SECRET
from dtrain.process.secret import said_secret
from dtrain.process.tensorflow.classic_flags import read_classic_flags
from dtrain_cli.spec.file import read_spec

NO_CLUSTER = (
    'TF_CONFIG names no "cluster"; expected "cluster": {"chief": [...], "worker": [...], "ps": '
    '[...]} beside "task"'
)


def place_of_tf_config(environment: Mapping[str, str]) -> TaskAssignment:
    """Return the place that TF_CONFIG in the environment gives to a program that trains with dtrain.

    Raises:
        SpecError: TF_CONFIG is wrong, names no cluster or no task of it, or the cluster cannot train.
    """
    found = TaskAssignment.from_environment(environment)
    if found is None:
        raise SpecError(NO_CLUSTER)
    for _, problem in found.spec.program_problems():
        raise SpecError(f"TF_CONFIG: {problem}")
    return found


@dataclass(frozen=True)
class StandaloneStart:
    """The command line of `dtrain worker` and its like.

    Attributes:
        role: the command's name.
        index: which of them; None where not given.
        spec: the spec file.
        sets: each `--set KEY=VALUE`.
        flags: everything in which classic flags may stand, the strongest last.
        run_dir: where the task keeps its files.
        shortcuts: values by the names of `dtrain_cli.spec.file.SHORTCUTS`.
    """

    role: Role
    index: int | None = None
    spec: Path | None = None
    sets: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    run_dir: Path | None = None
    shortcuts: Mapping[str, Any] = field(default_factory=dict)

    def assignment(self, environment: Mapping[str, str]) -> TaskAssignment:
        """Be one task of a cluster.

        Raises:
            SpecError: nothing says which cluster, or what says so is wrong or contradicts the command, or
                strangers on a network could talk to its tasks.
        """
        found = self._by_flags() or self._by_spec() or self._by_environment(environment)
        if found is None and TF_CONFIG in environment:
            raise SpecError(NO_CLUSTER)
        if found is None:
            raise SpecError(
                f"nothing says which {self.role} this is, and of which cluster; expected --spec SPEC with "
                "addresses and --index I, or TF_CONFIG in the environment, or --ps_hosts, --worker_hosts and "
                "--task_index"
            )
        if found.task.role is not self.role or self.index not in (None, found.task.index):
            asked = self.role if self.index is None else TaskId(self.role, self.index)
            raise SpecError(
                f"`dtrain {self.role}` was asked for {asked}; TF_CONFIG or the flags say {found.task}"
            )
        spec = found.spec.secured(environment)
        secret = secret_in_file(spec.security) or said_secret(environment.get(SECRET))
        check_access(found.cluster, secret, spec.security, by_command=True)
        run_dir = self.run_dir.absolute() if self.run_dir else found.run_dir
        return replace(found, spec=spec, run_dir=run_dir, secret=secret)

    def _by_flags(self) -> TaskAssignment | None:
        own = [f"--job_name={self.role}", f"--task_index={self.index or 0}"]
        found = read_classic_flags([*own, *self.flags])
        return self._with_spec(_by_hand(*found)) if found else None

    def _by_spec(self) -> TaskAssignment | None:
        """Return the place that the spec gives, if it writes addresses."""
        if self.spec is None:
            return None
        spec = read_spec(self.spec, self.sets, self.shortcuts)
        jobs = {role: getattr(spec.cluster, role) for role in Role if role is not Role.EVALUATOR}
        if any(isinstance(job, int) and job for job in jobs.values()):
            return None
        count = spec.cluster.count(self.role)
        if self.index is None and count > 1:
            raise SpecError(f"{self.spec} has {count} tasks {self.role}; say which by --index I")
        task = TaskId(self.role, self.index or 0)
        if task.index >= count:
            raise SpecError(f"{self.spec} has no {task}: its cluster.{self.role} is {count or 'absent'}")
        return replace(
            _by_hand(ClusterSpec.from_lists(**{role: job for role, job in jobs.items() if job}), task),
            spec=spec,
        )

    def _by_environment(self, environment: Mapping[str, str]) -> TaskAssignment | None:
        found = TaskAssignment.from_environment(environment)
        if found is not None:
            return self._with_spec(found)
        if self.spec is not None:
            raise SpecError(
                f"{self.spec} gives counts, which `launch` turns into ports of this machine; "
                f"to start a task by hand write addresses such as worker: [machine-a:2222], or set TF_CONFIG"
            )
        return None

    def _with_spec(self, found: TaskAssignment) -> TaskAssignment:
        """Return a place that does not come from the spec, with the rest of the user's spec."""
        if self.spec is None and not self.sets and not self.shortcuts:
            return found
        counts = [
            f"cluster.{role}={found.cluster.count(role)}" for role in Role if role is not Role.EVALUATOR
        ]
        if self.spec is None or self.role is Role.EVALUATOR:
            counts.append(f"cluster.{Role.EVALUATOR}={int(self.role is Role.EVALUATOR)}")
        return replace(found, spec=read_spec(self.spec, [*counts, *self.sets], self.shortcuts))


def _by_hand(cluster: ClusterSpec, task: TaskId) -> TaskAssignment:
    counts = {role.value: cluster.count(role) for role in cluster.jobs}
    counts["evaluator"] = int(task.role is Role.EVALUATOR)
    return TaskAssignment(
        task, cluster, RunSpec(cluster=ClusterSection(**counts)), run_id=f"hand-{cluster.hash}"
    )
