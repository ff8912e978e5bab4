"""Layers that rearrange values, look up rows, and scale to mean 0 and variance 1."""

import numpy as np
from onnx import TensorProto

from dtrain.learning.layers.normalization import along
from dtrain.saving.onnx_export.graph import OnnxGraph, Use, integers, numbers
from dtrain.types import Array


def unchanged(graph: OnnxGraph, use: Use) -> str:
    """Return the input: dropout does nothing in inference."""
    return use.x


def flatten(graph: OnnxGraph, use: Use) -> str:
    """Flatten all axes but the batch's into one."""
    return graph.operator("Flatten", use.x, axis=1)


def reshape(graph: OnnxGraph, use: Use) -> str:
    """Reshape; 0 stands for the batch's length."""
    return graph.operator("Reshape", use.x, integers(0, *use.layer.target_shape))


def permute(graph: OnnxGraph, use: Use) -> str:
    """Transpose; `dims` are counted from 1."""
    return graph.operator("Transpose", use.x, perm=[0, *use.layer.dims])


def repeat_vector(graph: OnnxGraph, use: Use) -> str:
    """Add an axis along which everything repeats."""
    return graph.operator(
        "Expand", graph.operator("Unsqueeze", use.x, integers(1)), integers(1, use.layer.n, 1)
    )


def zero_padding(graph: OnnxGraph, use: Use) -> str:
    """Pad before all axes, then after all."""
    (top, bottom), (left, right) = use.layer.margins
    return graph.operator("Pad", use.x, integers(0, top, left, 0, 0, bottom, right, 0))


def up_sampling(graph: OnnxGraph, use: Use) -> str:
    """Repeat every pixel."""
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


def embedding(graph: OnnxGraph, use: Use) -> str:
    """Gather rows of a table."""
    return graph.operator(
        "Gather", use.weights["embeddings"], graph.operator("Cast", use.x, to=TensorProto.INT64)
    )


def batch_normalization(graph: OnnxGraph, use: Use) -> str:
    """Normalize by the moving averages."""
    layer = use.layer
    axes = use.layer.axes_of(use.layer.axis, use.rank)
    inverse = layer.inverse_deviation(use.weights["moving_variance"], use.rank)
    factor = inverse * use.weights["gamma"] if layer.scale else inverse
    y = graph.operator("Sub", use.x, along(use.weights["moving_mean"], axes, use.rank))
    y = graph.operator("Mul", y, along(factor, axes, use.rank))
    return graph.operator("Add", y, along(use.weights["beta"], axes, use.rank)) if layer.center else y


def layer_normalization(graph: OnnxGraph, use: Use) -> str:
    """Normalize each example by itself."""
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


def normalization(graph: OnnxGraph, use: Use) -> str:
    """Normalize by the given or learned mean and variance."""
    mean, deviation = use.layer.mean_and_deviation(use.rank)
    if use.layer.invert:
        return graph.operator("Add", graph.operator("Mul", use.x, deviation), mean)
    return graph.operator("Div", graph.operator("Sub", use.x, mean), deviation)


def rescaling(graph: OnnxGraph, use: Use) -> str:
    """Multiply and add, one factor and offset for all or for each channel."""
    scaled = graph.operator("Mul", use.x, _float32(use.layer.scale))
    return graph.operator("Add", scaled, _float32(use.layer.offset))


def _float32(values: object) -> Array:
    return np.asarray(values, np.float32)
