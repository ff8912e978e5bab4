"""Functions that make, cut, join and arrange tensors. Names and arguments are TensorFlow's."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.core.results import result_of
from dtrain.learning.functions.recording import bare
from dtrain.learning.functions.tensors import Symbol, operands, plain, tensor, tensor_function

_NAMES = (
    "cast concat constant convert_to_tensor expand_dims gather getitem one_hot ones ones_like range reshape "
    "shape split squeeze stack tile transpose where zeros zeros_like"
)
__all__ = _NAMES.split()


def constant(value: Any, dtype: Any = None, shape: Any = None) -> Any:
    """Return `value`, numbers or nested lists, as an array of `dtype`, filled up to `shape` if there is one.

    By default Python's numbers are float32 or int32.
    """
    array = tensor(value, dtype)
    if shape is not None:
        array = np.broadcast_to(array.reshape(-1 if array.size == 1 else shape), shape).copy()
    return result_of(array)


def convert_to_tensor(value: Any, dtype: Any = None) -> Any:
    """Return `value` (numbers, lists, a variable) as an array of `dtype`; symbols stay so."""
    return value if isinstance(value, Symbol) else result_of(tensor(plain(value), dtype))


@tensor_function
def cast(x: Any, dtype: Any) -> Any:
    """Return `x` in another `dtype`, such as ``dt.float32``."""
    x = tensor(x)
    return x if x.dtype == dtype else x.astype(dtype)


def shape(input: Any, out_type: Any = np.int32) -> Any:  # noqa: A002
    """Return the lengths of the axes of `input` as `out_type`; of a symbol a tuple, None for the batch."""
    return (
        tuple(input.shape) if isinstance(input, Symbol) else np.array(np.shape(bare(plain(input))), out_type)
    )


def zeros(shape: Any, dtype: Any = np.float32) -> Any:
    """Return zeros of this `shape` and `dtype`."""
    return result_of(np.zeros(_known(shape, "zeros"), dtype))


def ones(shape: Any, dtype: Any = np.float32) -> Any:
    """Return ones of this `shape` and `dtype`."""
    return result_of(np.ones(_known(shape, "ones"), dtype))


def range(start: Any, limit: Any = None, delta: Any = 1, dtype: Any = None) -> Any:  # noqa: A001
    """Return the numbers from `start` on, `delta` apart, up to `limit`, which is not one of them, as `dtype`.

    One number alone is the limit, and they begin at 0.
    """
    first, last = (0, start) if limit is None else (start, limit)
    kind = tensor(np.add(first, delta).tolist()).dtype if dtype is None else dtype
    return result_of(np.arange(first, last, delta, dtype=kind))


def _known(shape: Any, what: str) -> tuple[int, ...]:
    lengths = np.atleast_1d(shape).tolist()
    if None in lengths:
        raise InputError(
            f"{what}: expected known lengths, found {tuple(lengths)}: a batch has no size before the model "
            "runs; use ones_like, zeros_like, or a Layer with a `call`"
        )
    return tuple(int(each) for each in lengths)


@tensor_function
def zeros_like(input: Any, dtype: Any = None) -> Any:  # noqa: A002
    """Return zeros in the shape of `input`, by default in its `dtype`."""
    return np.zeros_like(np.asarray(bare(tensor(input))), dtype)


@tensor_function
def ones_like(input: Any, dtype: Any = None) -> Any:  # noqa: A002
    """Return ones in the shape of `input`, by default in its `dtype`."""
    return np.ones_like(np.asarray(bare(tensor(input))), dtype)


@tensor_function
def expand_dims(input: Any, axis: int) -> Any:  # noqa: A002
    """Return `input` with one more axis, of length 1, at `axis`."""
    return np.expand_dims(tensor(input), axis)


@tensor_function
def squeeze(input: Any, axis: Any = None) -> Any:  # noqa: A002
    """Return `input` without axes of length 1: all of them, or those named by `axis`."""
    return np.squeeze(tensor(input), tuple(axis) if isinstance(axis, list) else axis)


@tensor_function
def reshape(tensor: Any, shape: Any) -> Any:
    """Return `tensor` in another `shape`; one length may be -1, and a first one None keeps the batch."""
    lengths = [shape] if np.ndim(shape) == 0 else list(shape)
    if lengths and lengths[0] is None:
        lengths[0] = len(tensor)
    return np.reshape(_of(tensor), tuple(int(each) for each in lengths))


_of = tensor


@tensor_function
def transpose(a: Any, perm: Any = None) -> Any:
    """Return `a` with its axes in the order `perm`; None: in reverse."""
    return np.transpose(tensor(a), None if perm is None else tuple(perm))


@tensor_function
def concat(values: Sequence[Any], axis: int) -> Any:
    """Return `values` one after the other along `axis`."""
    return np.concatenate([tensor(each) for each in values], axis=int(axis))


@tensor_function
def stack(values: Sequence[Any], axis: int = 0) -> Any:
    """Return `values` of one shape side by side along a new `axis`."""
    return np.stack([tensor(each) for each in values], axis=axis)


@tensor_function
def split(value: Any, num_or_size_splits: Any, axis: int = 0, num: int | None = None) -> Any:
    """Return a list of parts of `value` along `axis`: `num_or_size_splits` equal ones, or of these lengths.

    `num` has no effect.
    """
    value = tensor(value)
    length = np.shape(value)[axis]
    several = np.ndim(num_or_size_splits) > 0
    if sum(num_or_size_splits) != length if several else length % num_or_size_splits:
        raise InputError(f"split: expected parts of {length} in all, found {num_or_size_splits}")
    ends = np.cumsum(num_or_size_splits)[:-1].tolist() if several else int(num_or_size_splits)
    return list(np.split(value, ends, axis))


@tensor_function
def tile(input: Any, multiples: Any) -> Any:  # noqa: A002
    """Return `input` repeated `multiples` times along each axis."""
    return np.tile(tensor(input), tuple(int(each) for each in multiples))


@tensor_function
def gather(params: Any, indices: Any, axis: int = 0, batch_dims: int = 0) -> Any:
    """Return the parts of `params` with the numbers `indices` along `axis`.

    With `batch_dims` 1 they are those of each example.
    """
    params, indices = tensor(params), np.asarray(bare(tensor(indices))).astype(np.int64)
    if batch_dims:
        numbers = np.arange(len(indices)).reshape(-1, *[1] * (indices.ndim - 1))
        return params[numbers, indices]
    return params[(*(slice(None),) * (axis % np.ndim(params)), indices)]


@tensor_function
def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Return `x` where `condition` holds, `y` elsewhere; without them the places where it holds."""
    condition = np.asarray(bare(tensor(condition)), bool)
    return np.argwhere(condition) if x is None else np.where(condition, *operands(x, y))


@tensor_function
def one_hot(
    indices: Any, depth: int, on_value: Any = 1, off_value: Any = 0, axis: int = -1, dtype: Any = np.float32
) -> Any:
    """Return vectors of `depth` `dtype` numbers along `axis`: `on_value` at `indices`, else `off_value`."""
    places = np.arange(depth) == np.asarray(bare(tensor(indices)))[..., np.newaxis]
    return np.moveaxis(np.where(places, on_value, off_value).astype(dtype), -1, axis)


@tensor_function
def getitem(value: Any, key: Any) -> Any:
    """Return a part of the values, as Python's square brackets say it."""
    return value[key]
