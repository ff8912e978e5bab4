"""The layers of a network as operators of ONNX, family by family.

A converter gets a `OnnxUse` of its layer and adds operators of opset 21 to an `OnnxGraph`. Arrays stay as
dtrain has them, channels last; where ONNX wants them first, transpositions stand around the operator, and a
runtime merges those that meet. Recurrent cells have their gates in another order and two rows of biases.
Lookups are tables of the extension ``ai.onnx.ml``.

Source: https://onnx.ai/onnx/operators/
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeVar

import numpy as np
from onnx import TensorProto

from dtrain.errors import SpecError
from dtrain.learning.core import activations
from dtrain.learning.core.activations import ActivationLike
from dtrain.learning.layers import StringLookup
from dtrain.learning.layers.normalization import along
from dtrain.learning.layers.windows import Windows
from dtrain.saving.onnx_graph import OnnxGraph, OnnxUse, integers, numbers
from dtrain.types import Array, Shape

T = TypeVar("T")
Converter = Callable[[OnnxGraph, OnnxUse], str]


def convolution(graph: OnnxGraph, use: OnnxUse) -> str:
    """Kernels are [...lengths, channels / groups, filters]."""
    layer = use.layer
    rank = use.layer.RANK
    kernel = use.weights["kernel"].transpose(rank + 1, rank, *range(rank))
    return _convolved(graph, use, "Conv", kernel, _windows(use, layer.kernel_size), layer.groups)


def depthwise(graph: OnnxGraph, use: OnnxUse) -> str:
    """Kernels are [height, width, channels, multiplier]; there are as many groups as channels."""
    kernel = use.weights["depthwise_kernel"]
    height, width, channels, multiplier = kernel.shape
    kernel = kernel.transpose(2, 3, 0, 1).reshape(channels * multiplier, 1, height, width)
    return _convolved(graph, use, "Conv", kernel, _windows(use, use.layer.kernel_size), channels)


def transposed(graph: OnnxGraph, use: OnnxUse) -> str:
    """Kernels are [height, width, filters, channels]."""
    windows = _windows(use, use.layer.kernel_size)
    totals = [
        max(0, e - s) if windows.padding == "same" else 0
        for e, s in zip(windows.extent, windows.strides, strict=True)
    ]
    attributes = {
        "pads": [*(total // 2 for total in totals), *(total - total // 2 for total in totals)],
        "output_padding": [max(0, s - e) for e, s in zip(windows.extent, windows.strides, strict=True)],
    }
    return _convolved(
        graph, use, "ConvTranspose", use.weights["kernel"].transpose(3, 2, 0, 1), windows, 1, **attributes
    )


def pooling(kind: str) -> Converter:

    def convert(graph: OnnxGraph, use: OnnxUse) -> str:
        layer = use.layer
        strides = layer.pool_size if layer.strides is None else layer.strides
        windows = Windows.of(layer.RANK, use.label, layer.pool_size, strides, layer.padding)
        x = channels_first(graph, use.x, use.rank)
        y = graph.operator(
            kind, x, kernel_shape=windows.size, strides=windows.strides, **_margins(windows, use)
        )
        return channels_last(graph, y, use.rank)

    return convert


def global_pooling(kind: str) -> Converter:

    def convert(graph: OnnxGraph, use: OnnxUse) -> str:
        return graph.operator(
            kind, use.x, integers(*range(1, use.rank - 1)), keepdims=int(use.layer.keepdims)
        )

    return convert


def channels_first(graph: OnnxGraph, x: str, rank: int) -> str:
    return graph.operator("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])


def channels_last(graph: OnnxGraph, x: str, rank: int) -> str:
    return graph.operator("Transpose", x, perm=[0, *range(2, rank), 1])


def _windows(use: OnnxUse, size: Any) -> Windows:
    layer = use.layer
    return Windows.of(use.rank - 2, use.label, size, layer.strides, layer.padding, layer.dilation_rate)


def _convolved(
    graph: OnnxGraph, use: OnnxUse, kind: str, kernel: Array, windows: Windows, groups: int, **attributes: Any
) -> str:
    operands = [kernel, use.weights["bias"]] if use.layer.use_bias else [kernel]
    y = graph.operator(
        kind,
        channels_first(graph, use.x, use.rank),
        *operands,
        kernel_shape=windows.size,
        strides=windows.strides,
        dilations=windows.dilation,
        group=groups,
        **(attributes or _margins(windows, use)),
    )
    return activated(graph, use, channels_last(graph, y, use.rank), use.layer.activation)


def _margins(windows: Windows, use: OnnxUse) -> dict[str, Sequence[int]]:
    """Return the attribute `pads`: the extent of padding before all axes, then after all."""
    lengths: Shape = use.shape[:-1]
    known = tuple(length for length in lengths if length is not None)
    if len(known) < len(lengths):
        if windows.padding == "same" and any(stride > 1 for stride in windows.strides):
            raise SpecError(
                f"{use.label}: padding 'same' with strides needs known lengths to be exported, found "
                f"{lengths}"
            )
        # without strides the margins are those of any length
        known = tuple(length or max(windows.extent) for length in lengths)
    margins = windows.margins(known)
    return {"pads": [*(before for before, _ in margins), *(after for _, after in margins)]}


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


def activated(graph: OnnxGraph, use: OnnxUse, x: str, activation: ActivationLike) -> str:
    """Raise a `SpecError` for an activation that is the program's own function."""
    return _known(use, activation, FUNCTIONS)(graph, x)


