"""Sums, means and joined arrays of several replicas, by TensorFlow's rules of dtypes.

Arrays are added up in the order of the replicas. Python numbers count as float32 and int32. `SparseRows`
stay sparse: their rows are joined, and divided by the number of replicas for a mean.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import prod
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from dtrain.errors import InputError
from dtrain.exchange.calls import GivenCall, ReplicaCall, added_up
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.strategies.replicas.values import form, leaves, mapped
from dtrain.types import Array

Nest: TypeAlias = "float | Array | Sequence[Nest] | Mapping[str, Nest]"
"""A number, an array, or lists and mappings of them: the same form in every replica."""


class ReduceOp(StrEnum):
    """How the values of several replicas become one."""

    SUM = "SUM"
    MEAN = "MEAN"


Leaf: TypeAlias = Array | SparseRows
"""A value of one replica."""

SMALL_WHOLE_NUMBERS = ("int8", "uint8", "int16", "uint16")
"""Their means are float32; those of larger whole numbers are float64."""


def as_op(given: Any, where: str) -> ReduceOp:
    """Return a reduce operation given as such or as text in any case, or raise an `InputError`."""
    try:
        return ReduceOp(given.upper() if isinstance(given, str) else given)
    except ValueError:
        raise InputError(f"{where}: expected ReduceOp.SUM or ReduceOp.MEAN, found {given!r}") from None


def as_leaf(value: Any, where: str) -> Leaf:
    """Return what one replica hands in as an array of numbers, or sparse rows; else raise an `InputError`."""
    if isinstance(value, SparseRows):
        return value
    if value is None:
        raise InputError(f"{where}: expected an array or a number, found None")
    if isinstance(value, bool):
        return np.asarray(value)
    if isinstance(value, int):
        return np.asarray(value, np.int32 if -(2**31) <= value < 2**31 else np.int64)
    return np.asarray(value, np.float32) if isinstance(value, float) else np.asarray(value)


def as_summand(value: Any, where: str) -> Leaf:
    """Return one replica's summand, or raise an `InputError` if it is no array of numbers."""
    leaf = as_leaf(value, where)
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "iufcV":
        raise InputError(f"{where}: expected numbers, found dtype {leaf.dtype}")
    return leaf


def check_one_place(given: Sequence[Any], leaves: Sequence[Leaf], where: str) -> None:
    """Raise an `InputError` for a nest that mixes int32 with other dtypes, as TensorFlow does.

    Python's whole numbers in a nest are refused, too: their dtype would be a guess.
    """
    if len(given) > 1 and any(isinstance(each, int) and not hasattr(each, "dtype") for each in given):
        raise InputError(
            f"{where}: expected arrays in a nest, found {given!r}; give numpy's numbers, such as np.int64(1)"
        )
    whole = [isinstance(leaf, np.ndarray) and leaf.dtype == np.int32 for leaf in leaves]
    if any(whole) and not all(whole):
        raise InputError(
            f"{where}: expected either only int32 or no int32 in one nest, found "
            f"{', '.join(described(leaf) for leaf in leaves)}; reduce them in two calls"
        )


def described(leaf: Leaf) -> str:
    """Return dtype and shape, which must be equal in all replicas of a sum."""
    if isinstance(leaf, SparseRows):
        return f"SparseRows {leaf.rows.dtype}{list(leaf.rows.shape[1:])}"
    return f"{leaf.dtype}{list(leaf.shape)}"


def described_but(leaf: Leaf, axis: int) -> str:
    """Return dtype and shape without the length of an axis, along which arrays are joined."""
    if isinstance(leaf, SparseRows):
        return described(leaf)
    shape: list[Any] = list(leaf.shape)
    if -len(shape) <= axis < len(shape):
        shape[axis] = "any"
    return f"{leaf.dtype}{shape}".replace("'", "")


