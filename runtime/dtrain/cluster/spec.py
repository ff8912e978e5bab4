"""The participants of a run: roles, tasks, where each serves, and their names in certificates.

A cluster is TensorFlow's: jobs named `chief`, `worker` and `ps`, each a list of addresses (or, sparse, a
mapping from index to address). The evaluator is a task type but never part of the cluster
(`tf.train.ClusterSpec`, docs/guide/cluster.md).

Replicas are the tasks that train: the chief first, then the workers by index. That order is their *rank*;
gradients are summed in it when results must be deterministic.

A cluster names an address for each of its tasks. One that is started again may serve at another address, and
a worker that joins has none in the cluster. Each entry has a version, and a newer one replaces an older one,
also if the newer one arrives first. The version is the incarnation of the process that serves there
(docs/design/protocol.md#no-silent-wait): the control host gives it, also one that was started again itself.

    DNS:dtrain               every certificate of every run: hosts have many names, and none of them counts
    DNS:ps-0.dtrain          the task; a client demands this name of the server that it wants to reach
    URI:dtrain://RUN/ps/0    the run and the task; a server compares it with what its peer says of itself

A worker that joins a running cluster has an index that no certificate can know beforehand: ``joined`` stands
for it. A certificate may name several tasks.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from urllib.parse import quote

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
    """Addresses (``host:port``) of the chief, the workers and the parameter servers."""

    jobs: Mapping[Role, Mapping[int, str]]

    @classmethod
    def from_lists(cls, **jobs: list[str] | tuple[str, ...]) -> "ClusterSpec":
        """Build from lists, for example ``ClusterSpec.from_lists(chief=["a:1"], ps=["b:1"])``."""
        return cls({Role(role): dict(enumerate(addresses)) for role, addresses in jobs.items() if addresses})

    def __bool__(self) -> bool:
        return any(self.jobs.values())

    def count(self, role: Role) -> int:
        return len(self.jobs.get(role, {}))

    def tasks(self, *roles: Role) -> Iterator[TaskId]:
        for role in sorted(self.jobs, key=ROLE_ORDER.__getitem__):
            if not roles or role in roles:
                yield from (TaskId(role, index) for index in sorted(self.jobs[role]))

    def __contains__(self, task: TaskId) -> bool:
        return task.index in self.jobs.get(task.role, {})

    def address(self, task: TaskId) -> str | None:
        return self.jobs.get(task.role, {}).get(task.index)

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(address for _, address in sorted(self.jobs.get(Role.PS, {}).items()))

    @cached_property
    def leader(self) -> TaskId | None:
        return next(self.tasks(*TRAINING_ROLES), None)

    @cached_property
    def control_host(self) -> TaskId | None:
        """The first parameter server, so that a step needs no message beside gradients; else the leader."""
        return next(self.tasks(Role.PS), self.leader)

    @cached_property
    def _training_tasks(self) -> tuple[TaskId, ...]:
        return tuple(self.tasks(*TRAINING_ROLES))

    def replicas(self, chief_trains: bool = True) -> tuple[TaskId, ...]:
        return self._training_tasks if chief_trains else tuple(self.tasks(Role.WORKER))

    @cached_property
    def first_joined(self) -> int:
        return max(self.jobs.get(Role.WORKER, {}), default=-1) + 1

    def rank(self, task: TaskId, chief_trains: bool = True) -> int | None:
        """Return the rank of a task; None if it does not train. Joined workers rank above all others."""
        replicas = self.replicas(chief_trains)
        if task in replicas:
            return replicas.index(task)
        joined = task.role is Role.WORKER and task.index >= self.first_joined
        return len(replicas) + task.index - self.first_joined if joined else None

    def to_dict(self) -> dict[str, list[str] | dict[str, str]]:
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
        canonical = json.dumps(self.to_dict(), sort_keys=True).encode()
        return hashlib.blake2b(canonical, digest_size=8).hexdigest()


Moved = dict[str, tuple[str, int]]
"""By task, the address and the version of each entry that differs from the cluster."""


class AddressBook:
    """The addresses of all tasks, as one task knows them.

    Attributes:
        moved: the entries that differ from the cluster.
        digest: a number that is equal for two tasks which know the same entries; 0 without any.
    """

    def __init__(self, cluster: ClusterSpec) -> None:
        self._cluster = cluster
        self.moved: Moved = {}
        self.digest = 0

    def address(self, task: TaskId) -> str:
        entry = self.moved.get(str(task))
        address = entry[0] if entry is not None else self._cluster.address(task)
        if address is None:
            raise SpecError(f"{task} cannot be reached: it has no address in the cluster and serves nowhere")
        return address

    def learn(self, task: str, address: str, version: int) -> None:
        _, known = self.moved.get(task, ("", 0))
        if version > known:
            self.digest += version - known
            self.moved[task] = address, version

    def learn_all(self, moved: Mapping[str, tuple[str, int]]) -> None:
        for task, (address, version) in moved.items():
            self.learn(task, address, version)


NETWORK = "dtrain"
SCHEME = "dtrain://"
JOINED = "joined"


def joined_worker() -> str:
    """Return what stands for any worker that joins a running cluster, as `task_name` does for other tasks."""
    return f"{Role.WORKER}-{JOINED}"


def task_name(task: TaskId, joined: bool = False) -> str:
    """Return a task's name in names of files and hosts: ``ps-0``."""
    return joined_worker() if joined else f"{task.role}-{task.index}"


def host_name(name: str) -> str:
    return f"{name}.{NETWORK}"


def task_uri(run_id: str, name: str) -> str:
    role, _, index = name.partition("-")
    return f"{SCHEME}{quote(run_id, safe='')}/{role}/{index}"


def names_tasks(uris: Iterable[str]) -> bool:
    """Return whether a certificate with these URIs says which task it is; a user's own need not."""
    return any(uri.startswith(SCHEME) for uri in uris)


@dataclass(frozen=True)
class LeafNames:
    """The names in a leaf; `task` is its `task_name`."""

    task: str
    hosts: tuple[str, ...]
    uri: str

    @classmethod
    def of(cls, run_id: str, name: str) -> "LeafNames":
        return cls(name, (NETWORK, host_name(name)), task_uri(run_id, name))
