"""The dense layer, and layers that apply an activation function."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.learning.core import activations
from dtrain.learning.core.activations import ActivationLike
from dtrain.learning.core.constraints import ConstraintLike
from dtrain.learning.core.initializers import InitializerLike
from dtrain.learning.core.regularizers import RegularizerLike
from dtrain.learning.layers.base import ActivatedLayer, Call, Layer, Weight
from dtrain.types import Array, Arrays, Shape


@dataclass(eq=False)
class Dense(ActivatedLayer):
    """A dense layer: ``activation(x @ kernel + bias)`` over the last axis.

    Shapes: [batch, ..., inputs] becomes [batch, ..., units]; the kernel is [inputs, units], the bias [units].

    Args:
        units: how many outputs: a whole number from 1 on.
        activation: a name, such as ``relu``, or an `Activation`; None: none.
        use_bias: whether there is a bias.
        kernel_initializer: first values of the kernel: a name or an `Initializer`.
        bias_initializer: first values of the bias.
        kernel_regularizer: penalty on the kernel: a name, a `Regularizer` or None.
        bias_regularizer: penalty on the bias.
        activity_regularizer: penalty on the output, divided by the number of examples.
        kernel_constraint: a limit of the kernel, kept after each update: a name or a `Constraint`.
        bias_constraint: a limit of the bias, kept after each update: a name or a `Constraint`.

    Raises:
        SpecError: `units` is not positive, or a name is unknown.
    """

    supports_masking = True

    units: int
    activation: ActivationLike = None
    use_bias: bool = True
    kernel_initializer: InitializerLike = "glorot_uniform"
    bias_initializer: InitializerLike = "zeros"
    kernel_regularizer: RegularizerLike = None
    bias_regularizer: RegularizerLike = None
    activity_regularizer: RegularizerLike = None
    kernel_constraint: ConstraintLike = None
    bias_constraint: ConstraintLike = None

    def __post_init__(self) -> None:
        self.expect_positive(units=self.units)
        self.function = activations.get(self.activation)

    def declare(self, input_shape: Shape) -> Sequence[Weight]:
        """Return kernel [inputs, units] and bias [units]."""
        return self._declared(kernel=(self.known_length(input_shape), self.units), bias=(self.units,))

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the shape with `units` as last axis."""
        self.expect(len(input_shape) > 0, "at least two axes", input_shape)
        return (*input_shape[:-1], self.units)

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Multiply one matrix over all leading axes."""
        rows = x.reshape(-1, x.shape[-1])
        z = np.matmul(rows, weights["kernel"], out=call.scratch("z", (len(rows), self.units)))
        if self.use_bias:
            z += weights["bias"]
        y, kept = self.function.apply(z)
        return y.reshape(*x.shape[:-1], self.units), (rows, x.shape, kept)

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Compute dkernel = xᵀ dz, dbias = sum of dz, dx = dz kernelᵀ; dz is dy times the derivative."""
        rows, shape, kept = cache
        dz = self.function.apply_back(kept, dy.reshape(-1, self.units))
        np.matmul(rows.T, dz, out=gradients["kernel"])
        if self.use_bias:
            np.add.reduce(dz, axis=0, out=gradients["bias"])
        if not call.needs_input_gradient:
            return None
        return np.matmul(dz, weights["kernel"].T, out=call.scratch("dx", rows.shape)).reshape(shape)


@dataclass(eq=False)
class Activation(ActivatedLayer):
    """A layer that applies an activation function to every element. The shape stays.

    Args:
        activation: a name, such as ``relu``, or an `Activation`; None: none.
    """

    supports_masking = True

    activation: ActivationLike

    def __post_init__(self) -> None:
        self.function = activations.get(self.activation)

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Apply the function."""
        z = call.scratch("z", x.shape)
        z[...] = x
        return self.function.apply(z)

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return the function's derivative times dy."""
        return self.function.apply_back(cache, dy)


