"""`dt.distribute.Server`: tasks of a cluster within the process of its chief, for notebooks and one machine.

    for task in range(2):
        dt.distribute.Server(cluster_spec, job_name="ps", task_index=task)
    strategy = dt.distribute.ParameterServerStrategy(resolver)

Parameter servers are real ones: each serves in a thread, at its address, from when the strategy is made. They
end with the process, as no other does for them. A worker of TensorFlow computes what the chief sends it; here
workers run the program themselves, which a thread cannot do a second time. So the chief computes the steps
alone, on all cores, and the cluster is one of a chief and parameter servers.

Source: `tf.distribute.Server`.
"""

import sys
from collections.abc import Mapping
from typing import Any

from dtrain.cluster import Role, TaskId
from dtrain.errors import ProgramError, SpecError
from dtrain.process.tensorflow import ROLES, TFClusterSpec, TFConfigClusterResolver, read_classic_flags
from dtrain.strategies.choice import get_strategy
from dtrain.strategies.local_servers import HostedTask


class Server:
    """A task of a cluster: this process's own, or one that the process's chief has in a thread.

    Args:
        server_or_cluster_def: `dt.train.ClusterSpec`'s form: job names to lists of addresses, or what
            `cluster_spec()` of a resolver returns.
        job_name: the task's job, ``ps`` or ``worker``.
        task_index: its number.
        protocol: without effect: it is chosen by `training.transport`.
        config: without effect.
        start: without effect: it serves from when the strategy is made.

    Raises:
        SpecError: the cluster does not have the task.
    """

    def __init__(
        self,
        server_or_cluster_def: Any,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,
        start: bool = True,
    ) -> None:
        given = server_or_cluster_def
        cluster = TFClusterSpec(given) if isinstance(given, Mapping) else given
        if not hasattr(cluster, "task_address") or job_name not in ROLES:
            raise SpecError(
                f"Server: expected a cluster and one of its jobs {', '.join(Role)}, found "
                f"{type(given).__name__} and {job_name!r}"
            )
        self.task = TaskId(ROLES[job_name], int(task_index or 0))
        try:
            self._address = cluster.task_address(job_name, self.task.index)
        except ValueError as error:
            raise SpecError(f"Server: {error}; the cluster is {cluster.as_dict()}") from None
        self._local = None if self.task == _own_task() else HostedTask(self.task)

    @property
    def target(self) -> str:
        """The address, as ``grpc://host:port``."""
        return f"grpc://{self._address}"

    def start(self) -> None:
        """Do nothing: it serves from when the strategy is made."""

    def join(self) -> None:
        """Wait until the task ends: a parameter server that is this process's own serves until then.

        Raises:
            SystemExit: with code 0, this process's own parameter server has ended.
            ProgramError: this process is a worker.
        """
        if self._local is not None:
            self._local.ended.wait()
            return
        if self.task.role is Role.PS:
            get_strategy()  # serves
        else:
            raise ProgramError(
                f"Server.join: a {self.task.role} runs the whole program, as the chief does, and computes "
                "its part in fit; call join in tasks of the job ps alone"
            )


def _own_task() -> TaskId | None:
    """Return the task that this process is, by TF_CONFIG or the classic flags."""
    flags = read_classic_flags(sys.argv[1:])
    if flags is not None:
        return flags[1]
    resolver = TFConfigClusterResolver()
    role = ROLES.get(str(resolver.task_type))
    return None if role is None else TaskId(role, resolver.task_id or 0)
