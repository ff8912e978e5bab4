"""TF_CONFIG as TensorFlow 2.15 reads it: lenient, checked late, with the same answers and classes of errors.

This is for programs that call `tf.distribute.cluster_resolver.TFConfigClusterResolver` and the functions of
`tensorflow.python.distribute.multi_worker_util`. dtrain itself reads TF_CONFIG strictly:
`dtrain.process.tensorflow.tf_config`.

Surprising behaviour that holds here as there: the variable is parsed anew at each question; the empty string
is a JSON error; a task that the cluster does not have is reported only by `master()`; a cluster of one task
has the master ``""``; an evaluator is a chief; `master` is no task type.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

TASK_TYPES = ("chief", "worker", "evaluator", "ps", None)


class TFClusterSpec:
    """`tf.train.ClusterSpec`: jobs by name, each a list of addresses or, sparse, a mapping from index.

    Raises:
        TypeError: not a mapping of lists or mappings of texts.
        ValueError: an index is not a whole number.
    """

    def __init__(self, cluster: Any) -> None:
        if not isinstance(cluster, dict):
            expected = "a dictionary mapping one or more job names to lists of network addresses"
            raise TypeError(f"`cluster` must be {expected}")
        self._tasks: dict[str, dict[int, str]] = {}
        for job, tasks in cluster.items():
            if isinstance(tasks, dict):
                self._tasks[job] = {int(index): address for index, address in tasks.items()}
            elif isinstance(tasks, list | tuple):
                self._tasks[job] = dict(enumerate(tasks))
            else:
                raise TypeError(
                    f"The tasks for job {job!r} must be a list or a dictionary from integers to strings."
                )
        for tasks in self._tasks.values():
            for address in tasks.values():
                if not isinstance(address, str):
                    raise TypeError(f"Task address {address!r} must be bytes or unicode")

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._tasks)

    def num_tasks(self, job: str) -> int:
        """Return the number of a job's tasks."""
        return len(self._job(job))

    def task_indices(self, job: str) -> list[int]:
        """Return the indices of a job's tasks, ascending."""
        return sorted(self._job(job))

    def task_address(self, job: str | None, index: int | None) -> str:
        """Return the address of one task; raise a `ValueError` if there is no such job or task."""
        tasks = self._job(job)
        if index not in tasks:
            raise ValueError(f"No task with index {index!r} in job {job!r}")
        return tasks[index]

    def job_tasks(self, job: str) -> list[str | None]:
        """Return a job's addresses by index (None: no task); raise a `ValueError` for an empty job."""
        tasks = self._job(job)
        return [tasks.get(index) for index in range(max(tasks) + 1)]

    def as_dict(self) -> dict[str, Any]:
        """Return job names to lists of addresses; to mappings where indices are sparse or there are none."""
        return {
            job: self.job_tasks(job) if tasks and max(tasks) + 1 == len(tasks) else dict(tasks)
            for job, tasks in self._tasks.items()
        }

    def _job(self, job: str | None) -> dict[int, str]:
        if job not in self._tasks:
            raise ValueError(f"No such job in cluster: {job!r}")
        return self._tasks[job]


