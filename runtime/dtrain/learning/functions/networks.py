"""Functions of neural networks by the names of `tf.nn`; `dt.nn` has them.

Those that are activations of `dt.activations` have its derivative as their gradient.
"""

from importlib import import_module
from typing import Any

import numpy as np

from dtrain.learning.core import activations
from dtrain.learning.core.activations import Activation
from dtrain.learning.core.arrays import as_float32
from dtrain.learning.core.results import result_of
from dtrain.learning.functions import arithmetic
from dtrain.learning.functions.recording import bare, compute
from dtrain.learning.functions.tensors import Symbol, plain, tensor, tensor_function
from dtrain.types import Array

__all__ = [
    *("elu", "gelu", "l2_normalize", "leaky_relu", "log_softmax", "relu", "relu6", "selu", "sigmoid"),
    *("sigmoid_cross_entropy_with_logits", "silu", "softmax", "softmax_cross_entropy_with_logits"),
    *("softplus", "softsign", "sparse_softmax_cross_entropy_with_logits", "swish", "tanh"),
]


def activated(activation: Activation, x: Any) -> Any:
    """Return the value of an activation at arrays, symbols, variables, or what a tape records."""
    if isinstance(x, Symbol):
        return import_module("dtrain.learning.layers").Activation(activation.name)(x)

    def forward(array: Array) -> Array:
        return activation.forward(np.array(as_float32(array, activation.name)))

    def backward(gradient: Any, array: Array) -> list[Array]:
        _, kept = activation.apply(np.array(array, np.float32))
        return [activation.apply_back(kept, np.array(gradient, np.float32))]

    return result_of(compute(activation.name, forward, backward, tensor(plain(x))))


l2_normalize = arithmetic.l2_normalize
_ACTIVATIONS = "elu relu relu6 selu sigmoid silu softplus softsign swish tanh"
globals().update({name: getattr(activations, name) for name in _ACTIVATIONS.split()})


def gelu(features: Any, approximate: bool = False) -> Any:
    """Return `features` times the normal distribution's cumulative function; by tanh if `approximate`."""
    return (activations.gelu_tanh if approximate else activations.gelu)(features)


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
    return np.exp(log_softmax(logits, axis))


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
    hit = np.eye(np.shape(bare(tensor(logits)))[-1], dtype=np.float32)[np.asarray(bare(tensor(labels)))]
    return softmax_cross_entropy_with_logits(hit, logits)
