"""`dt.nn`: functions of neural networks, and a replica's share of a loss; names of `tf.nn`."""

from typing import TYPE_CHECKING, Any

from dtrain.absent_names import absent_from
from dtrain.errors import ContextError
from dtrain.learning import losses
from dtrain.learning.functions import networks
from dtrain.strategies.replicas import contexts
from dtrain.strategies.replicas.contexts import ReplicaContext

__all__ = ["compute_average_loss", "scale_regularization_loss", *networks.__all__]

if not TYPE_CHECKING:
    __getattr__ = absent_from("dtrain.nn", __all__, [networks.__name__])


def compute_average_loss(
    per_example_loss: Any, sample_weight: Any = None, global_batch_size: int | None = None
) -> Any:
    """Return the sum of the losses over the global batch size; those of all replicas add up to the mean.

    Args:
        per_example_loss: one loss an example, at least one axis.
        sample_weight: a weight for each example.
        global_batch_size: of all replicas together; by default the number of losses here times that of the
            replicas.

    Raises:
        ContextError: it is called outside of the replicas of a strategy that has several.
    """
    replicas = _replicas("compute_average_loss")
    return losses.compute_average_loss(per_example_loss, sample_weight, global_batch_size, replicas)


def scale_regularization_loss(regularization_loss: Any) -> Any:
    """Return a replica's share of a penalty; the shares of all replicas add up to it.

    Args:
        regularization_loss: the sum of the penalties.

    Raises:
        ContextError: it is called outside of the replicas of a strategy that has several.
    """
    return losses.scale_regularization_loss(regularization_loss, _replicas("scale_regularization_loss"))


def _replicas(what: str) -> int:
    """Return how many replicas share the loss."""
    place = contexts.here()
    if place is None:
        return 1
    replicas: int = (place if isinstance(place, ReplicaContext) else place.strategy).num_replicas_in_sync
    if replicas > 1 and not isinstance(place, ReplicaContext):
        raise ContextError(
            f"{what}: expected to be in a replica, found the scope of a strategy with several; call it "
            "within a function of strategy.run"
        )
    return replicas
