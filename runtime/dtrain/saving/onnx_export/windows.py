"""Convolution and pooling: channels come first in ONNX, in images and kernels."""

from collections.abc import Callable, Sequence
from typing import Any

from dtrain.errors import SpecError
from dtrain.learning.layers.windows import Windows
from dtrain.saving.onnx_export.functions import activated
from dtrain.saving.onnx_export.graph import OnnxGraph, Use, integers
from dtrain.types import Array, Shape

Converter = Callable[[OnnxGraph, Use], str]


def convolution(graph: OnnxGraph, use: Use) -> str:
    """Convolve over one or two axes; kernels are [...lengths, channels / groups, filters]."""
    layer = use.layer
    rank = use.layer.RANK
    kernel = use.weights["kernel"].transpose(rank + 1, rank, *range(rank))
    return _convolved(graph, use, "Conv", kernel, _windows(use, layer.kernel_size), layer.groups)


def depthwise(graph: OnnxGraph, use: Use) -> str:
    """Convolve in as many groups as channels; kernels are [height, width, channels, multiplier]."""
    kernel = use.weights["depthwise_kernel"]
    height, width, channels, multiplier = kernel.shape
    kernel = kernel.transpose(2, 3, 0, 1).reshape(channels * multiplier, 1, height, width)
    return _convolved(graph, use, "Conv", kernel, _windows(use, use.layer.kernel_size), channels)


def transposed(graph: OnnxGraph, use: Use) -> str:
    """Compute as `Conv2DTranspose`; kernels are [height, width, filters, channels]."""
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
    """Return a converter to windows of ``MaxPool`` or ``AveragePool``."""

    def convert(graph: OnnxGraph, use: Use) -> str:
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
    """Return a converter to ``ReduceMax`` or ``ReduceMean`` over all inner axes."""

    def convert(graph: OnnxGraph, use: Use) -> str:
        return graph.operator(
            kind, use.x, integers(*range(1, use.rank - 1)), keepdims=int(use.layer.keepdims)
        )

    return convert


def channels_first(graph: OnnxGraph, x: str, rank: int) -> str:
    """Transpose [batch, ...lengths, channels] to [batch, channels, ...lengths]."""
    return graph.operator("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])


def channels_last(graph: OnnxGraph, x: str, rank: int) -> str:
    """Transpose [batch, channels, ...lengths] to [batch, ...lengths, channels]."""
    return graph.operator("Transpose", x, perm=[0, *range(2, rank), 1])


def _windows(use: Use, size: Any) -> Windows:
    layer = use.layer
    return Windows.of(use.rank - 2, use.label, size, layer.strides, layer.padding, layer.dilation_rate)


def _convolved(
    graph: OnnxGraph, use: Use, kind: str, kernel: Array, windows: Windows, groups: int, **attributes: Any
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


def _margins(windows: Windows, use: Use) -> dict[str, Sequence[int]]:
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
