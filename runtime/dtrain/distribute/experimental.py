"""`dt.distribute.experimental`: names of `tf.distribute.experimental`."""

from typing import TYPE_CHECKING

from dtrain.absent_names import absent_from
from dtrain.distribute import coordinator
from dtrain.strategies.choice import ParameterServerStrategy
from dtrain.strategies.constructors import CentralStorageStrategy, MultiWorkerMirroredStrategy
from dtrain.strategies.preemption import PreemptionCheckpointHandler, TerminationConfig
from dtrain.strategies.replicas.options import CommunicationImplementation, CommunicationOptions
from dtrain.strategies.replicas.values import ValueContext
from dtrain.variables import partitioning as partitioners

CollectiveCommunication = CommunicationImplementation
"""Its name before TensorFlow 2.5."""
CollectiveHints = CommunicationOptions
"""Its name before TensorFlow 2.4."""

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "PreemptionCheckpointHandler",
    "TerminationConfig",
    "ValueContext",
    "coordinator",
    "partitioners",
]

if not TYPE_CHECKING:
    __getattr__ = absent_from("dtrain.distribute.experimental", __all__)
