"""`dt.math`: functions of numbers: element by element, along axes, and products. Names and arguments are
TensorFlow's.

Gradients at points where there is no derivative are TensorFlow's: `maximum` and `minimum` give all of it to
the first of two equal values, `clip_by_value` counts its bounds as within, and `abs` has 0 at 0.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dtrain.absent_names import absent_from
from dtrain.learning.functions.recording import bare
from dtrain.learning.functions.tensors import names_of, operands, tensor, tensor_function


def _by_numpy(name: str, function: Callable[..., Any], says: str, arguments: int = 1) -> Any:
    """Return a function that is one of numpy's under TensorFlow's name."""

    def one(x: Any) -> Any:
        return function(tensor(x))

    def two(x: Any, y: Any) -> Any:
        return function(*operands(x, y))

    run: Callable[..., Any] = one if arguments == 1 else two
    run.__name__ = name
    given = "`x`" if arguments == 1 else "`x` and `y`"
    run.__doc__ = f"Return {says}, element by element of {given}."
    return tensor_function(run)


abs = _by_numpy("abs", np.abs, "the absolute value")  # noqa: A001
ceil = _by_numpy("ceil", np.ceil, "the next whole number above")
cos = _by_numpy("cos", np.cos, "the cosine")
exp = _by_numpy("exp", np.exp, "e to the power of x")
floor = _by_numpy("floor", np.floor, "the next whole number below")
log = _by_numpy("log", np.log, "the natural logarithm")
log1p = _by_numpy("log1p", np.log1p, "log(1 + x), exact near 0")
logical_not = _by_numpy("logical_not", np.logical_not, "whether a value is false")
negative = _by_numpy("negative", np.negative, "-x")
reciprocal = _by_numpy("reciprocal", lambda x: 1 / x, "1 / x")
round = _by_numpy("round", lambda x: np.rint(np.asarray(bare(x))), "the nearest whole number")  # noqa: A001
rsqrt = _by_numpy("rsqrt", lambda x: 1 / np.sqrt(x), "1 / sqrt(x)")
sign = _by_numpy("sign", np.sign, "-1, 0 or 1 by the sign")
sin = _by_numpy("sin", np.sin, "the sine")
sqrt = _by_numpy("sqrt", np.sqrt, "the square root")
square = _by_numpy("square", lambda x: x * x, "x * x")
add = _by_numpy("add", np.add, "x + y", 2)
subtract = _by_numpy("subtract", np.subtract, "x - y", 2)
multiply = _by_numpy("multiply", np.multiply, "x * y", 2)
divide = _by_numpy("divide", np.true_divide, "x / y", 2)
pow = _by_numpy("pow", np.power, "x to the power of y", 2)  # noqa: A001
equal = _by_numpy("equal", np.equal, "x == y", 2)
not_equal = _by_numpy("not_equal", np.not_equal, "x != y", 2)
less = _by_numpy("less", np.less, "x < y", 2)
less_equal = _by_numpy("less_equal", np.less_equal, "x <= y", 2)
greater = _by_numpy("greater", np.greater, "x > y", 2)
greater_equal = _by_numpy("greater_equal", np.greater_equal, "x >= y", 2)
logical_and = _by_numpy("logical_and", np.logical_and, "x and y", 2)
logical_or = _by_numpy("logical_or", np.logical_or, "x or y", 2)
maximum = _by_numpy("maximum", lambda x, y: np.where(x >= y, x, y), "the larger of x and y", 2)
minimum = _by_numpy("minimum", lambda x, y: np.where(x <= y, x, y), "the smaller of x and y", 2)
squared_difference = _by_numpy(
    "squared_difference", lambda x, y: np.square(np.subtract(x, y)), "(x - y) * (x - y)", 2
)


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


def _axes(axis: Any) -> Any:
    return tuple(int(each) for each in axis) if isinstance(axis, list | tuple | np.ndarray) else axis


def _reduction(name: str, function: Callable[..., Any], says: str) -> Any:
    def run(input_tensor: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return function(tensor(input_tensor), axis=_axes(axis), keepdims=keepdims)

    run.__name__ = name
    run.__doc__ = (
        f"Return {says} of `input_tensor` along `axis`, one or a list of them; None: of all elements.\n\n"
        "    With `keepdims` these axes stay, with length 1.\n    "
    )
    return tensor_function(run)


reduce_sum = _reduction("reduce_sum", np.sum, "the sum")
reduce_mean = _reduction("reduce_mean", np.mean, "the mean")
reduce_prod = _reduction("reduce_prod", np.prod, "the product")
reduce_max = _reduction("reduce_max", np.max, "the largest value")
reduce_min = _reduction("reduce_min", np.min, "the smallest value")
reduce_all = _reduction("reduce_all", np.all, "whether all are true")
reduce_any = _reduction("reduce_any", np.any, "whether any is true")


def _variance(x: Any, axis: Any, keepdims: bool) -> Any:
    return np.mean(np.square(x - np.mean(x, axis=axis, keepdims=True)), axis=axis, keepdims=keepdims)


def _log_of_sum(x: Any, axis: Any, keepdims: bool) -> Any:
    top = np.max(np.asarray(bare(x)), axis=axis, keepdims=True)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=keepdims))
    return total + (top if keepdims else np.squeeze(top, axis))


reduce_variance = _reduction("reduce_variance", _variance, "the variance")
reduce_logsumexp = _reduction("reduce_logsumexp", _log_of_sum, "the logarithm of the sum of exp(x)")


@tensor_function
def cumsum(x: Any, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Any:
    """Return the sums of `x` up to each value along `axis`: from the end if `reverse`.

    If `exclusive`, the value itself is not in its sum.
    """
    x = tensor(x)
    turned = (*[slice(None)] * (axis % np.ndim(x)), slice(None, None, -1))
    x = x[turned] if reverse else x
    sums = np.cumsum(x, axis=axis)
    sums = sums - x if exclusive else sums
    return sums[turned] if reverse else sums


@tensor_function
def argmax(input: Any, axis: int = 0, output_type: Any = np.int64) -> Any:  # noqa: A002
    """Return the positions of the largest values of `input` along `axis`, as `output_type`."""
    return np.argmax(np.asarray(bare(tensor(input))), axis=axis).astype(output_type)


@tensor_function
def argmin(input: Any, axis: int = 0, output_type: Any = np.int64) -> Any:  # noqa: A002
    """Return the positions of the smallest values of `input` along `axis`, as `output_type`."""
    return np.argmin(np.asarray(bare(tensor(input))), axis=axis).astype(output_type)


@tensor_function
def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    """Return the product of the matrices `a` and `b`, which are the last two axes.

    With `transpose_a` and `transpose_b` they are transposed before.
    """
    a, b = tensor(a), tensor(b)
    return np.matmul(
        np.swapaxes(a, -1, -2) if transpose_a else a, np.swapaxes(b, -1, -2) if transpose_b else b
    )


@tensor_function
def tensordot(a: Any, b: Any, axes: Any) -> Any:
    """Return the sums of products of `a` and `b` over `axes`: how many, or those of each."""
    return np.tensordot(tensor(a), tensor(b), axes)


@tensor_function
def einsum(equation: str, *inputs: Any) -> Any:
    """Return the sums of products of `inputs` that `equation` says, such as ``"bij,bjk->bik"``."""
    return np.einsum(equation, *map(tensor, inputs))


@tensor_function
def stop_gradient(input: Any) -> Any:  # noqa: A002
    """Return `input` as constants: gradients do not go through."""
    return bare(tensor(input))


@tensor_function
def softplus(features: Any) -> Any:
    """Return log(1 + exp(x)) of `features`."""
    return np.logaddexp(tensor(features), 0)


@tensor_function
def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)) of `x`."""
    return np.exp(-np.logaddexp(-tensor(x), 0))


@tensor_function
def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent of `x`."""
    return np.tanh(tensor(x))


@tensor_function
def l2_normalize(x: Any, axis: Any = None, epsilon: float = 1e-12) -> Any:
    """Return `x` over its Euclidean norm along `axis`, the square of which is at least `epsilon`."""
    x = tensor(x)
    total = np.sum(np.square(x), axis=axis, keepdims=True)
    return x / np.sqrt(np.where(total > epsilon, total, np.float32(epsilon)))


__all__ = names_of(__name__)

if not TYPE_CHECKING:
    __getattr__ = absent_from("dtrain.math", __all__)
