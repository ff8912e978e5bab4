"""`dt.distribute.coordinator`: names of `tf.distribute.coordinator`, and `closure`."""

from dtrain.strategies.coordinator.cluster_coordinator import ClusterCoordinator
from dtrain.strategies.coordinator.functions import closure
from dtrain.strategies.coordinator.per_worker import PerWorkerValues
from dtrain.strategies.coordinator.remote_value import RemoteValue

__all__ = ["ClusterCoordinator", "PerWorkerValues", "RemoteValue", "closure"]
