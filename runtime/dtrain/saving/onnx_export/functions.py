"""Dense layers, and activation functions by themselves or at the end of a layer."""

from collections.abc import Callable

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.core import activations
from dtrain.learning.core.activations import ActivationLike
from dtrain.saving.onnx_export.graph import OnnxGraph, Use, numbers

_SELU = {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}

FUNCTIONS: dict[str, Callable[[OnnxGraph, str], str]] = {
    "linear": lambda graph, x: x,
    "relu": lambda graph, x: graph.operator("Relu", x),
    "relu6": lambda graph, x: graph.operator("Clip", x, numbers(0), numbers(6)),
    "sigmoid": lambda graph, x: graph.operator("Sigmoid", x),
    "tanh": lambda graph, x: graph.operator("Tanh", x),
    "softmax": lambda graph, x: graph.operator("Softmax", x, axis=-1),
    "log_softmax": lambda graph, x: graph.operator("LogSoftmax", x, axis=-1),
    "elu": lambda graph, x: graph.operator("Elu", x),
    "selu": lambda graph, x: graph.operator("Selu", x, **_SELU),
    "softplus": lambda graph, x: graph.operator("Softplus", x),
    "softsign": lambda graph, x: graph.operator("Softsign", x),
    "exponential": lambda graph, x: graph.operator("Exp", x),
    "hard_sigmoid": lambda graph, x: graph.operator("HardSigmoid", x, alpha=0.2, beta=0.5),
    "swish": lambda graph, x: graph.operator("Mul", x, graph.operator("Sigmoid", x)),
    "silu": lambda graph, x: graph.operator("Mul", x, graph.operator("Sigmoid", x)),
    "mish": lambda graph, x: graph.operator("Mish", x),
    "gelu": lambda graph, x: graph.operator("Gelu", x),
    "gelu_tanh": lambda graph, x: graph.operator("Gelu", x, approximate="tanh"),
}


def activated(graph: OnnxGraph, use: Use, x: str, activation: ActivationLike) -> str:
    """Apply `activation` to a value; raise a `SpecError` for the program's own functions."""
    function = activations.get(activation)
    if function is not activations.get(function.name if function.name in FUNCTIONS else None):
        raise SpecError(
            f"{use.label}: ONNX does not know the activation {function.name!r}; it knows "
            f"{', '.join(FUNCTIONS)}"
        )
    return FUNCTIONS[function.name](graph, x)


def dense(graph: OnnxGraph, use: Use) -> str:
    """Multiply over the last axis."""
    z = graph.operator("MatMul", use.x, use.weights["kernel"])
    if use.layer.use_bias:
        z = graph.operator("Add", z, use.weights["bias"])
    return activated(graph, use, z, use.layer.activation)


def activation(graph: OnnxGraph, use: Use) -> str:
    """Apply an activation function as a layer."""
    return activated(graph, use, use.x, use.layer.activation)


def softmax(graph: OnnxGraph, use: Use) -> str:
    """Apply softmax along any axis."""
    return graph.operator("Softmax", use.x, axis=use.layer.axis)


def relu(graph: OnnxGraph, use: Use) -> str:
    """Apply ReLU with its slope, threshold and maximum."""
    layer = use.layer
    threshold = numbers(use.layer.threshold)
    above = use.x if layer.max_value is None else graph.operator("Min", use.x, numbers(layer.max_value))
    below = graph.operator("Mul", graph.operator("Sub", use.x, threshold), numbers(layer.negative_slope))
    return graph.operator("Where", graph.operator("Greater", use.x, threshold), above, below)


def leaky_relu(graph: OnnxGraph, use: Use) -> str:
    """Apply LeakyReLU, with one slope for all."""
    return graph.operator("LeakyRelu", use.x, alpha=float(use.layer.alpha))


def elu(graph: OnnxGraph, use: Use) -> str:
    """Apply ELU with its alpha."""
    return graph.operator("Elu", use.x, alpha=float(use.layer.alpha))


def prelu(graph: OnnxGraph, use: Use) -> str:
    """Apply PReLU, with a learned slope for each place."""
    return graph.operator("PRelu", use.x, np.asarray(use.weights["alpha"]))
