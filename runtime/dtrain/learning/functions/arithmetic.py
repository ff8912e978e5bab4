"""`dt.math`: functions of numbers: element by element, along axes, and products. Names and arguments are
TensorFlow's.

Gradients at points where there is no derivative are TensorFlow's: `maximum` and `minimum` give all of it to
the first of two equal values, `clip_by_value` counts its bounds as within, and `abs` has 0 at 0.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from dtrain.absent_names import absent_from
from dtrain.learning.core import activations
from dtrain.learning.functions.recording import bare
from dtrain.learning.functions.tensors import operands, tensor, tensor_function

# Functions whose names and results are numpy's, or of another name there.
_OF_ONE = "abs ceil cos exp floor log log1p logical_not negative sign sin sqrt square round=rint"
_OF_TWO = (
    "add subtract multiply divide equal not_equal less less_equal greater greater_equal logical_and "
    "logical_or pow=power"
)
_ALONG: dict[str, Callable[..., Any]] = {
    "reduce_sum": np.sum,
    "reduce_mean": np.mean,
    "reduce_prod": np.prod,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_all": np.all,
    "reduce_any": np.any,
    "reduce_variance": lambda x, axis, keepdims: np.mean(
        np.square(x - np.mean(x, axis=axis, keepdims=True)), axis=axis, keepdims=keepdims
    ),
}


def _of_one(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        return function(tensor(x))

    return _named(run, name, f"numpy's `{function.__name__}` of `x`, element by element")


def _of_two(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any, y: Any) -> Any:
        return function(*operands(x, y))

    return _named(run, name, f"numpy's `{function.__name__}` of `x` and `y`, element by element")


def _along(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(input_tensor: Any, axis: Any = None, keepdims: bool = False) -> Any:
        axes = tuple(map(int, axis)) if isinstance(axis, list | tuple | np.ndarray) else axis
        x = tensor(input_tensor)
        found = function(x, axis=axes, keepdims=keepdims)
        return found.astype(x.dtype) if x.dtype.kind in "iu" else found

    what = f"the {name.partition('_')[2]} of `input_tensor` along `axis`, one or several; None: of all"
    more = "With `keepdims` these axes stay, with length 1. The dtype stays: a mean of integers is cut to one"
    return _named(run, name, f"{what}.\n\n    {more}")


def _largest(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(input: Any, axis: int = 0, output_type: Any = np.int64) -> Any:  # noqa: A002
        return function(np.asarray(bare(tensor(input))), axis=axis).astype(output_type)

    return _named(run, name, f"numpy's `{name}` of `input` along `axis`, as `output_type`")


def _extreme(name: str, wins: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any, y: Any) -> Any:
        x, y = operands(x, y)
        return np.where(wins(x, y), x, y)

    return _named(run, name, f"the {name} of `x` and `y`, element by element")


def _named(run: Callable[..., Any], name: str, returned: str) -> Callable[..., Any]:
    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"Return {returned}."
    return tensor_function(run)


def _of_numpy(names: str) -> list[tuple[str, Callable[..., Any]]]:
    pairs = (each.partition("=") for each in names.split())
    return [(name, getattr(np, theirs or name)) for name, _, theirs in pairs]


_MADE = [
    *(_of_one(*each) for each in _of_numpy(_OF_ONE)),
    *(_of_two(*each) for each in _of_numpy(_OF_TWO)),
    *(_along(name, function) for name, function in _ALONG.items()),
    _extreme("maximum", np.greater_equal),
    _extreme("minimum", np.less_equal),
    *(_largest(function.__name__, function) for function in (np.argmax, np.argmin)),
]
globals().update({each.__name__: each for each in _MADE})

sigmoid = activations.sigmoid
softplus = activations.softplus
tanh = activations.tanh


@tensor_function
def squared_difference(x: Any, y: Any) -> Any:
    """Return the square of `x` - `y`, element by element."""
    return np.square(np.subtract(*operands(x, y)))


@tensor_function
def rsqrt(x: Any) -> Any:
    """Return 1 / sqrt(`x`), element by element."""
    return 1 / np.sqrt(tensor(x))


@tensor_function
def divide_no_nan(x: Any, y: Any) -> Any:
    """Return `x` / `y`, and 0 where `y` is 0."""
    x, y = operands(x, y)
    divides = np.not_equal(y, 0)
    return np.where(divides, x / np.where(divides, y, 1), 0)


@tensor_function
def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any) -> Any:
    """Return `t`, its values below `clip_value_min` and above `clip_value_max` replaced by these."""
    t = tensor(t)
    low, high = (np.asarray(each, t.dtype) for each in (clip_value_min, clip_value_max))
    return np.where(t < low, low, np.where(t > high, high, t))


@tensor_function
def cumsum(x: Any, axis: int = 0) -> Any:
    """Return the sums of `x` up to each value along `axis`."""
    return np.cumsum(tensor(x), axis=axis)


@tensor_function
def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    """Return the product of the matrices `a` and `b`, which are the last two axes.

    With `transpose_a` and `transpose_b` they are transposed before.
    """
    both = ((tensor(a), transpose_a), (tensor(b), transpose_b))
    return np.matmul(*(np.swapaxes(each, -1, -2) if turned else each for each, turned in both))


@tensor_function
def einsum(equation: str, *inputs: Any) -> Any:
    """Return the sums of products of `inputs` that `equation` says, such as ``"bij,bjk->bik"``."""
    return np.einsum(equation, *map(tensor, inputs))


@tensor_function
def stop_gradient(input: Any) -> Any:  # noqa: A002
    """Return `input` as constants: gradients do not go through."""
    return bare(tensor(input))


@tensor_function
def l2_normalize(x: Any, axis: Any = None, epsilon: float = 1e-12) -> Any:
    """Return `x` over its Euclidean norm along `axis`, the square of which is at least `epsilon`."""
    x = tensor(x)
    total = np.sum(np.square(x), axis=axis, keepdims=True)
    return x / np.sqrt(np.where(total > epsilon, total, np.float32(epsilon)))


__all__ = [
    *(each.__name__ for each in _MADE),
    *("clip_by_value", "cumsum", "divide_no_nan", "einsum", "l2_normalize", "matmul"),
    *("rsqrt", "sigmoid", "softplus", "squared_difference", "stop_gradient", "tanh"),
]

_absent = absent_from("dtrain.math", __all__)


def __getattr__(name: str) -> Any:
    """Answer for a name that is absent."""
    return _absent(name)
