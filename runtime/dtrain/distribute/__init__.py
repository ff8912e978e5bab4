"""`dt.distribute`: the partitioners of `tf.distribute.experimental`, and ShardedVariable."""

from dtrain.variables import partitioning as partitioners
from dtrain.variables.sharded_variable import ShardedVariable

__all__ = ["ShardedVariable", "partitioners"]
