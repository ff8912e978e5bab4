"""The command lines of a cluster whose spec writes addresses: each is typed on the host of its task. Pure."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.cluster.loopback import is_loopback
from dtrain.process.tensorflow.tf_config import write_tf_config

HERE = "where you like"


def is_by_hand(addresses: ClusterSpec) -> bool:
    """Return whether the tasks are on hosts of a network, which `launch` on this machine cannot all be."""
    return any(not is_loopback(addresses.address(task) or "") for task in addresses.tasks())


def lines_by_hand(
    tasks: Sequence[TaskId],
    addresses: ClusterSpec,
    spec: str,
    options: Mapping[str, Any],
    command: Sequence[str],
    foreign: bool,
) -> Iterator[tuple[str, str]]:
    """Yield each host with the command line of one of its tasks, host after host.

    Args:
        tasks: in the order of starting.
        addresses: of all tasks that have one.
        spec: the path of the spec.
        options: the fields that options have set, by their dotted keys.
        command: the program and its arguments, or a foreign command.
        foreign: whether it is one, which finds its place in TF_CONFIG.
    """
    hosts = {task: _host(addresses, task) for task in tasks}
    sets = [word for key, value in options.items() for word in ("--set", f"{key}={_yaml(value)}")]
    for host in dict.fromkeys(hosts.values()):
        for task in (task for task in tasks if hosts[task] == host):
            if foreign:
                config = shlex.quote(write_tf_config(addresses, task))
                yield host, f"TF_CONFIG={config} {shlex.join(command)}"
                continue
            place = ["dtrain", task.role.value, "--spec", spec, *sets, "--index", str(task.index)]
            yield host, shlex.join([*place, *([] if task.role is Role.PS else command)])


def _host(addresses: ClusterSpec, task: TaskId) -> str:
    address = addresses.address(task)
    return HERE if address is None else address.rpartition(":")[0]


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
