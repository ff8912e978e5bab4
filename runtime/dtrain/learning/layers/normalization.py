"""Layers that bring values to mean 0 and variance 1: over the batch, or within each example."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.learning.core.constraints import ConstraintLike
from dtrain.learning.core.initializers import InitializerLike
from dtrain.learning.core.regularizers import RegularizerLike
from dtrain.learning.layers.base import Call, Layer, StepSums, Weight
from dtrain.types import Array, Arrays, Shape

# TensorFlow's fused kernel, which takes images, knows no smaller epsilon.
_FUSED_EPSILON_MIN = 1.001e-5


class _Normalizing(Layer):
    supports_masking = True

    def axes_of(self, axis: int | Sequence[int], rank: int) -> tuple[int, ...]:
        """Return `axis` as ascending numbers from 0, the batch axis being 0, in an array of `rank` axes."""
        given = [axis] if isinstance(axis, int) else list(axis)
        axes = tuple(sorted(a % rank for a in given if -rank <= a < rank))
        self.expect(
            len(axes) == len(given) and 0 not in axes, f"an input that has the axes {given}", f"{rank} axes"
        )
        return axes

    def _kept_shape(self, shape: Shape, axis: int | Sequence[int]) -> tuple[int, ...]:
        return tuple(self.known_length(shape, each - 1) for each in self.axes_of(axis, len(shape) + 1))


def along(values: Array, axes: Sequence[int], rank: int) -> Array:
    """Return `values`, one for each place along `axes`, broadcastable to an array of `rank` axes."""
    lengths = iter(values.shape)
    return values.reshape([next(lengths) if axis in axes else 1 for axis in range(rank)])


def _sum_of_products(a: Array, b: Array, kept: Sequence[int]) -> Array:
    """Return the sum of ``a * b`` over all axes but `kept`, without the product in memory."""
    axes = list(range(a.ndim))
    return np.asarray(np.einsum(a, axes, b, axes, list(kept)))


@dataclass(eq=False)
class BatchNormalization(_Normalizing):
    """A layer that normalizes each place along `axis` over the batch while training, and by moving averages
    otherwise.

    The moving averages are weights that are not trained; their new values go to `Call.updates`. For images
    ([batch, height, width, channels]) they are fed the unbiased variance, as TensorFlow's fused kernel does;
    for other inputs the biased one.

    With `synchronized` the batch is that of all replicas of a step: mean, variance and their gradients are
    computed from sums over replicas, and the moving averages are fed the biased variance of all inputs, as
    `tf.keras.layers.BatchNormalization(synchronized=True)` computes them.

    What a mask hides does not count for mean and variance.

    The shape stays.

    Args:
        axis: the axis whose places have a mean each, or several, counted with the batch axis as 0.
        momentum: how much of a moving average stays at each step.
        epsilon: is added to the variance.
        center: whether beta is added.
        scale: whether it is multiplied by gamma.
        beta_initializer: first values of beta.
        gamma_initializer: first values of gamma.
        moving_mean_initializer: first values of the moving mean.
        moving_variance_initializer: first values of the moving variance.
        beta_regularizer: penalty on beta.
        gamma_regularizer: penalty on gamma.
        beta_constraint: a limit of beta, kept after each update: a name or a `Constraint`.
        gamma_constraint: a limit of gamma, kept after each update: a name or a `Constraint`.
        synchronized: whether the batch is that of all replicas of a step.
    """

    axis: int | Sequence[int] = -1
    momentum: float = 0.99
    epsilon: float = 1e-3
    center: bool = True
    scale: bool = True
    beta_initializer: InitializerLike = "zeros"
    gamma_initializer: InitializerLike = "ones"
    moving_mean_initializer: InitializerLike = "zeros"
    moving_variance_initializer: InitializerLike = "ones"
    beta_regularizer: RegularizerLike = None
    gamma_regularizer: RegularizerLike = None
    beta_constraint: ConstraintLike = None
    gamma_constraint: ConstraintLike = None
    synchronized: bool = False

    @property
    def sums_over_replicas(self) -> bool:
        return self.synchronized

    def declare(self, input_shape: Shape) -> Sequence[Weight]:
        """Return gamma, beta, moving_mean, moving_variance: one number for each place along the axis."""
        shape = self._kept_shape(input_shape, self.axis)
        return (
            *_gamma_and_beta(self, shape),
            Weight("moving_mean", shape, self.moving_mean_initializer, trainable=False),
            Weight("moving_variance", shape, self.moving_variance_initializer, trainable=False),
        )

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Compute ``gamma * (x - mean) / sqrt(variance + epsilon) + beta``."""
        axes = self.axes_of(self.axis, x.ndim)
        from_batch = call.training and self.trainable
        normal = call.scratch("normal", x.shape)
        there = None if self._is_fused(x.ndim) or axes != (x.ndim - 1,) else call.mask
        if from_batch:
            seen = x if there is None else x[there]
            kept = axes if there is None else (1,)
            rest = tuple(axis for axis in range(seen.ndim) if axis not in kept)
            # a replica may have no examples
            mean = seen.mean(axis=rest) if seen.size else seen.sum(axis=rest)
            np.subtract(x, along(mean, axes, x.ndim), out=normal)
            count = seen.size // max(1, mean.size)
            deviations = normal if there is None else normal[there]
            squares = _sum_of_products(deviations, deviations, kept)
            if self.synchronized and call.sums is not None:
                own = mean
                mean, squares, count = _of_all(own, squares, count, call.sums)
                normal += along(own - mean, axes, x.ndim)
            variance = squares / np.float32(max(1, count))
            moved = squares / np.float32(max(1, count - 1)) if self._is_fused(x.ndim) else variance
            self._move(weights, {"moving_mean": mean, "moving_variance": moved}, call)
        else:
            variance = weights["moving_variance"]
            np.subtract(x, along(weights["moving_mean"], axes, x.ndim), out=normal)
        inverse = self.inverse_deviation(variance, x.ndim)
        normal *= along(inverse, axes, x.ndim)
        gamma = weights["gamma"] if self.scale else np.ones_like(inverse)
        y = np.multiply(normal, along(gamma, axes, x.ndim), out=call.scratch("y", x.shape))
        if self.center:
            y += along(weights["beta"], axes, x.ndim)
        return y, (normal, gamma * inverse, axes, count if from_batch else 0, there)

    def inverse_deviation(self, variance: Array, rank: int) -> Array:
        """Return 1 / sqrt(variance + epsilon), for an input of `rank` axes."""
        epsilon = max(self.epsilon, _FUSED_EPSILON_MIN) if self._is_fused(rank) else self.epsilon
        return np.asarray(1 / np.sqrt(variance + np.float32(epsilon)))

    def _is_fused(self, rank: int) -> bool:
        known = rank in (4, 5) and self.axes_of(self.axis, rank) in ((1,), (rank - 1,))
        return known and not self.synchronized

    def _move(self, weights: Arrays, batch: dict[str, Array], call: Call) -> None:
        for name, value in batch.items():
            old = weights[name]
            call.updates[name] = old + (value - old) * np.float32(1 - self.momentum)

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Go through the batch's mean and variance too, unless moving averages were used."""
        normal, factor, axes, count, there = cache
        dbeta = dy.sum(axis=tuple(axis for axis in range(dy.ndim) if axis not in axes))
        dgamma = _sum_of_products(dy, normal, axes)
        if self.center:
            gradients["beta"][...] = dbeta
        if self.scale:
            gradients["gamma"][...] = dgamma
        if count:  # else moving averages were used
            if self.synchronized and call.sums is not None:
                dbeta, dgamma = call.sums.of_gradients(np.stack([dbeta, dgamma]))
            normal *= along(dgamma / np.float32(count), axes, dy.ndim)
            normal += along(dbeta / np.float32(count), axes, dy.ndim)
            if there is not None:
                normal *= there[..., np.newaxis]
            dy -= normal
        dy *= along(factor, axes, dy.ndim)
        return dy


