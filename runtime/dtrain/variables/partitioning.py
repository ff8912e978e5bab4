"""Partitioners, which cut large variables into shards, and the split of rows; the rules are TensorFlow's.

A partitioner is asked once for each variable, with its shape and dtype, and answers with the number of parts
along each axis. Parameter servers cut along axis 0 only. Rows are dealt by the "div" rule: the first shards
get one row more where the number of rows is no multiple of the number of shards, so 13 rows in 5 shards are
3, 3, 3, 2, 2.

Names, arguments and arithmetic are those of `tf.distribute.experimental.partitioners`, with two surprising
consequences: MinSizePartitioner rounds up, so its shards can be smaller than `min_shard_bytes`;
MaxSizePartitioner exceeds `max_shard_bytes` where a single row does, or where `max_shards` demands it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, prod

from dtrain.errors import SpecError
from dtrain.variables import DTYPE_BYTES, VariableSpec

__all__ = ["FixedShardsPartitioner", "MaxSizePartitioner", "MinSizePartitioner"]

Partitioner = Callable[[Sequence[int], str], list[int]]
"""(shape, dtype) to the number of parts along each axis."""

_OTHER_BYTES = {
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int4": 1,
    "uint4": 1,
    "qint8": 1,
    "quint8": 1,
    "qint16": 2,
    "quint16": 2,
    "qint32": 4,
    "complex64": 8,
    "complex128": 16,
}
"""An element's size of dtypes that TensorFlow's variables have and dtrain's have not (`tf.DType.size`)."""
_ELEMENT_BYTES = {**DTYPE_BYTES, **_OTHER_BYTES}


@dataclass(frozen=True)
class FixedShardsPartitioner:
    """The same number of shards for every variable, but no more than it has rows.

    Args:
        num_shards: how many.
    """

    num_shards: int

    def __call__(self, shape: Sequence[int], dtype: str, axis: int = 0) -> list[int]:
        """Return the number of parts along each axis of a variable."""
        return _along(axis, shape, min(self.num_shards, shape[axis]))


@dataclass(frozen=True)
class MinSizePartitioner:
    """As many shards as there are `min_shard_bytes` in a variable (rounded up), at most `max_shards`.

    Args:
        min_shard_bytes: the smallest size of a shard.
        max_shards: the largest number of shards.
        bytes_per_string: the size that a string is taken to have.
    """

    min_shard_bytes: int = 256 << 10
    max_shards: int = 1
    bytes_per_string: int = 16

    def __post_init__(self) -> None:
        _check_positive(self, "min_shard_bytes", "max_shards", "bytes_per_string")

    def __call__(self, shape: Sequence[int], dtype: str, axis: int = 0) -> list[int]:
        """Return the number of parts along each axis of a variable."""
        if axis >= len(shape):
            raise SpecError(f"a variable of shape {tuple(shape)} cannot be partitioned along axis {axis}")
        nbytes = prod(shape) * _element_bytes(dtype, self.bytes_per_string)
        return _along(
            axis, shape, max(1, min(shape[axis], self.max_shards, ceil(nbytes / self.min_shard_bytes)))
        )


@dataclass(frozen=True)
class MaxSizePartitioner:
    """As few shards as keep each within `max_shard_bytes`, at most `max_shards`.

    Args:
        max_shard_bytes: the largest size of a shard.
        max_shards: the largest number of shards; None: there is no limit.
        bytes_per_string: the size that a string is taken to have.
    """

    max_shard_bytes: int
    max_shards: int | None = None
    bytes_per_string: int = 16

    def __post_init__(self) -> None:
        _check_positive(
            self, "max_shard_bytes", *(["max_shards"] if self.max_shards else []), "bytes_per_string"
        )

    def __call__(self, shape: Sequence[int], dtype: str, axis: int = 0) -> list[int]:
        """Return the parts along each axis; without elements raise a `ZeroDivisionError`, as TensorFlow."""
        rows = shape[axis]
        if None in shape:
            raise SpecError(f"only a fully known shape can be partitioned, found {tuple(shape)}")
        row_bytes = prod(shape) / rows * _element_bytes(dtype, self.bytes_per_string)
        shards = ceil(rows / max(1, int(self.max_shard_bytes / row_bytes)))
        return _along(axis, shape, min(shards, self.max_shards) if self.max_shards else shards)


def _check_positive(partitioner: object, *names: str) -> None:
    for name in names:
        if getattr(partitioner, name) < 1:
            raise SpecError(
                f"{type(partitioner).__name__}: {name} must be at least 1, found {getattr(partitioner, name)}"
            )


def _element_bytes(dtype: str, bytes_per_string: int) -> int:
    if dtype == "string":
        return bytes_per_string
    if dtype not in _ELEMENT_BYTES:
        raise SpecError(
            f"a variable of dtype {dtype!r} cannot be partitioned; expected string or "
            f"{', '.join(_ELEMENT_BYTES)}"
        )
    return _ELEMENT_BYTES[dtype]


def _along(axis: int, shape: Sequence[int], parts: int) -> list[int]:
    result = [1] * len(shape)
    result[axis] = parts
    return result


def partitioner_from_config(config: Mapping[str, int]) -> Partitioner:
    """Return the partitioner that a spec's ``training.partitioner`` names, else raise a `SpecError`."""
    match dict(config):
        case {"fixed_shards": shards, **rest} if not rest:
            return FixedShardsPartitioner(shards)
        case {"min_size": nbytes, **rest} if set(rest) <= {"max_shards"}:
            return MinSizePartitioner(nbytes, **rest)
        case {"max_size": nbytes, **rest} if set(rest) <= {"max_shards"}:
            return MaxSizePartitioner(nbytes, **rest)
    raise SpecError(
        f"expected a partitioner such as {{fixed_shards: 2}}, {{min_size: 262144, max_shards: 4}}, found "
        f"{dict(config)}"
    )


def partitioner_config(partitioner: object) -> dict[str, int] | None:
    """Return a partitioner of this module as in a spec, None for anything else."""
    match partitioner:
        case FixedShardsPartitioner(num_shards=shards):
            return {"fixed_shards": shards}
        case MinSizePartitioner(min_shard_bytes=nbytes, max_shards=shards):
            return {"min_size": nbytes, "max_shards": shards}
        case MaxSizePartitioner(max_shard_bytes=nbytes, max_shards=most):
            return {"max_size": nbytes} if most is None else {"max_size": nbytes, "max_shards": most}
    return None


def shard_count(variable: VariableSpec, partitioner: Partitioner | None) -> int:
    """Return the number of shards of a variable; 1 for scalars and for variables without elements. A
    `SpecError` says that the partitioner's answer is no number of parts of the first axis alone.
    """
    if partitioner is None or not variable.shape or variable.size == 0:
        return 1
    parts = partitioner(variable.shape, variable.dtype)
    if len(parts) != len(variable.shape) or not 1 <= parts[0] <= variable.shape[0] or set(parts[1:]) - {1}:
        expected = f"1 to {variable.shape[0]} parts along axis 0 and one along every other"
        raise SpecError(
            f"the partitioner cuts {variable.name} of shape {variable.shape} into {parts}; expected "
            f"{expected}"
        )
    return parts[0]


def split_rows(rows: int, shards: int) -> list[int]:
    """Return the number of rows of each shard, by the "div" rule: at most one apart, larger ones first."""
    base, extra = divmod(rows, shards)
    return [base + (shard < extra) for shard in range(shards)]


def row_offsets(rows: Sequence[int]) -> list[int]:
    return [0, *accumulate(rows)][:-1]


def shard_name(name: str, shard: int) -> str:
    return f"{name}/part_{shard}"
