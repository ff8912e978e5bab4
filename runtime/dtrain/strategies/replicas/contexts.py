"""Where a line of a program runs: in a replica, or outside of all of them (cross-replica context).

A thread of a replica is in that replica. Everything else is outside of all replicas where a strategy's
`scope` is open, and else in the only replica of the default strategy. See `tf.distribute`.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from dtrain.errors import ContextError

T = TypeVar("T")


class CrossReplica:
    """The place outside of all replicas of a strategy."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy


class Updating:
    """The place of a function of `extended.update`, which sees one replica's copies of variables.

    Attributes:
        index: the number of that replica in its process.
    """

    def __init__(self, strategy: Any, index: int) -> None:
        self.strategy = strategy
        self.index = index


class _Own(threading.local):
    """The places that a thread has entered, the innermost last."""

    def __init__(self) -> None:
        self.places: list[Any] = []


_own = _Own()
_scopes: list[CrossReplica] = []


def here() -> Any:
    """Return the place of the calling line; None: the default strategy's only replica."""
    if _own.places:
        return _own.places[-1]
    return _scopes[-1] if _scopes else None


@contextmanager
def entered(place: T) -> Iterator[T]:
    """Let the lines within be in this place, in this thread."""
    _own.places.append(place)
    try:
        yield place
    finally:
        _own.places.pop()


def strategy_of_scope() -> Any:
    """Return the strategy in whose `scope`, or for whom, the calling line runs; None if there is none."""
    place = here()
    return None if place is None else place.strategy


@contextmanager
def scope_of(strategy: T) -> Iterator[T]:
    """Open the scope of a strategy, for all threads.

    Raises:
        ContextError: the scope of another one is open, and one of them has several replicas; or the line
            runs in a replica.
    """
    place = here()
    if place is not None and not isinstance(place, CrossReplica):
        raise ContextError(
            "scope: expected to be outside of all replicas, found a function of strategy.run; open the scope "
            "around strategy.run, or use dt.distribute.get_replica_context().merge_call"
        )
    if place is not None and place.strategy is not strategy and _have_several(strategy, place.strategy):
        raise ContextError(
            f"scope: expected one strategy at a time, found the scope of {strategy!r} within that of "
            f"{place.strategy!r}"
        )
    opened = CrossReplica(strategy)
    _scopes.append(opened)
    try:
        yield strategy
    finally:
        _scopes.remove(opened)


def _have_several(*strategies: Any) -> bool:
    """Return whether one of these strategies has several replicas."""
    return any(strategy.num_replicas_in_sync > 1 for strategy in strategies)
