"""SimpleRNN, LSTM and GRU: ONNX has the same cells, with gates in another order and two rows of biases."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.core import activations
from dtrain.learning.core.activations import ActivationLike
from dtrain.saving.onnx_export.graph import OnnxGraph, Use, integers
from dtrain.types import Array

# Name, alpha, beta of ONNX's functions within cells.
_FUNCTIONS: dict[str, tuple[str, float, float]] = {
    "tanh": ("Tanh", 0.0, 0.0),
    "sigmoid": ("Sigmoid", 0.0, 0.0),
    "relu": ("Relu", 0.0, 0.0),
    "hard_sigmoid": ("HardSigmoid", 0.2, 0.5),
    "softsign": ("Softsign", 0.0, 0.0),
    "softplus": ("Softplus", 0.0, 0.0),
    "elu": ("Elu", 1.0, 0.0),
    "linear": ("Affine", 1.0, 0.0),
}


def simple_rnn(graph: OnnxGraph, use: Use) -> str | list[str]:
    """Write a cell with one gate."""
    return _cell(graph, use, "RNN", [0], [use.layer.activation])


def lstm(graph: OnnxGraph, use: Use) -> str | list[str]:
    """Write a cell with gates i, f, c, o, which are i, o, f, c in ONNX."""
    layer = use.layer
    return _cell(
        graph, use, "LSTM", [0, 3, 1, 2], [layer.recurrent_activation, layer.activation, layer.activation]
    )


def gru(graph: OnnxGraph, use: Use) -> str | list[str]:
    """Write a cell with gates z, r, h, as in ONNX."""
    layer = use.layer
    functions = [layer.recurrent_activation, layer.activation]
    return _cell(graph, use, "GRU", [0, 1, 2], functions, linear_before_reset=int(layer.reset_after))


def _cell(
    graph: OnnxGraph,
    use: Use,
    kind: str,
    gates: Sequence[int],
    functions: Sequence[ActivationLike],
    **attributes: Any,
) -> str | list[str]:
    """Write the loop: [time, batch, features] to [time, 1, batch, units] and states [1, batch, units]."""
    layer = use.layer
    known = [_function(use, each) for each in functions]
    steps = graph.operator("Transpose", use.x, perm=[1, 0, 2])
    if layer.go_backwards:
        steps = graph.operator(
            "Slice", steps, integers(-1), integers(np.iinfo(np.int64).min), integers(0), integers(-1)
        )
    y, *states = graph.operators(
        kind,
        steps,
        _by_gate(use.weights["kernel"], gates).swapaxes(1, 2),
        _by_gate(use.weights["recurrent_kernel"], gates).swapaxes(1, 2),
        *([_biases(use, gates)] if layer.use_bias else []),
        outputs=1 + layer.STATES,
        hidden_size=layer.units,
        activations=[name for name, _, _ in known],
        activation_alpha=[alpha for _, alpha, _ in known],
        activation_beta=[beta for _, _, beta in known],
        **attributes,
    )
    finals = [graph.operator("Squeeze", state, integers(0)) for state in states]
    output = finals[0]
    if layer.return_sequences:
        output = graph.operator("Transpose", graph.operator("Squeeze", y, integers(1)), perm=[1, 0, 2])
    return [output, *finals] if layer.return_state else output


def _by_gate(array: Array, gates: Sequence[int]) -> Array:
    """Return [..., gates * units] as [1, ..., gates * units] with the gates in ONNX's order."""
    parts = np.split(array, len(gates), axis=-1)
    return np.concatenate([parts[gate] for gate in gates], axis=-1)[np.newaxis]


def _biases(use: Use, gates: Sequence[int]) -> Array:
    """Return the biases of the inputs, then those of the state."""
    bias = np.atleast_2d(use.weights["bias"])
    both = bias if len(bias) == 2 else np.concatenate([bias, np.zeros_like(bias)])
    return _by_gate(both, gates).reshape(1, -1)


def _function(use: Use, activation: ActivationLike) -> tuple[str, float, float]:
    function = activations.get(activation)
    if function.name not in _FUNCTIONS or function is not activations.get(function.name):
        raise SpecError(
            f"{use.label}: ONNX does not know the activation {function.name!r} within a cell; it knows "
            f"{', '.join(_FUNCTIONS)}"
        )
    return _FUNCTIONS[function.name]