@dataclass(eq=False)
class Softmax(Layer):
    """exp(x) / sum of exp(x) along `axis`. The shape stays.

    Args:
        axis: the axis whose values add up to 1, counted with the batch axis as 0.
    """

    supports_masking = True

    axis: int = -1

    def before_activation(self) -> tuple[Layer, activations.Activation | None]:
        """Return the identity and softmax, if it goes along the last axis."""
        return (
            (Activation("linear", name=self.name), activations.softmax) if self.axis == -1 else (self, None)
        )

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the softmax."""
        y = activations.softmax_along(x, self.axis)
        return y, y

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return its derivative times dy."""
        return activations.softmax_along_derivative(cache, dy, self.axis)


@dataclass(eq=False)
class ReLU(Layer):
    """x above `threshold` (cut at `max_value`), ``negative_slope * (x - threshold)`` below.

    The shape stays.

    Args:
        max_value: the largest output; None: there is no limit.
        negative_slope: the slope below the threshold.
        threshold: from where on the input is handed on.
    """

    supports_masking = True

    max_value: float | None = None
    negative_slope: float = 0.0
    threshold: float = 0.0

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Apply the piecewise linear function."""
        below = np.float32(self.negative_slope) * (x - np.float32(self.threshold))
        y = np.where(
            x > self.threshold,
            x if self.max_value is None else np.minimum(x, np.float32(self.max_value)),
            below,
        )
        return y, x

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy times 1, 0 beyond the maximum, the slope below the threshold."""
        limit = np.inf if self.max_value is None else self.max_value
        return dy * np.where(cache > self.threshold, cache < limit, np.float32(self.negative_slope))


@dataclass(eq=False)
class LeakyReLU(Layer):
    """x where positive, ``alpha * x`` elsewhere.

    The shape stays.

    Args:
        alpha: the slope of negative numbers.
    """

    supports_masking = True

    alpha: float = 0.3

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Apply the piecewise linear function."""
        return np.where(x > 0, x, np.float32(self.alpha) * x), x

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy times 1 where x was positive, times alpha elsewhere."""
        return dy * np.where(cache > 0, np.float32(1), np.float32(self.alpha))


@dataclass(eq=False)
class ELU(Layer):
    """x where positive, ``alpha * (exp(x) - 1)`` elsewhere.

    The shape stays.

    Args:
        alpha: minus the value that very negative numbers approach.
    """

    supports_masking = True

    alpha: float = 1.0

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Apply the function."""
        y = activations.scaled_elu(x, self.alpha)
        return y, y

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy times 1 where x was positive, times y + alpha elsewhere."""
        return activations.scaled_elu_derivative(cache, dy, self.alpha)


@dataclass(eq=False)
class PReLU(Layer):
    """x where positive, ``alpha * x`` elsewhere, alpha learned by element (one along `shared_axes`).

    The shape stays.

    Args:
        alpha_initializer: first values of alpha.
        alpha_regularizer: penalty on alpha.
        shared_axes: axes along which there is one alpha, counted with the batch axis as 0; None: every
            element has its own.
    """

    supports_masking = True

    alpha_initializer: InitializerLike = "zeros"
    alpha_regularizer: RegularizerLike = None
    shared_axes: Sequence[int] | None = None

    def declare(self, input_shape: Shape) -> Sequence[Weight]:
        """Return alpha, of an example's shape, with length 1 along shared axes (the batch axis is 0)."""
        shared = {axis - 1 for axis in self.shared_axes or ()}
        shape = tuple(
            1 if axis in shared else self.known_length(input_shape, axis) for axis in range(len(input_shape))
        )
        return self._declared(alpha=shape)

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Apply the piecewise linear function."""
        return np.where(x > 0, x, weights["alpha"] * x), x

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Sum dy * min(x, 0) over the batch and the shared axes for alpha's gradient."""
        shared = tuple(axis + 1 for axis, length in enumerate(gradients["alpha"].shape) if length == 1)
        gradients["alpha"][...] = np.sum(dy * np.minimum(cache, 0), axis=(0, *shared), keepdims=True)[0]
        return dy * np.where(cache > 0, np.float32(1), weights["alpha"])
