"""`dt.distribute`: what would be looked for in `tf.distribute.experimental` (partitioners) and beside it
(ShardedVariable).
"""

from dtrain.variables import partitioning as partitioners
from dtrain.variables.sharded_variable import ShardedVariable

__all__ = ["ShardedVariable", "partitioners"]
