"""The participants of a run: roles, tasks, and the addresses of a training cluster.

A cluster is TensorFlow's: jobs named `chief`, `worker` and `ps`, each a list of addresses (or, sparse, a
mapping from index to address). The evaluator is a task type but never part of the cluster
(`tf.train.ClusterSpec`, docs/guide/cluster.md).

Replicas are the tasks that train: the chief first, then the workers by index. That order is their *rank*;
gradients are summed in it when results must be deterministic.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache

from dtrain.errors import SpecError


class Role(StrEnum):
    """The role of a task. The value is TensorFlow's task type."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"


TRAINING_ROLES = (Role.CHIEF, Role.WORKER)
ROLE_ORDER = {role: position for position, role in enumerate(Role)}

_TASK_NAME = re.compile(r"(?:/job:)?(?P<role>[a-z_]+)(?::|/task:|/)(?P<index>\d{1,9})")


@dataclass(frozen=True, slots=True)
class TaskId:
    """One task of a run, written ``worker:0``."""

    role: Role
    index: int

    def __str__(self) -> str:
        return f"{self.role}:{self.index}"

    def __lt__(self, other: "TaskId") -> bool:
        return self.sort_key < other.sort_key

    @property
    def sort_key(self) -> tuple[int, int]:
        """Key of the order chief, workers, servers, evaluator, each by index."""
        return ROLE_ORDER[self.role], self.index

    @property
    def trains(self) -> bool:
        """True if the task computes gradients (the chief too, unless `chief_trains` is off)."""
        return self.role in TRAINING_ROLES

    @classmethod
    @lru_cache(maxsize=4096)  # a launcher of a hundred tasks reads their names all the time
    def parse(cls, text: str) -> "TaskId":
        """Read ``worker:0``, ``worker/0`` or ``/job:worker/task:0``, else raise a `SpecError`."""
        match = _TASK_NAME.fullmatch(text.strip())
        if match is None or match["role"] not in set(Role):
            roles = ", ".join(Role)
            raise SpecError(
                f"{text[:80]!r} is not a task; expected ROLE:INDEX such as worker:0, with a role of {roles}"
            )
        return cls(Role(match["role"]), int(match["index"]))


JOINING = TaskId(Role.WORKER, 999_999_999)
"""A worker that asks to join a run, and has no index yet."""


def tasks_text(counts: Mapping[str, int]) -> str:
    """Return the numbers of tasks by role in words: ``1 chief, 2 workers, 2 ps``."""
    return ", ".join(
        f"{n} {role}{'s' if role == Role.WORKER and n > 1 else ''}" for role, n in counts.items() if n
    )


@dataclass(frozen=True)
class ClusterSpec:
    """Addresses (``host:port``) of the chief, the workers and the parameter servers.

    Attributes:
        jobs: for each role that has tasks, index to address; an index may be missing (a sparse cluster),
            never negative.
    """

    jobs: Mapping[Role, Mapping[int, str]]

    @classmethod
    def from_lists(cls, **jobs: list[str] | tuple[str, ...]) -> "ClusterSpec":
        """Build from lists, for example ``ClusterSpec.from_lists(chief=["a:1"], ps=["b:1"])``."""
        return cls({Role(role): dict(enumerate(addresses)) for role, addresses in jobs.items() if addresses})

    def __bool__(self) -> bool:
        return any(self.jobs.values())

    def count(self, role: Role) -> int:
        """Return how many tasks of a role the cluster names."""
        return len(self.jobs.get(role, {}))

    def tasks(self, *roles: Role) -> Iterator[TaskId]:
        """Yield every task of the given roles (default: of all), in the order of roles and indices."""
        for role in sorted(self.jobs, key=ROLE_ORDER.__getitem__):
            if not roles or role in roles:
                yield from (TaskId(role, index) for index in sorted(self.jobs[role]))

    def __contains__(self, task: TaskId) -> bool:
        return task.index in self.jobs.get(task.role, {})

    def address(self, task: TaskId) -> str | None:
        """Return a task's address; None if the cluster does not name it (the evaluator, a joined worker)."""
        return self.jobs.get(task.role, {}).get(task.index)

    @property
    def servers(self) -> tuple[str, ...]:
        """The addresses of the parameter servers, by index."""
        return tuple(address for _, address in sorted(self.jobs.get(Role.PS, {}).items()))

    @cached_property
    def leader(self) -> TaskId | None:
        """The chief, or worker 0 where there is none."""
        return next(self.tasks(*TRAINING_ROLES), None)

    @cached_property
    def control_host(self) -> TaskId | None:
        """The task that hosts the control plane: the first parameter server, so that a step needs no message
        beside those that carry gradients; the leader where there are no servers.
        """
        return next(self.tasks(Role.PS), self.leader)

    def replicas(self, chief_trains: bool = True) -> tuple[TaskId, ...]:
        """Return the tasks that train, in rank order."""
        return tuple(self.tasks(*(TRAINING_ROLES if chief_trains else (Role.WORKER,))))

    @cached_property
    def first_joined(self) -> int:
        """Index of the first worker that joins a running cluster: after the last that the cluster names."""
        return max(self.jobs.get(Role.WORKER, {}), default=-1) + 1

    def rank(self, task: TaskId, chief_trains: bool = True) -> int | None:
        """Return the rank of a task; None if it does not train. Joined workers rank above all others."""
        replicas = self.replicas(chief_trains)
        if task in replicas:
            return replicas.index(task)
        joined = task.role is Role.WORKER and task.index >= self.first_joined
        return len(replicas) + task.index - self.first_joined if joined else None

    def to_dict(self) -> dict[str, list[str] | dict[str, str]]:
        """Return TF_CONFIG's "cluster": a list for a dense job, else a mapping with string keys."""
        result: dict[str, list[str] | dict[str, str]] = {}
        for role in sorted(self.jobs, key=ROLE_ORDER.__getitem__):
            addresses = dict(sorted(self.jobs[role].items()))
            dense = list(addresses) == list(range(len(addresses)))
            result[role.value] = (
                list(addresses.values()) if dense else {str(i): a for i, a in addresses.items()}
            )
        return result

    @property
    def hash(self) -> str:
        """Return a short digest that is equal on all tasks which were given the same cluster."""
        canonical = json.dumps(self.to_dict(), sort_keys=True).encode()
        return hashlib.blake2b(canonical, digest_size=8).hexdigest()