def _of_all(mean: Array, squares: Array, count: int, over: StepSums) -> tuple[Array, Array, int]:
    """Return mean, sum of squared deviations and count of the batch of all replicas, from those of one."""
    own = np.float64(count)
    wide = mean.astype(np.float64)
    # One sum for all: the deviations from the own mean, and the own mean's squares.
    sums = over.total(np.stack([np.full(mean.shape, own), own * wide, squares + own * wide * wide]))
    number = int(sums[0].flat[0]) if mean.size else count
    mean_of_all = sums[1] / max(1, number)
    squares_of_all = np.maximum(0.0, sums[2] - number * mean_of_all * mean_of_all)
    return mean_of_all.astype(mean.dtype), squares_of_all.astype(squares.dtype), number


@dataclass(eq=False)
class LayerNormalization(_Normalizing):
    """A layer that normalizes each example by itself over `axis`, and scales and shifts each place along it.

    The shape stays.

    Args:
        axis: the axis over which mean and variance are taken, or several, counted with the batch axis as 0.
        epsilon: is added to the variance.
        center: whether beta is added.
        scale: whether it is multiplied by gamma.
        beta_initializer: first values of beta.
        gamma_initializer: first values of gamma.
        beta_regularizer: penalty on beta.
        gamma_regularizer: penalty on gamma.
        beta_constraint: a limit of beta, kept after each update: a name or a `Constraint`.
        gamma_constraint: a limit of gamma, kept after each update: a name or a `Constraint`.
    """

    axis: int | Sequence[int] = -1
    epsilon: float = 1e-3
    center: bool = True
    scale: bool = True
    beta_initializer: InitializerLike = "zeros"
    gamma_initializer: InitializerLike = "ones"
    beta_regularizer: RegularizerLike = None
    gamma_regularizer: RegularizerLike = None
    beta_constraint: ConstraintLike = None
    gamma_constraint: ConstraintLike = None

    def declare(self, input_shape: Shape) -> Sequence[Weight]:
        """Return gamma and beta: one number for each place along the axes."""
        return _gamma_and_beta(self, self._kept_shape(input_shape, self.axis))

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Compute ``gamma * (x - mean) / sqrt(variance + epsilon) + beta``."""
        axes = self.axes_of(self.axis, x.ndim)
        normal = x - x.mean(axis=axes, keepdims=True)
        inverse = 1 / np.sqrt(np.mean(normal * normal, axis=axes, keepdims=True) + np.float32(self.epsilon))
        normal *= inverse
        y = normal * along(weights["gamma"], axes, x.ndim) if self.scale else normal.copy()
        if self.center:
            y += along(weights["beta"], axes, x.ndim)
        return y, (normal, inverse, axes)

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Go through each example's mean and variance."""
        normal, inverse, axes = cache
        over = tuple(axis for axis in range(dy.ndim) if axis not in axes)
        if self.center:
            np.sum(dy, axis=over, out=gradients["beta"])
        if self.scale:
            gradients["gamma"][...] = _sum_of_products(dy, normal, axes)
            dy *= along(weights["gamma"], axes, dy.ndim)
        projection = np.mean(dy * normal, axis=axes, keepdims=True)
        dy -= dy.mean(axis=axes, keepdims=True)
        dy -= normal * projection
        dy *= inverse
        return dy


def _gamma_and_beta(layer: "BatchNormalization | LayerNormalization", shape: tuple[int, ...]) -> list[Weight]:
    used = {"gamma": layer.scale, "beta": layer.center}
    return layer._declared(**{name: shape for name, is_used in used.items() if is_used})
