"""`dt.distribute.coordinator`: names of `tf.distribute.coordinator`, and `closure`."""

from dtrain.strategies.coordinator.closures import closure
from dtrain.strategies.coordinator.cluster_coordinator import ClusterCoordinator, RemoteValue
from dtrain.strategies.coordinator.execution import PerWorkerValues

__all__ = ["ClusterCoordinator", "PerWorkerValues", "RemoteValue", "closure"]
