"""The flags of TensorFlow's first distributed programs, from the days before TF_CONFIG.

    --ps_hosts a:1,b:2 --worker_hosts c:3,d:4 --job_name worker --task_index 0

Dashes or underscores, ``--flag value`` or ``--flag=value``, anywhere among a program's arguments. They are
only read, never taken out: the program may parse them too.
"""

from collections.abc import Sequence

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import ClusterSection
from dtrain.errors import SpecError

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
