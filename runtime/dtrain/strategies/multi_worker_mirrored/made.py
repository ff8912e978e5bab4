"""The constructor of replicas in tasks, under the name of `tf.distribute`."""

from typing import Any, Unpack

from dtrain.config import MultiWorkerMirroredSection, PlainSettings
from dtrain.config.wishes import checked_wishes
from dtrain.errors import SpecError
from dtrain.strategies.choice import place_of, strategy_of_process
from dtrain.strategies.interface import Strategy
from dtrain.strategies.multi_worker_mirrored.strategy import MultiWorkerMirrored
from dtrain.strategies.replicas.options import CommunicationOptions
from dtrain.strategies.single import SingleStrategy


class MultiWorkerMirroredStrategy(Strategy):
    """``dt.MultiWorkerMirroredStrategy()``: each chief and worker of the cluster is a replica.

    The cluster comes from TF_CONFIG, or from the classic flags; without one, this process trains alone.
    Compare `tf.distribute.MultiWorkerMirroredStrategy`.

    Args:
        cluster_resolver: instead of TF_CONFIG and the flags where these name no cluster: it has
            `cluster_spec()`, `task_type` and `task_id`.
        communication_options: its `timeout_seconds` is how long a replica waits for the same ones; None:
            for the patience of dtrain.
        training: as of `MirroredStrategy`.

    Raises:
        SpecError: the resolver names a cluster without this task; see `strategy_of_process`.
    """

    def __new__(  # type: ignore[misc]
        cls,
        cluster_resolver: Any = None,
        communication_options: CommunicationOptions | None = None,
        **training: Unpack[PlainSettings],
    ) -> Strategy:
        """Return the strategy of this process."""
        who = cls.__name__
        if communication_options is not None and not isinstance(communication_options, CommunicationOptions):
            raise SpecError(
                f"{who}: communication_options: expected CommunicationOptions, found "
                f"{type(communication_options).__name__}"
            )
        wishes = {**training, "strategy": MultiWorkerMirroredSection().strategy}
        place = place_of(cluster_resolver, who)
        strategy = strategy_of_process(checked_wishes(wishes, who), who, place)
        if communication_options is not None and communication_options.timeout_seconds is not None:
            strategy.wait_at_most(communication_options.timeout_seconds)
        return strategy


MultiWorkerMirroredStrategy.register(MultiWorkerMirrored)
MultiWorkerMirroredStrategy.register(SingleStrategy)
