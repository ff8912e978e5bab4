"""A cluster in TensorFlow's words: TF_CONFIG, the classic flags of a task, and cluster resolvers.

    {"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"], "ps": ["d:2222"]},
     "task": {"type": "worker", "index": 1}}

TensorFlow answers most mistakes in it by waiting for ever, or not at all. Here each is a `SpecError` with
one message. Accepted beyond the plain form, as by TensorFlow and the platforms that set the variable:
sparse jobs (``{"1": "b:2222"}``), `master` for the chief, an index written "1" or 1.0, an evaluator among
the jobs (it is left out of the cluster), and keys that belong to other programs.

    --ps_hosts a:1,b:2 --worker_hosts c:3,d:4 --job_name worker --task_index 0

The flags of TensorFlow's first distributed programs stand with dashes or underscores, ``--flag value`` or
``--flag=value``, anywhere among a program's arguments. They are only read, never taken out: the program may
parse them too.

The resolvers are for programs that call `tf.distribute.cluster_resolver.TFConfigClusterResolver`. They read
TF_CONFIG as TensorFlow 2.15 does: lenient, checked late, with the same answers and classes of errors.
Surprising behaviour that holds here as there: the variable is parsed anew at each question; the empty string
is a JSON error; a task that the cluster does not have is reported only by `master()`; a cluster of one task
has the master ``""``.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import ClusterSection, address_problem
from dtrain.errors import SpecError

KEYS = (
    "cluster",
    "task",
    "rpc_layer",
    "environment",
    "session_master",
    "eval_session_master",
    "service",
    "model_dir",
    "job",
)
TASK_KEYS = ("type", "index", "trial", "cloud")
ROLES = {**{role.value: role for role in Role}, "master": Role.CHIEF}
MISTAKES_MAX = 20
TEXT_MAX = 500
INDEX_MAX = 10**6
"""Tasks of one role: more than any network has addresses for."""
ALONE = (TaskId(Role.WORKER, 0), TaskId(Role.CHIEF, 0))
"""Names of a task without a cluster, which trains in one process."""


def write_tf_config(cluster: ClusterSpec, task: TaskId) -> str:
    """Return the TF_CONFIG of one task. The evaluator is never part of the cluster."""
    return json.dumps({"cluster": cluster.to_dict(), "task": {"type": task.role.value, "index": task.index}})


def read_tf_config(text: str, joined: bool = False) -> tuple[ClusterSpec, TaskId | None]:
    """Return the cluster, and this task; None where TF_CONFIG names no task.

    Args:
        text: the variable's value.
        joined: whether the task is a worker that joins and that the cluster does not name.

    Raises:
        SpecError: all mistakes, a line each: where, what was found, what was expected.
    """
    config = _parse(text)
    mistakes = _Mistakes()
    with mistakes.noted():
        _check_keys(config, KEYS, "TF_CONFIG")
    addresses: dict[Role, dict[int, str]] = {}
    with mistakes.noted():
        _read_cluster(config.get("cluster", {}), addresses, mistakes)
    task = None
    with mistakes.noted():
        task = _read_task(config.get("task", {}))
        if task is not None and not joined and (task.role in addresses or not mistakes):
            _check_task(task, addresses)
    if mistakes:
        raise SpecError("\n".join(_cut(mistakes)))
    return ClusterSpec(
        {role: tasks for role, tasks in addresses.items() if tasks and role is not Role.EVALUATOR}
    ), task


def _cut(mistakes: list[str]) -> list[str]:
    """Return as many mistakes as a person reads, each of a length that a terminal shows."""
    more = [f"and {len(mistakes) - MISTAKES_MAX} more mistakes"] if len(mistakes) > MISTAKES_MAX else []
    return [
        text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..." for text in mistakes[:MISTAKES_MAX]
    ] + more


class _Mistakes(list[str]):
    """The mistakes found so far."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Collect an error of this block and go on after it."""
        try:
            yield
        except SpecError as error:
            self.append(str(error))


