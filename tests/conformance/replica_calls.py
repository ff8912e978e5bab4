"""What functions of the golden files m4 share: the calls of replicas, and arguments as the files have them."""

import numpy as np

from dtrain.distribute import (
    ReduceOp,
    get_replica_context,
)

TABLE_SHAPE = (4, 2)
f32 = np.float32


def rank():
    return get_replica_context().replica_id_in_sync_group


def in_replicas(strategy, function, values):
    """What a function of each replica's value returns, one a replica."""
    args = () if values is None else (values,)
    found = strategy.run(function, args)
    results = strategy.experimental_local_results(found)
    return list(results * strategy.num_replicas_in_sync if len(results) == 1 else results)


def argument(data):
    """A Python argument such as a reduce operation or an axis."""
    if isinstance(data, dict):
        value = data["python"]
        return tuple(value) if data.get("type") == "tuple" else value
    prefix = "tf.distribute.ReduceOp."
    return ReduceOp[data.removeprefix(prefix)] if isinstance(data, str) and data.startswith(prefix) else data
