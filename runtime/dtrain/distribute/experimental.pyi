from collections.abc import Sequence
from typing import Unpack

from dtrain.config import PlainSettings as _PlainSettings
from dtrain.distribute import coordinator as coordinator
from dtrain.strategies.mirrored import CentralStorage as _CentralStorage
from dtrain.strategies.preemption import PreemptionCheckpointHandler as PreemptionCheckpointHandler
from dtrain.strategies.preemption import TerminationConfig as TerminationConfig
from dtrain.strategies.replicas.options import CommunicationImplementation as CommunicationImplementation
from dtrain.strategies.replicas.options import CommunicationOptions as CommunicationOptions
from dtrain.strategies.replicas.values import ValueContext as ValueContext

CollectiveCommunication = CommunicationImplementation
CollectiveHints = CommunicationOptions

class CentralStorageStrategy(_CentralStorage):
    def __init__(
        self,
        compute_devices: Sequence[str] | None = None,
        parameter_device: str | None = None,
        **training: Unpack[_PlainSettings],
    ) -> None: ...