def _known(use: OnnxUse, activation: ActivationLike, table: Mapping[str, T], where: str = "") -> T:
    function = activations.get(activation)
    if function.name not in table or function is not activations.get(function.name):
        raise SpecError(
            f"{use.label}: ONNX does not know the activation {function.name!r}{where}; it knows "
            f"{', '.join(table)}"
        )
    return table[function.name]


def dense(graph: OnnxGraph, use: OnnxUse) -> str:
    z = graph.operator("MatMul", use.x, use.weights["kernel"])
    if use.layer.use_bias:
        z = graph.operator("Add", z, use.weights["bias"])
    return activated(graph, use, z, use.layer.activation)


def relu(graph: OnnxGraph, use: OnnxUse) -> str:
    layer = use.layer
    threshold = numbers(use.layer.threshold)
    above = use.x if layer.max_value is None else graph.operator("Min", use.x, numbers(layer.max_value))
    below = graph.operator("Mul", graph.operator("Sub", use.x, threshold), numbers(layer.negative_slope))
    return graph.operator("Where", graph.operator("Greater", use.x, threshold), above, below)


def merging(kind: str) -> Converter:
    return lambda graph, use: graph.operator(kind, *_aligned(graph, use))


def folding(kind: str) -> Converter:
    """Return a converter to an operator of two inputs, applied in turn: ``Mul``, ``Sub``."""
    return lambda graph, use: reduce(lambda a, b: graph.operator(kind, a, b), _aligned(graph, use))


def _aligned(graph: OnnxGraph, use: OnnxUse) -> list[str]:
    """Return the inputs with equally many axes; new ones stand behind the batch's."""
    rank = max(map(len, use.shapes))
    missing = [rank - len(shape) for shape in use.shapes]
    return [
        graph.operator("Unsqueeze", name, integers(*range(1, count + 1))) if count else name
        for name, count in zip(use.inputs, missing, strict=True)
    ]


def repeat_vector(graph: OnnxGraph, use: OnnxUse) -> str:
    return graph.operator(
        "Expand", graph.operator("Unsqueeze", use.x, integers(1)), integers(1, use.layer.n, 1)
    )


def zero_padding(graph: OnnxGraph, use: OnnxUse) -> str:
    (top, bottom), (left, right) = use.layer.margins
    return graph.operator("Pad", use.x, integers(0, top, left, 0, 0, bottom, right, 0))


