"""`dt.distribute`: `ReduceOp` and partitioners as in `tf.distribute`, and ShardedVariable."""

from dtrain.strategies.reduction import ReduceOp
from dtrain.variables import partitioning as partitioners
from dtrain.variables.sharded_variable import ShardedVariable

__all__ = ["ReduceOp", "ShardedVariable", "partitioners"]
