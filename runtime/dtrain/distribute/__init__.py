"""`dt.distribute`: `tf.distribute`'s names for loops of one's own, their input, and sharded variables."""

from typing import TYPE_CHECKING

from dtrain.absent_names import absent_from
from dtrain.data.input_context import InputContext
from dtrain.distribute import cluster_resolver, coordinator, experimental
from dtrain.distribute.contexts import (
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from dtrain.distribute.servers import Server
from dtrain.strategies.choice import ParameterServerStrategy
from dtrain.strategies.constructors import MirroredStrategy, MultiWorkerMirroredStrategy
from dtrain.strategies.interface import Strategy
from dtrain.strategies.replicas.contexts import ReplicaContext
from dtrain.strategies.replicas.custom_loops import Extended as StrategyExtended
from dtrain.strategies.replicas.distributed_dataset import (
    DistributedDataset,
    DistributedIterator,
    PerReplicaSpec,
)
from dtrain.strategies.replicas.options import (
    CommunicationImplementation,
    CommunicationOptions,
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    InputOptions,
    InputReplicationMode,
    NcclAllReduce,
    ReductionToOneDevice,
    RunOptions,
)
from dtrain.strategies.replicas.reduction import ReduceOp
from dtrain.strategies.replicas.values import DistributedValues, Mirrored, PerReplica, ValueContext
from dtrain.strategies.replicas.variable import VariableAggregation, VariableSynchronization
from dtrain.variables import partitioning as partitioners
from dtrain.variables.sharded_variable import ShardedVariable

__all__ = [
    "CommunicationImplementation",
    "CommunicationOptions",
    "CrossDeviceOps",
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "Mirrored",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "ParameterServerStrategy",
    "PerReplica",
    "PerReplicaSpec",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Server",
    "ShardedVariable",
    "Strategy",
    "StrategyExtended",
    "ValueContext",
    "VariableAggregation",
    "VariableSynchronization",
    "cluster_resolver",
    "coordinator",
    "experimental",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "partitioners",
]

if not TYPE_CHECKING:
    __getattr__ = absent_from("dtrain.distribute", __all__)