def up_sampling(graph: OnnxGraph, use: OnnxUse) -> str:
    size = use.layer.size
    height, width = (size, size) if isinstance(size, int) else size
    scales = numbers(1, height, width, 1)
    return graph.operator(
        "Resize",
        use.x,
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def embedding(graph: OnnxGraph, use: OnnxUse) -> str:
    return graph.operator(
        "Gather", use.weights["embeddings"], graph.operator("Cast", use.x, to=TensorProto.INT64)
    )


def batch_normalization(graph: OnnxGraph, use: OnnxUse) -> str:
    layer = use.layer
    axes = use.layer.axes_of(use.layer.axis, use.rank)
    inverse = layer.inverse_deviation(use.weights["moving_variance"], use.rank)
    factor = inverse * use.weights["gamma"] if layer.scale else inverse
    y = graph.operator("Sub", use.x, along(use.weights["moving_mean"], axes, use.rank))
    y = graph.operator("Mul", y, along(factor, axes, use.rank))
    return graph.operator("Add", y, along(use.weights["beta"], axes, use.rank)) if layer.center else y


def layer_normalization(graph: OnnxGraph, use: OnnxUse) -> str:
    layer = use.layer
    axes = use.layer.axes_of(use.layer.axis, use.rank)
    centred = graph.operator("Sub", use.x, graph.operator("ReduceMean", use.x, integers(*axes)))
    variance = graph.operator("ReduceMean", graph.operator("Mul", centred, centred), integers(*axes))
    y = graph.operator(
        "Div", centred, graph.operator("Sqrt", graph.operator("Add", variance, numbers(layer.epsilon)))
    )
    if layer.scale:
        y = graph.operator("Mul", y, along(use.weights["gamma"], axes, use.rank))
    return graph.operator("Add", y, along(use.weights["beta"], axes, use.rank)) if layer.center else y


def normalization(graph: OnnxGraph, use: OnnxUse) -> str:
    mean, deviation = use.layer.mean_and_deviation(use.rank)
    if use.layer.invert:
        return graph.operator("Add", graph.operator("Mul", use.x, deviation), mean)
    return graph.operator("Div", graph.operator("Sub", use.x, mean), deviation)


def rescaling(graph: OnnxGraph, use: OnnxUse) -> str:
    scaled = graph.operator("Mul", use.x, _float32(use.layer.scale))
    return graph.operator("Add", scaled, _float32(use.layer.offset))


def _float32(values: object) -> Array:
    return np.asarray(values, np.float32)


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


def simple_rnn(graph: OnnxGraph, use: OnnxUse) -> str | list[str]:
    return _recurrent(graph, use, "RNN", [0], [use.layer.activation])


def lstm(graph: OnnxGraph, use: OnnxUse) -> str | list[str]:
    """Reorder the gates i, f, c, o to ONNX's i, o, f, c."""
    layer = use.layer
    return _recurrent(
        graph, use, "LSTM", [0, 3, 1, 2], [layer.recurrent_activation, layer.activation, layer.activation]
    )


def gru(graph: OnnxGraph, use: OnnxUse) -> str | list[str]:
    """Keep the order of the gates, z, r, h, which is ONNX's."""
    layer = use.layer
    functions = [layer.recurrent_activation, layer.activation]
    return _recurrent(graph, use, "GRU", [0, 1, 2], functions, linear_before_reset=int(layer.reset_after))


def _recurrent(
    graph: OnnxGraph,
    use: OnnxUse,
    kind: str,
    gates: Sequence[int],
    functions: Sequence[ActivationLike],
    **attributes: Any,
) -> str | list[str]:
    """Write the loop: [time, batch, features] to [time, 1, batch, units] and states [1, batch, units]."""
    layer = use.layer
    known = [_known(use, each, _FUNCTIONS, " within a cell") for each in functions]
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


def _biases(use: OnnxUse, gates: Sequence[int]) -> Array:
    bias = np.atleast_2d(use.weights["bias"])
    both = bias if len(bias) == 2 else np.concatenate([bias, np.zeros_like(bias)])
    return _by_gate(both, gates).reshape(1, -1)


DOMAIN = "ai.onnx.ml"
_NOWHERE = -1


def lookup(graph: OnnxGraph, use: OnnxUse) -> str:
    """Map tokens to integers or encodings, or back; raise a `SpecError` if ONNX has no form of it."""
    layer = use.layer
    strings = isinstance(use.layer, StringLookup)
    tokens = layer.get_vocabulary(include_special_tokens=False)
    if not tokens:
        raise SpecError(f"{use.label}: has no vocabulary; give one, or call adapt(data) first")
    if layer.invert:
        table = layer.get_vocabulary()
        ids = graph.operator("Cast", use.x, to=TensorProto.INT64)
        return _translated(graph, ids, list(range(len(table))), table, layer.oov_token)
    if layer.num_oov_indices != 1:
        raise SpecError(
            f"{use.label}: in ONNX unknown tokens have one integer; expected num_oov_indices 1, found "
            f"{layer.num_oov_indices}"
        )
    first = layer.vocabulary_size() - len(tokens)
    keys = list(tokens)
    ids_of = [first + index for index in range(len(tokens))]
    if layer.mask_token is not None:
        keys = [layer.mask_token, *keys]
        ids_of = [0 if layer.output_mode == "int" else _NOWHERE, *ids_of]
    x = use.x if strings else graph.operator("Cast", use.x, to=TensorProto.INT64)
    ids = _translated(graph, x, keys, ids_of, first - 1)
    return ids if layer.output_mode == "int" else _encoded(graph, use, ids)


def _translated(graph: OnnxGraph, x: str, keys: list[Any], values: list[Any], default: Any) -> str:
    attributes = {
        f"keys_{_kind(keys[0])}s": keys,
        f"values_{_kind(values[0])}s": values,
        f"default_{_kind(values[0])}": default,
    }
    return graph.operator("LabelEncoder", x, domain=DOMAIN, **attributes)


def _encoded(graph: OnnxGraph, use: OnnxUse, ids: str) -> str:
    """Return 0 and 1, or counts, over the vocabulary, summed over the last axis (one_hot: of length 1)."""
    layer = use.layer
    hits = graph.operator("Equal", graph.operator("Unsqueeze", ids, integers(-1)), np.arange(layer.depth))
    encoded = graph.operator("Cast", hits, to=TensorProto.FLOAT)
    if use.rank > 1 and (layer.output_mode != "one_hot" or use.shape[-1] == 1):
        encoded = graph.operator("ReduceSum", encoded, integers(-2), keepdims=0)
    if layer.output_mode == "tf_idf":
        return graph.operator("Mul", encoded, layer.rarities)
    return graph.operator("Min", encoded, np.float32(1)) if layer.output_mode == "multi_hot" else encoded  # type: ignore[arg-type]


def _kind(value: Any) -> str:
    return "string" if isinstance(value, str) else "int64"
