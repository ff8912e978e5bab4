"""Functions of neural networks by the names of `tf.nn`; `dt.nn` has them.

Functions with an activation of `dt.activations` behind them have its derivative as their gradient.
"""

from typing import Any

import numpy as np

from dtrain.learning.core import activations
from dtrain.learning.core.activations import Activation
from dtrain.learning.functions.arithmetic import l2_normalize, sigmoid, softplus, tanh
from dtrain.learning.functions.recording import Computation, bare, compute
from dtrain.learning.functions.tensors import names_of, tensor, tensor_function
from dtrain.types import Array


class _Activating(Computation):
    """An activation function and its derivative as one node."""

    def __init__(self, activation: Activation) -> None:
        self._activation = activation

    def __str__(self) -> str:
        return self._activation.name

    def forward(self, *arrays: Array) -> Array:
        return self._activation(arrays[0])

    def backward(self, gradient: Any, *arrays: Array) -> list[Array]:
        _, kept = self._activation.apply(np.array(arrays[0], np.float32))
        before = np.array(arrays[0], np.float32) if self._activation.needs_x else kept[0]
        return [self._activation.apply_back((before, kept[1]), np.array(gradient, np.float32))]


def _activating(activation: Activation) -> Any:
    def run(features: Any) -> Any:
        return compute(_Activating(activation), tensor(features))

    run.__name__ = activation.name
    run.__doc__ = f"Return `dt.activations.{activation.name}` of `features`; see `tf.nn`."
    return tensor_function(run)


relu = _activating(activations.relu)
relu6 = _activating(activations.relu6)
elu = _activating(activations.elu)
selu = _activating(activations.selu)
silu = _activating(activations.silu)
swish = _activating(activations.swish)
softsign = _activating(activations.softsign)


@tensor_function
def gelu(features: Any, approximate: bool = False) -> Any:
    """Return `features` times the normal distribution's cumulative function; by tanh if `approximate`."""
    activation = activations.gelu_tanh if approximate else activations.gelu
    return compute(_Activating(activation), tensor(features))


@tensor_function
def leaky_relu(features: Any, alpha: float = 0.2) -> Any:
    """Return `features` where positive, `alpha` times them elsewhere."""
    x = tensor(features)
    return np.where(x > 0, x, x * np.float32(alpha))


@tensor_function
def log_softmax(logits: Any, axis: int = -1) -> Any:
    """Return the logarithm of softmax of `logits` along `axis`, which does not overflow."""
    x = tensor(logits)
    x = x - np.max(np.asarray(bare(x)), axis=axis, keepdims=True)
    return x - np.log(np.sum(np.exp(x), axis=axis, keepdims=True))


@tensor_function
def softmax(logits: Any, axis: int = -1) -> Any:
    """Return exp(x) / sum of exp(x) of `logits` along `axis`."""
    x = tensor(logits)
    x = np.exp(x - np.max(np.asarray(bare(x)), axis=axis, keepdims=True))
    return x / np.sum(x, axis=axis, keepdims=True)


@tensor_function
def sigmoid_cross_entropy_with_logits(labels: Any = None, logits: Any = None) -> Any:
    """Return the cross-entropy of `labels` from 0 to 1 with the sigmoid of `logits`, element by element."""
    x = tensor(logits)
    return np.where(x > 0, x, 0) - x * tensor(labels).astype(x.dtype) + np.log1p(np.exp(-np.abs(x)))


@tensor_function
def softmax_cross_entropy_with_logits(labels: Any, logits: Any, axis: int = -1) -> Any:
    """Return the cross-entropy of distributions, `labels`, with the softmax of `logits` along `axis`."""
    return -np.sum(tensor(labels).astype(np.float32) * log_softmax(logits, axis), axis=axis)


@tensor_function
def sparse_softmax_cross_entropy_with_logits(labels: Any, logits: Any) -> Any:
    """Return the cross-entropy of numbers of classes, `labels`, with the softmax of `logits`."""
    classes = np.asarray(bare(tensor(labels)))
    chances = log_softmax(logits)
    hit = np.arange(np.shape(chances)[-1]) == classes[..., np.newaxis]
    return -np.sum(chances * hit.astype(np.float32), axis=-1)


__all__ = names_of(__name__, l2_normalize, sigmoid, softplus, tanh)