def _parse(text: str) -> dict[str, Any]:
    if not text.strip():
        raise SpecError(
            "TF_CONFIG is set to an empty text; unset it to train in one process, or give it a cluster and "
            "a task"
        )
    try:
        config = json.loads(text, object_pairs_hook=_unique_keys)
    except SpecError:
        raise
    except ValueError as error:
        hint = "; JSON writes texts in double quotes" if "'" in text and '"' not in text else ""
        raise SpecError(f"TF_CONFIG is not JSON: {error}{hint}; found {text[:80]!r}") from None
    except RecursionError:
        raise SpecError("TF_CONFIG is not a cluster: its JSON is nested too deeply") from None
    return _mapping(config, "TF_CONFIG")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise SpecError(
                f"TF_CONFIG has the key {key[:80]!r} twice in one object; only one of them could count"
            )
        result[key] = value
    return result


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SpecError(f"{where}: expected an object in braces, found {json.dumps(value)[:80]}")
    return value


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(get_close_matches(name[:80].lower(), known, n=1)), None)


def _check_keys(found: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    """Refuse a key that looks like a misspelt known one; other keys belong to a platform."""
    for key in sorted(set(found).difference(known)):
        nearest = _nearest(key, known)
        if nearest and nearest not in found:
            raise SpecError(f"{where} has no key {key[:80]!r}; did you mean {nearest!r}?")


def _role(name: Any, where: str) -> Role:
    if isinstance(name, str) and name in ROLES:
        return ROLES[name]
    nearest = _nearest(name, ROLES) if isinstance(name, str) else None
    hint = f"; did you mean {nearest!r}?" if nearest else ""
    raise SpecError(f"{where}: expected chief, worker, ps or evaluator, found {json.dumps(name)[:80]}{hint}")


def _index(value: Any, where: str) -> int:
    """Return an index as TensorFlow takes it, by int(), but refuse true and 1.5, which int() truncates."""
    as_text = isinstance(value, str) and re.fullmatch(r"\s*\d{1,9}\s*", value)
    as_number = (
        isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value % 1 == 0
    )
    if (as_text or as_number) and float(value) <= INDEX_MAX:
        return int(value)
    raise SpecError(f"{where}: expected a whole number from 0 to {INDEX_MAX}, found {json.dumps(value)[:80]}")


def _read_cluster(value: Any, addresses: dict[Role, dict[int, str]], mistakes: _Mistakes) -> None:
    jobs = _mapping(value, 'TF_CONFIG "cluster"')
    if "chief" in jobs and "master" in jobs:
        raise SpecError(
            'TF_CONFIG "cluster": chief and master are two names of the same task; give one of them'
        )
    taken: dict[str, TaskId] = {}
    for job, tasks in jobs.items():
        with mistakes.noted():
            role = _role(job, 'TF_CONFIG "cluster"')
            addresses[role] = _read_job(tasks, f'TF_CONFIG "cluster" {job}', mistakes)
            for index, address in addresses[role].items():
                if (task := TaskId(role, index)) != taken.setdefault(address, task):
                    mistakes.append(
                        f'TF_CONFIG "cluster": {task} and {taken[address]} have the same address {address}'
                    )
            if role in (Role.CHIEF, Role.EVALUATOR) and set(addresses[role]) - {0}:
                raise SpecError(
                    f'TF_CONFIG "cluster": at most one {job}, with index 0; found indices '
                    f"{sorted(addresses[role])}"
                )


def _read_job(value: Any, where: str, mistakes: _Mistakes) -> dict[int, str]:
    tasks: list[tuple[int, Any]] = []
    if isinstance(value, list):
        tasks += enumerate(value)
    elif isinstance(value, dict):
        for index, address in value.items():
            with mistakes.noted():
                tasks.append((_index(index, f"{where} index"), address))
    else:
        raise SpecError(
            f"{where}: expected a list of addresses, or an object from indices to addresses, found "
            f"{json.dumps(value)[:80]}"
        )
    result: dict[int, str] = {}
    for index, address in tasks:
        problem = (
            address_problem(address)
            if isinstance(address, str)
            else f"expected host:port, found {json.dumps(address)}"
        )
        if problem:
            mistakes.append(f"{where}[{index}]: {problem}")
        if index in result:
            mistakes.append(f"{where}: index {index} is given twice")
        result[index] = str(address)
    return result


def _read_task(value: Any) -> TaskId | None:
    task = _mapping(value, 'TF_CONFIG "task"')
    _check_keys(task, TASK_KEYS, 'TF_CONFIG "task"')
    if "type" not in task and "index" not in task:
        return None
    for key, other in (("type", "index"), ("index", "type")):
        if key not in task:
            raise SpecError(
                f'TF_CONFIG "task" has {other} {json.dumps(task[other])} and no {key}; a task needs both'
            )
    return TaskId(
        _role(task["type"], 'TF_CONFIG "task" type'), _index(task["index"], 'TF_CONFIG "task" index')
    )


def _check_task(task: TaskId, addresses: dict[Role, dict[int, str]]) -> None:
    if not any(addresses.values()):
        if task not in ALONE:
            raise SpecError(
                f'TF_CONFIG names the task {task} and no "cluster"; without one a task can only be worker:0 '
                "or chief:0"
            )
    elif task.role is Role.EVALUATOR:
        if task.index:
            raise SpecError(f"TF_CONFIG names the task {task}; there is at most one evaluator, evaluator:0")
    elif not addresses.get(task.role):
        jobs = ", ".join(role.value for role, tasks in addresses.items() if tasks)
        raise SpecError(
            f'TF_CONFIG names the task {task}, and its "cluster" has no {task.role} at all; it has {jobs}'
        )
    elif task.index not in addresses[task.role]:
        indices = sorted(addresses[task.role])
        known = (
            f"{indices[0]} to {indices[-1]}"
            if len(indices) > 1 and indices[-1] == len(indices) - 1
            else str(indices)[1:-1]
        )
        raise SpecError(
            f'TF_CONFIG names the task {task}; the indices of {task.role} in its "cluster" are {known}'
        )


HOSTS = {"chief_hosts": Role.CHIEF, "worker_hosts": Role.WORKER, "ps_hosts": Role.PS}
NAMES = (*HOSTS, "job_name", "task_index")


def read_classic_flags(arguments: Sequence[str]) -> tuple[ClusterSpec, TaskId] | None:
    """Return the cluster and this task, or None where no hosts are given.

    Args:
        arguments: a command line; the last one of a repeated flag counts.

    Raises:
        SpecError: a flag has no value or a wrong one, or the cluster does not have the task.
    """
    flags = _find(arguments)
    hosts = {HOSTS[name]: tuple(value.split(",")) for name, value in flags.items() if name in HOSTS and value}
    if not hosts:
        return None
    for path, problem in ClusterSection(
        **{role.value: addresses for role, addresses in hosts.items()}
    ).problems():
        raise SpecError(f"--{path[0]}_hosts: {problem}" if path else f"--worker_hosts: {problem}")
    cluster = ClusterSpec({role: dict(enumerate(addresses)) for role, addresses in hosts.items()})
    return cluster, _task(flags, cluster)


def _find(arguments: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for position, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        name = flag.lstrip("-").replace("-", "_")
        if not flag.startswith("-") or name not in NAMES:
            continue
        if not equals:
            if position + 1 == len(arguments):
                raise SpecError(f"{flag}: expected a value after it, found the end of the line")
            value = arguments[position + 1]
        found[name] = value
    return found


def _task(flags: dict[str, str], cluster: ClusterSpec) -> TaskId:
    job = flags.get("job_name", "")
    index = flags.get("task_index", "0")
    if job not in set(Role):
        raise SpecError(f"--job_name: expected one of {', '.join(Role)}, found {job!r}")
    if not index.isdecimal():
        raise SpecError(f"--task_index: expected a number from 0, found {index!r}")
    task = TaskId(Role(job), int(index))
    if task not in cluster and task != TaskId(Role.EVALUATOR, 0):
        raise SpecError(
            f"--task_index: the flags name no {task}: there are {cluster.count(task.role)} {task.role} hosts"
        )
    return task


class TFClusterSpec:
    """`tf.train.ClusterSpec`: jobs by name, each a list of addresses or, sparse, a mapping from index.

    Args:
        cluster: a dict of them, or another one.

    Raises:
        TypeError: not a mapping of lists or mappings of texts.
        ValueError: an index is not a whole number.
    """

    def __init__(self, cluster: Any) -> None:
        if isinstance(cluster, TFClusterSpec):
            cluster = cluster.as_dict()
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
        self._accelerators: dict[str, int] = {}

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

    def num_accelerators(self, task_type: str | None = None, task_id: int | None = None) -> dict[str, int]:
        """Return the accelerators of a task: there are processors alone."""
        return dict(self._accelerators)

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
