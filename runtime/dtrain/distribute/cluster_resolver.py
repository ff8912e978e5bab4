"""`dt.distribute.cluster_resolver`: which task this is; names of `tf.distribute.cluster_resolver`."""

from typing import Any

from dtrain.process.tensorflow import TFClusterSpec, TFConfigClusterResolver

__all__ = ["SimpleClusterResolver", "TFConfigClusterResolver"]


class SimpleClusterResolver(TFConfigClusterResolver):
    """A cluster and this task in it, as a program says.

    See `tf.distribute.cluster_resolver.SimpleClusterResolver`.

    Args:
        cluster_spec: a `dt.train.ClusterSpec`.
        master: the answer of `master()` where no task is asked for.
        task_type: this task's type; None: the process is the chief, as that of a coordinator.
        task_id: its number.
        environment: the answer of `environment`.
        num_accelerators: the answer of `num_accelerators()`.
        rpc_layer: the protocol before addresses, such as ``grpc``.

    Raises:
        TypeError: the cluster is no `ClusterSpec`.
    """

    def __init__(
        self,
        cluster_spec: Any,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: dict[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        super().__init__(task_type, task_id, rpc_layer, environment, variables={})
        if not isinstance(cluster_spec, TFClusterSpec):
            raise TypeError("cluster_spec must be a `tf.train.ClusterSpec`.")
        self._cluster = cluster_spec
        self._master = master
        self._accelerators = dict(num_accelerators or {})

    def cluster_spec(self) -> TFClusterSpec:
        """Return the cluster."""
        return self._cluster

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, with its protocol; without a task, what the constructor was given."""
        known = task_type is not None and task_id is not None
        address = self._cluster.task_address(task_type, task_id) if known else self._master
        layer = self.rpc_layer if rpc_layer is None else rpc_layer
        return f"{layer}://{address}" if layer and address else address
