"""Activation functions with derivatives, by Keras's names; `hard_sigmoid` is Keras 2.15's (0.2x + 0.5)."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from math import pi, sqrt
from typing import Any, TypeAlias

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.core.configuration import unknown_name
from dtrain.types import Array


@dataclass(frozen=True)
class Activation:
    """An element-wise (or, for softmax, last-axis) function and its derivative.

    Attributes:
        name: under which `get` finds it and a config names it.
        forward: ``(x) -> y``; may overwrite x unless `needs_x`.
        derivative: ``(x, y, dy) -> dx``; may overwrite dy, never x or y.
        needs_x: False if the derivative is a function of y alone; x is then given as y, and need not be kept.
    """

    name: str
    forward: Callable[[Array], Array]
    derivative: Callable[[Array, Array, Array], Array]
    needs_x: bool = False

    def __call__(self, x: Any, name: str | None = None) -> Any:
        """Return the value at `x`, an array, a symbol or what a tape records; `name` has no effect."""
        return import_module("dtrain.learning.functions.networks").activated(self, x)

    def apply(self, z: Array) -> tuple[Array, "Kept"]:
        """Return the value at `z`, which may be overwritten, and what `apply_back` needs."""
        y = self.forward(z)
        return y, (z if self.needs_x else y, y)

    def apply_back(self, kept: "Kept", dy: Array) -> Array:
        """Return the gradient by z, from the gradient by the value, which may be overwritten."""
        x, y = kept
        return self.derivative(x, y, dy)


Kept: TypeAlias = tuple[Array, Array]
"""The values that an activation keeps for its derivative: x (or y in its place), and y."""

ActivationLike: TypeAlias = str | Activation | None


def _times(slope: Callable[[Array, Array], Array]) -> Callable[[Array, Array, Array], Array]:
    """Return the derivative that multiplies dy, in place, by a slope, a function of x and y."""

    def derivative(x: Array, y: Array, dy: Array) -> Array:
        dy *= slope(x, y)
        return dy

    return derivative


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))  # this form never overflows
    x[...] = np.where(x >= 0, np.float32(1), e)
    x /= 1 + e
    return x


def _sigmoid_derivative(x: Array, y: Array, dy: Array) -> Array:
    dy *= y
    dy *= 1 - y
    return dy


def softmax_along(x: Array, axis: int = -1) -> Array:
    """Return exp(x - max x) / its sum along `axis`, a new array; the maximum keeps it from overflowing."""
    y: Array = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
    y /= y.sum(axis=axis, keepdims=True)
    return y


def softmax_along_derivative(y: Array, dy: Array, axis: int = -1) -> Array:
    dx = y * dy
    dx -= y * dx.sum(axis=axis, keepdims=True)
    return dx


def _log_softmax(x: Array) -> Array:
    x -= x.max(axis=-1, keepdims=True, initial=-np.inf)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x


def _log_softmax_derivative(x: Array, y: Array, dy: Array) -> Array:
    dy -= np.exp(y) * dy.sum(axis=-1, keepdims=True)
    return dy


def scaled_elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, np.float32(alpha) * np.expm1(np.minimum(x, 0)))


def scaled_elu_derivative(y: Array, dy: Array, alpha: float = 1.0) -> Array:
    return dy * np.where(y > 0, np.float32(1), y + np.float32(alpha))


# Klambauer et al. 2017, "Self-Normalizing Neural Networks": fixed point at mean 0, variance 1.
_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


def _selu(x: Array) -> Array:
    return np.float32(_SELU_SCALE) * scaled_elu(x, _SELU_ALPHA)


def _selu_derivative(x: Array, y: Array, dy: Array) -> Array:
    # at 0 the derivative from the right, as in TensorFlow
    return dy * np.where(y < 0, y + np.float32(_SELU_SCALE * _SELU_ALPHA), np.float32(_SELU_SCALE))


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _softsign(x: Array) -> Array:
    x /= 1 + np.abs(x)
    return x


def _hard_sigmoid(x: Array) -> Array:
    return np.clip(0.2 * x + 0.5, 0, 1, out=x)


def _hard_sigmoid_slope(x: Array, y: Array) -> Array:
    return np.float32(0.2) * ((y > 0) & (y < 1))


def _swish(x: Array) -> Array:
    return x * _sigmoid(x.copy())


def _swish_slope(x: Array, y: Array) -> Array:
    s = _sigmoid(x.copy())
    slope: Array = s + y * (1 - s)
    return slope


def _mish_slope(x: Array, y: Array) -> Array:
    t = np.tanh(_softplus(x))
    slope: Array = t + x * _sigmoid(x.copy()) * (1 - t * t)
    return slope


# Rational approximation of erf in float32, odd numerator and even denominator (Eigen's, which TensorFlow
# uses).
_ERF_NUMERATOR = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
_ERF_DENOMINATOR = (
    *(-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03),
    -1.42647390514189e-02,
)


def _erf(x: Array) -> Array:
    x = np.clip(x, -4, 4)
    square = x * x
    return x * _polynomial(_ERF_NUMERATOR, square) / _polynomial(_ERF_DENOMINATOR, square)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value *= x
        value += np.float32(coefficient)
    return value


def _normal_cumulative(x: Array) -> Array:
    return 0.5 + 0.5 * _erf(x * np.float32(sqrt(0.5)))


def _gelu_derivative(x: Array, y: Array, dy: Array) -> Array:
    return dy * (_normal_cumulative(x) + x * np.exp(-0.5 * x * x) * np.float32(1 / sqrt(2 * pi)))


def _gelu_tanh(x: Array) -> Array:
    y: Array = 1 + np.tanh(np.float32(sqrt(2 / pi)) * (x + 0.044715 * x * x * x))
    y *= 0.5 * x
    return y


def _gelu_tanh_slope(x: Array, y: Array) -> Array:
    t = np.tanh(np.float32(sqrt(2 / pi)) * (x + 0.044715 * x * x * x))
    inner = np.float32(sqrt(2 / pi)) * (1 + 3 * 0.044715 * x * x)
    slope: Array = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner
    return slope


linear = Activation("linear", lambda x: x, lambda x, y, dy: dy)
"""x itself."""
# numpy's maximum with a number takes twice the time of clip
relu = Activation("relu", lambda x: np.clip(x, 0, np.inf, out=x), _times(lambda x, y: y > 0))
"""max(x, 0)."""
relu6 = Activation("relu6", lambda x: np.clip(x, 0, 6, out=x), _times(lambda x, y: (y > 0) & (y < 6)))
"""x, cut to 0 to 6."""
sigmoid = Activation("sigmoid", _sigmoid, _sigmoid_derivative)
"""1 / (1 + exp(-x))."""
tanh = Activation("tanh", lambda x: np.tanh(x, out=x), _times(lambda x, y: 1 - y * y))
"""The hyperbolic tangent of x."""
softmax = Activation("softmax", softmax_along, lambda x, y, dy: softmax_along_derivative(y, dy))
"""exp(x) / sum of exp(x) along the last axis."""
log_softmax = Activation("log_softmax", _log_softmax, _log_softmax_derivative)
"""The logarithm of softmax along the last axis, which does not overflow."""
elu = Activation("elu", scaled_elu, lambda x, y, dy: scaled_elu_derivative(y, dy))
"""x where positive, exp(x) - 1 elsewhere."""
selu = Activation("selu", _selu, _selu_derivative)
"""A scaled elu, by which mean 0 and variance 1 stay (Klambauer et al., 2017)."""
softplus = Activation("softplus", _softplus, _times(lambda x, y: -np.expm1(-y)))
"""log(1 + exp(x))."""
softsign = Activation("softsign", _softsign, _times(lambda x, y: np.square(1 - np.abs(y))))
"""x / (1 + |x|)."""
exponential = Activation("exponential", lambda x: np.exp(x, out=x), lambda x, y, dy: dy * y)
"""exp(x)."""
hard_sigmoid = Activation("hard_sigmoid", _hard_sigmoid, _times(_hard_sigmoid_slope))
"""0.2 x + 0.5, cut to 0 to 1, as in Keras 2.15."""
swish = Activation("swish", _swish, _times(_swish_slope), needs_x=True)
"""x · sigmoid(x)."""
silu = Activation("silu", _swish, _times(_swish_slope), needs_x=True)
"""x · sigmoid(x); another name of swish."""
mish = Activation("mish", lambda x: x * np.tanh(_softplus(x)), _times(_mish_slope), needs_x=True)
"""x · tanh(softplus(x))."""
gelu = Activation("gelu", lambda x: x * _normal_cumulative(x), _gelu_derivative, needs_x=True)
"""x times the normal distribution's cumulative function at x."""
gelu_tanh = Activation("gelu_tanh", _gelu_tanh, _times(_gelu_tanh_slope), needs_x=True)
"""gelu, approximated by tanh (Keras's ``gelu(approximate=True)``)."""

CATALOGUE = tuple(each for each in list(globals().values()) if isinstance(each, Activation))
_BY_NAME = {activation.name: activation for activation in CATALOGUE}

__all__ = ["Activation", "get", *_BY_NAME]


def get(identifier: ActivationLike) -> Activation:
    """Return the activation for an object, a name, or None (linear).

    Pass a function of your own as ``Activation(name, forward, derivative)``: a bare function has no
    derivative.

    Args:
        identifier: an `Activation`, a name, or None.
    """
    if identifier is None:
        return linear
    if isinstance(identifier, Activation):
        return identifier
    if isinstance(identifier, str) and identifier in _BY_NAME:
        return _BY_NAME[identifier]
    raise SpecError(
        f"{unknown_name(identifier, 'activation', _BY_NAME, _BY_NAME)} "
        "(a function of your own is dtrain.activations.Activation(name, forward, derivative))"
    )
