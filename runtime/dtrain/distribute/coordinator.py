"""`dt.distribute.coordinator`: names of `tf.distribute.coordinator`, and `closure`."""

from dtrain.strategies.coordinator.closures import PerWorkerValues, closure
from dtrain.strategies.coordinator.cluster_coordinator import ClusterCoordinator, RemoteValue

__all__ = ["ClusterCoordinator", "PerWorkerValues", "RemoteValue", "closure"]
