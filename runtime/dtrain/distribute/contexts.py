"""Where a line of a program runs; names of `tf.distribute`."""

from dtrain.strategies.choice import get_strategy
from dtrain.strategies.replicas import contexts
from dtrain.strategies.replicas.calls import ThreadMeeting
from dtrain.strategies.replicas.contexts import ReplicaContext
from dtrain.strategies.replicas.variable import ALONE

__all__ = ["get_replica_context", "get_strategy", "has_strategy", "in_cross_replica_context"]


def get_replica_context() -> ReplicaContext | None:
    """Return the replica in which the calling line runs.

    Returns: None outside of all replicas: within ``strategy.scope()`` or a function of `merge_call`. Where no
        scope is open it is the only replica of the default strategy.
    """
    place = contexts.here()
    if place is None:
        return ReplicaContext(ALONE, 0, ThreadMeeting([0]), get_strategy())
    return place if isinstance(place, ReplicaContext) else None


def in_cross_replica_context() -> bool:
    """Return whether the calling line runs within a strategy's scope, but in none of its replicas."""
    place = contexts.here()
    return place is not None and not isinstance(place, ReplicaContext)


def has_strategy() -> bool:
    """Return whether the calling line runs in a strategy's scope or in one of its replicas."""
    return contexts.here() is not None