def total(parts: Sequence[Leaf]) -> Leaf:
    """Return the sum, in the order of the parts: a new array, of their dtype."""
    if isinstance(parts[0], SparseRows):
        rows = [part for part in parts if isinstance(part, SparseRows)]
        return SparseRows(
            np.concatenate([each.ids for each in rows]), np.concatenate([each.rows for each in rows])
        )
    return added_up([part for part in parts if isinstance(part, np.ndarray)])


def divided(value: Leaf, count: Any) -> Leaf:
    """Return a sum divided by a count, in the dtype that TensorFlow gives a mean."""
    if isinstance(value, SparseRows):
        return SparseRows(value.ids, np.asarray(divided(value.rows, count)))
    if value.dtype.kind in "iu":
        value = value.astype(np.float32 if value.dtype.name in SMALL_WHOLE_NUMBERS else np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.divide(value, np.asarray(count).astype(value.dtype)))


def reduced(op: ReduceOp, parts: Sequence[Leaf], count: int | None = None) -> Leaf:
    """Return the sum or the mean of the parts; `count` is the divisor, by default the number of parts."""
    result = total(parts)
    return divided(result, count or len(parts)) if op is ReduceOp.MEAN else result


class Summed(NamedTuple):
    """A call of `all_reduce`, and what one replica gives to it: the leaves of a nest."""

    op: ReduceOp
    value: Any
    given: GivenCall

    @classmethod
    def of(cls, op: ReduceOp, value: Any, *, dense: bool = False) -> Self:
        """Return the call, named by the calling line; raise an `InputError` if a leaf is not numeric."""
        parts = [as_summand(leaf, "all_reduce") for leaf in leaves(value)]
        if dense and any(isinstance(part, SparseRows) for part in parts):
            raise InputError("all_reduce: expected arrays within a step, found SparseRows")
        what = f"{op.name} of {form(value)} {', '.join(map(described, parts))}"
        return cls(op, value, GivenCall(ReplicaCall.here("all_reduce", what), parts))

    def result(self, of_replicas: Sequence[Sequence[Leaf]]) -> Nest:
        """Return the nest of sums or means of what all replicas have given."""
        found = iter([reduced(self.op, parts) for parts in zip(*of_replicas, strict=True)])
        result: Nest = mapped(lambda leaf: next(found), self.value)
        return result


def joined(parts: Sequence[Array], axis: int, where: str) -> Array:
    """Return the arrays joined along an axis, or raise an `InputError` if other axes or dtypes differ."""
    if len({part.dtype for part in parts}) > 1:
        raise InputError(f"{where}: expected one dtype, found {', '.join(map(described, parts))}")
    try:
        return np.concatenate(parts, axis)
    except ValueError as error:
        shapes = ", ".join(map(described, parts))
        raise InputError(f"{where}: axis {axis} of {shapes}: {error}") from None


def as_axis(axis: Any, where: str) -> int:
    """Return the axis of a gather, or raise an `InputError` if it is no whole number; True is 1."""
    if not isinstance(axis, int | np.integer):
        raise InputError(f"{where}: expected a whole number as axis, found {axis!r}")
    return int(axis)


def as_axes(axis: Any, where: str) -> tuple[int, ...]:
    """Return the axes of a reduction, of one number or a tuple; else raise an `InputError`."""
    if isinstance(axis, tuple):
        return tuple(as_axis(each, where) for each in axis)
    if isinstance(axis, list):
        raise InputError(f"{where}: expected None, a number or a tuple as axis, found the list {axis}")
    return (as_axis(axis, where),)


def sum_and_count(value: Array, axes: tuple[int, ...], where: str) -> tuple[Array, int]:
    """Return the sum of an array over axes, in its dtype, and how many elements each sum is of.

    Raises:
        InputError: there is no such axis.
    """
    if any(not -value.ndim <= axis < value.ndim for axis in axes):
        raise InputError(f"{where}: expected axes of {described(value)}, found {axes}")
    return np.asarray(value.sum(axes, dtype=value.dtype)), prod(value.shape[axis] for axis in axes)
