"""Values of which every replica of this process has its own, and nests of values.

Nests are lists, tuples, named tuples and dicts, which replicas hand in and get back. Everything else is a
leaf, so also `DistributedValues` and arrays.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

from dtrain.errors import InputError


class DistributedValues:
    """One value for each replica of this process; see `tf.distribute.DistributedValues`.

    Attributes:
        values: by the replicas' order.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = tuple(values)

    def __repr__(self) -> str:
        lines = (f"  {index}: {value!r}" for index, value in enumerate(self.values))
        return f"{type(self).__name__}:{{\n" + ",\n".join(lines) + "\n}"


class PerReplica(DistributedValues):
    """Values that may differ from replica to replica, such as the parts of a batch or what `run` returns."""


class Mirrored(DistributedValues):
    """Values that are equal in all replicas, such as what `extended.reduce_to` returns."""


@dataclass(frozen=True)
class ValueContext:
    """The replica for which `experimental_distribute_values_from_function` asks for a value.

    See `tf.distribute.experimental.ValueContext`.

    Attributes:
        replica_id_in_sync_group: the number of the replica among all.
        num_replicas_in_sync: how many there are.
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1


SHOWN_CHARACTERS = 80
"""Longer values are cut off in messages."""


def mapped(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Return a nest of the form of `first` with ``function(leaf, ...)`` of the leaves of all nests.

    Raises:
        InputError: the forms differ.
    """
    if is_leaf(first):
        if not all(map(is_leaf, others)):
            raise _different(first, others)
        return function(first, *others)
    if not all(type(other) is type(first) and len(other) == len(first) for other in others):
        raise _different(first, others)
    if isinstance(first, dict):
        if not all(other.keys() == first.keys() for other in others):
            raise _different(first, others)
        return {
            name: mapped(function, value, *(other[name] for other in others)) for name, value in first.items()
        }
    parts = [mapped(function, *each) for each in zip(first, *others, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)


def leaves(nest: Any) -> list[Any]:
    found: list[Any] = []
    mapped(found.append, nest)
    return found


def is_leaf(value: Any) -> bool:
    """Return whether a value is no list, tuple or dict."""
    return not isinstance(value, list | tuple | dict)


def form(nest: Any) -> str:
    """Return a text that is equal for nests of one form; leaves are stars."""
    if is_leaf(nest):
        return "*"
    if isinstance(nest, dict):
        return "{" + ", ".join(f"{name!r}: {form(nest[name])}" for name in sorted(nest, key=repr)) + "}"
    return f"{type(nest).__name__}({', '.join(map(form, nest))})"


def of_replica(nest: Any, index: int) -> Any:
    """Return a nest as the replica with this number in its process sees it: its own of distributed values."""
    return mapped(lambda leaf: leaf.values[index] if isinstance(leaf, DistributedValues) else leaf, nest)


def regrouped(
    values: Sequence[Any], wrap: type[DistributedValues] = PerReplica, *, always: bool = False
) -> Any:
    """Return the values of all replicas as one nest, the inverse of `of_replica`.

    With `always` also what is the same in all replicas is wrapped: one object, equal Python numbers or texts.
    Raises an `InputError` if the forms differ.
    """

    def one(*parts: Any) -> Any:
        return parts[0] if not always and _are_same(parts) else wrap(parts)

    return mapped(one, *values)


def _are_same(parts: Sequence[Any]) -> bool:
    first = parts[0]
    if all(part is first for part in parts):
        return True
    plain = isinstance(first, str | bytes) or (isinstance(first, Number) and not hasattr(first, "dtype"))
    return plain and all(type(part) is type(first) and part == first for part in parts)


def _different(first: Any, others: Sequence[Any]) -> InputError:
    found = next((other for other in others if form(other) != form(first)), others[0])
    return InputError(
        f"values of replicas: expected one form in all of them, found {_shown(first)} and {_shown(found)}"
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