class TFConfigClusterResolver:
    """This task and its cluster, from TF_CONFIG: `tf.distribute.cluster_resolver.TFConfigClusterResolver`.

    Args:
        task_type: instead of TF_CONFIG's.
        task_id: instead of TF_CONFIG's.
        rpc_layer: instead of TF_CONFIG's.
        environment: the answer of `environment`; TF_CONFIG's is not read.
        variables: those among which TF_CONFIG is looked up; default the process's environment.
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | str | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
        *,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._environment = environment
        self._variables = os.environ if variables is None else variables

    def _get(self, key: str, default: Any = None) -> Any:
        config: Any = json.loads(self._variables.get("TF_CONFIG", "{}"))
        return config[key] if key in config else default  # noqa: SIM401  (a list or a text counts as empty, and has no get)

    @property
    def task_type(self) -> str | None:
        """This task's type; None where TF_CONFIG has none."""
        if self._task_type is not None:
            return str(self._task_type)
        task = self._get("task", {})
        return str(task["type"]) if "type" in task else None

    @property
    def task_id(self) -> int | None:
        """This task's index; None where TF_CONFIG has none."""
        if self._task_id is not None:
            return int(self._task_id)
        task = self._get("task", {})
        return int(task["index"]) if "index" in task else None

    @property
    def rpc_layer(self) -> str | None:
        """The protocol, such as ``grpc``; None means the strategy's default."""
        layer: str | None = self._get("rpc_layer") if self._rpc_layer is None else self._rpc_layer
        return layer

    @property
    def environment(self) -> str | None:
        """The environment given to the constructor."""
        return self._environment

    def cluster_spec(self) -> TFClusterSpec:
        """Return the cluster; empty where TF_CONFIG has none."""
        return TFClusterSpec(self._get("cluster", {}))

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task (default: this one), with its protocol; ``""`` if it is alone."""
        session_master: str | None = self._get("session_master")
        if session_master is not None:
            return session_master
        cluster = self.cluster_spec()
        if not cluster.jobs or (len(cluster.jobs) == 1 and len(cluster.job_tasks(cluster.jobs[0])) == 1):
            return ""
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        rpc_layer = self.rpc_layer if rpc_layer is None else rpc_layer
        address = cluster.task_address(task_type, task_id)
        return f"{rpc_layer}://{address}" if rpc_layer else address


def is_chief(cluster: TFClusterSpec, task_type: str | None, task_id: int | None) -> bool:
    """Return whether a task leads: the chief, worker 0 where there is none, and every evaluator."""
    _check(cluster, task_type, task_id)
    return task_type in ("chief", "evaluator") or (
        task_type == "worker" and task_id == 0 and "chief" not in cluster.jobs
    )


def id_in_cluster(cluster: TFClusterSpec, task_type: str | None, task_id: int) -> int:
    """Return a task's number among those that train: the chief 0, then workers; an evaluator counts alone."""
    _check(cluster, task_type, task_id)
    if task_type == "chief":
        return 0
    if task_type == "worker":
        return task_id + _count(cluster, "chief")
    if task_type == "evaluator":
        return task_id
    raise ValueError(f"There is no id for task_type {task_type!r}")


def worker_count(cluster: TFClusterSpec, task_type: str | None) -> int:
    """Return how many tasks train, chief included; for an evaluator, how many evaluators there are."""
    _check(cluster, task_type, 0)
    if task_type not in ("chief", "worker", "evaluator"):
        raise ValueError(f"Unexpected `task_type` {task_type!r}")
    if task_type == "evaluator":
        return len(cluster.as_dict()["evaluator"])
    return _count(cluster, "chief") + _count(cluster, "worker")


def collective_leader(cluster: TFClusterSpec, task_type: str | None, task_id: int | None) -> str:
    """Return the device of the leader of all-reduce; ``""`` for an evaluator and without a cluster."""
    if not cluster.jobs:
        return ""
    _check(cluster, task_type, task_id)
    return "" if task_type == "evaluator" else _first_task(cluster, "chief", "worker")


def coordination_leader(cluster: TFClusterSpec) -> str:
    """Return the device of the coordination service's leader: the first ps, else the chief, else worker 0."""
    return _first_task(cluster, "ps", "chief", "worker") if cluster.jobs else ""


def _first_task(cluster: TFClusterSpec, *jobs: str) -> str:
    present = [job for job in jobs if job in cluster.jobs]
    assert present, f"the cluster has none of the jobs {jobs}"  # an AssertionError there, so also here
    return f"/job:{present[0]}/replica:0/task:0"


def _count(cluster: TFClusterSpec, job: str) -> int:
    return cluster.num_tasks(job) if job in cluster.jobs else 0


def _check(cluster: TFClusterSpec, task_type: str | None, task_id: int | None) -> None:
    """Check as multi_worker_util does, in its order; a comparison with a missing index is its TypeError."""
    if any(job not in TASK_TYPES for job in cluster.jobs):
        message = f"Disallowed task type found in cluster spec. Allowed types are {TASK_TYPES}"
        raise ValueError(f"{message} and the cluster spec is {cluster.as_dict()}.")
    if task_type not in TASK_TYPES:
        raise ValueError(f"Unrecognized task_type: {task_type}, valid task types are: {TASK_TYPES}")
    if task_type and task_type not in cluster.jobs and task_type != "evaluator":
        raise ValueError(f"`task_type` {task_type!r} not found in cluster_spec.")
    for job in ("chief", "evaluator"):
        if _count(cluster, job) > 1:
            raise ValueError(f"There must be at most one {job!r} job.")
    if task_type in cluster.jobs and task_id >= _count(cluster, task_type):  # type: ignore[operator]
        raise ValueError(f"The `task_id` {task_id} exceeds the maximum id of {task_type}.")
