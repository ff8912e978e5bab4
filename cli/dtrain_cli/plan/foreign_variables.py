"""The variables that TensorFlow, PyTorch and plain Python programs read, for tasks on any number of hosts."""

from dtrain.cluster import TRAINING_ROLES, ClusterSpec, Role, TaskId

MASTER_PORT_BEHIND = 5000
"""How far MASTER_PORT is from the leader's own port: no other task of its host is there."""
_PORT_MAX = 65_535


def foreign_variables(
    task: TaskId, addresses: ClusterSpec, master: tuple[str, int] | None = None
) -> dict[str, str]:
    """Return a task's variables beside its TF_CONFIG.

    RANK counts the training tasks (the chief is 0), the servers have the ranks behind them; LOCAL_RANK and
    LOCAL_WORLD_SIZE count the training tasks of this task's host.

    Args:
        task: whose.
        addresses: of all tasks.
        master: host and port of the first training task's own service, which MASTER_ADDR and MASTER_PORT
            name; None: its host, and a port that follows from its address.
    """
    variables = {"TF_GRPC_REUSE_PORT": "true", "PYTHONUNBUFFERED": "1"}
    training = list(addresses.tasks(*TRAINING_ROLES))
    ranks = [*training, *addresses.tasks(Role.PS)]
    if task in ranks:
        variables["RANK"] = str(ranks.index(task))
    if task in training:
        beside = [each for each in training if _host(addresses, each) == _host(addresses, task)]
        host, port = master or master_of(addresses, training[0])
        variables |= {
            "LOCAL_RANK": str(beside.index(task)),
            "WORLD_SIZE": str(len(training)),
            "LOCAL_WORLD_SIZE": str(len(beside)),
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
        }
    return variables


def master_of(addresses: ClusterSpec, leader: TaskId) -> tuple[str, int]:
    """Return where PyTorch's service of the first training task is expected: no two tasks differ in it."""
    port = int((addresses.address(leader) or "").rpartition(":")[2])
    behind = port + MASTER_PORT_BEHIND
    return _host(addresses, leader), behind if behind <= _PORT_MAX else port - MASTER_PORT_BEHIND


def _host(addresses: ClusterSpec, task: TaskId) -> str:
    host = (addresses.address(task) or "").rpartition(":")[0]
    return host.removeprefix("[").removesuffix("]")
