"""Conversion of a network and its weights to the ONNX format."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper

from dtrain.errors import InputError, SpecError
from dtrain.learning import layers as known
from dtrain.learning.graphs.graph import Graph, LayerStep, Slot
from dtrain.learning.layers import Embedding, InputLayer, IntegerLookup, Layer, StringLookup
from dtrain.saving import onnx_layers
from dtrain.saving.onnx_graph import OnnxGraph, OnnxUse, integers
from dtrain.types import Arrays, Shape

# What runtimes of 2024 and later read.
OPSET = 21
ML_OPSET = 4
IR_VERSION = 10

Converter = Callable[[OnnxGraph, OnnxUse], str | list[str]]

UNCHANGED = (
    known.Dropout,
    *(known.RandomFlip, known.RandomTranslation, known.RandomRotation, known.RandomZoom),
    *(known.RandomContrast, known.RandomBrightness),
)
"""Layers that hand their input on as it is outside of training."""
CONVERTERS: dict[type[Layer], Converter] = {
    known.Dense: onnx_layers.dense,
    known.Activation: lambda graph, use: onnx_layers.activated(graph, use, use.x, use.layer.activation),
    known.Softmax: lambda graph, use: graph.operator("Softmax", use.x, axis=use.layer.axis),
    known.ReLU: onnx_layers.relu,
    known.LeakyReLU: lambda graph, use: graph.operator("LeakyRelu", use.x, alpha=float(use.layer.alpha)),
    known.ELU: lambda graph, use: graph.operator("Elu", use.x, alpha=float(use.layer.alpha)),
    known.PReLU: lambda graph, use: graph.operator("PRelu", use.x, np.asarray(use.weights["alpha"])),
    **dict.fromkeys((known.Conv1D, known.Conv2D), onnx_layers.convolution),
    known.Conv2DTranspose: onnx_layers.transposed,
    known.DepthwiseConv2D: onnx_layers.depthwise,
    **dict.fromkeys((known.MaxPooling1D, known.MaxPooling2D), onnx_layers.pooling("MaxPool")),
    **dict.fromkeys((known.AveragePooling1D, known.AveragePooling2D), onnx_layers.pooling("AveragePool")),
    known.GlobalMaxPooling1D: onnx_layers.global_pooling("ReduceMax"),
    known.GlobalMaxPooling2D: onnx_layers.global_pooling("ReduceMax"),
    known.GlobalAveragePooling1D: onnx_layers.global_pooling("ReduceMean"),
    known.GlobalAveragePooling2D: onnx_layers.global_pooling("ReduceMean"),
    known.SimpleRNN: onnx_layers.simple_rnn,
    known.LSTM: onnx_layers.lstm,
    known.GRU: onnx_layers.gru,
    **dict.fromkeys(UNCHANGED, lambda graph, use: use.x),
    known.Flatten: lambda graph, use: graph.operator("Flatten", use.x, axis=1),
    # in ONNX 0 stands for the batch's length
    known.Reshape: lambda graph, use: graph.operator("Reshape", use.x, integers(0, *use.layer.target_shape)),
    known.Permute: lambda graph, use: graph.operator("Transpose", use.x, perm=[0, *use.layer.dims]),
    known.RepeatVector: onnx_layers.repeat_vector,
    known.ZeroPadding2D: onnx_layers.zero_padding,
    known.UpSampling2D: onnx_layers.up_sampling,
    known.Embedding: onnx_layers.embedding,
    known.BatchNormalization: onnx_layers.batch_normalization,
    known.LayerNormalization: onnx_layers.layer_normalization,
    known.Normalization: onnx_layers.normalization,
    known.Rescaling: onnx_layers.rescaling,
    known.Add: onnx_layers.merging("Sum"),
    known.Average: onnx_layers.merging("Mean"),
    known.Maximum: onnx_layers.merging("Max"),
    known.Minimum: onnx_layers.merging("Min"),
    known.Multiply: onnx_layers.folding("Mul"),
    known.Subtract: onnx_layers.folding("Sub"),
    known.Concatenate: lambda graph, use: graph.operator("Concat", *use.inputs, axis=use.layer.axis),
    **dict.fromkeys((known.StringLookup, known.IntegerLookup), onnx_layers.lookup),
}
"""The converter of each layer. `InputLayer` is an input of the graph."""


def onnx_model(graph: Graph, weights: Arrays, name: str) -> ModelProto:
    """Return a network in inference mode, inputs and outputs named as their layers; the batch size is free.

    Raises:
        InputError: shapes are not known.
        SpecError: ONNX has no form of a layer, which is named.
    """
    if not graph.built:
        raise InputError(
            f"{name}: its shapes are unknown; give the first layer an input_shape, or call build or fit first"
        )
    written = _GraphWriter(graph, weights)
    model = helper.make_model(
        helper.make_graph(
            written.onnx.nodes,
            name,
            written.inputs,
            written.outputs,
            initializer=list(written.onnx.constants.values()),
        ),
        producer_name="dtrain",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(onnx_layers.DOMAIN, ML_OPSET)],
    )
    checker.check_model(model, full_check=True)
    return model


class _GraphWriter:
    def __init__(self, graph: Graph, weights: Arrays) -> None:
        self.onnx = OnnxGraph()
        self._graph = graph
        self._weights = weights
        self._names: list[list[str]] = []
        self._types: dict[str, int] = {}
        self.inputs = [self._input(step) for step in graph.steps if isinstance(step.layer, InputLayer)]
        for step in graph.steps:
            self._names.append([step.path] if isinstance(step.layer, InputLayer) else self._step(step))
        self.outputs = [
            self._output(slot, name) for slot, name in zip(graph.outputs, graph.output_names, strict=True)
        ]

    def _input(self, step: LayerStep) -> Any:
        name = step.path
        onnx_type = self._input_type(step)
        self._types[name] = onnx_type
        return helper.make_tensor_value_info(name, onnx_type, _lengths(name, step.shapes[0]))

    def _input_type(self, step: LayerStep) -> int:
        """Return the type that the layer names; else the one that its readers want."""
        dtype = getattr(step.layer, "dtype", None)
        if dtype is not None:
            return (
                TensorProto.STRING
                if dtype == "string"
                else int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
            )
        number = self._graph.steps.index(step)
        readers = [
            each.layer for each in self._graph.steps if any(slot.step == number for slot in each.inputs)
        ]
        if readers and all(isinstance(layer, StringLookup) and not layer.invert for layer in readers):
            return int(TensorProto.STRING)
        of_integers = (Embedding, IntegerLookup, StringLookup)
        return int(
            TensorProto.INT64
            if readers and all(isinstance(layer, of_integers) for layer in readers)
            else TensorProto.FLOAT
        )

    def _step(self, step: LayerStep) -> list[str]:
        layer = step.layer
        if type(layer) not in CONVERTERS:
            raise SpecError(f"{layer.label}: cannot be exported: ONNX has no form of this layer")
        if step.training:
            raise SpecError(
                f"{layer.label}: cannot be exported: it was called with training=True, and ONNX files infer"
            )
        if step.arguments.tensors or step.arguments.options or getattr(layer, "mask_zero", False):
            raise SpecError(
                f"{layer.label}: cannot be exported: ONNX has no form of masks, or of arguments of a call"
            )
        self.onnx.scope = step.path
        arriving = [self._names[slot.step][slot.output] for slot in step.inputs]
        if not layer.any_dtype:
            arriving = [self._as_float(name) for name in arriving]
        use = OnnxUse(
            layer,
            {weight.name: self._weights[name] for weight, name in step.weights},
            arriving,
            [self._graph.steps[slot.step].shapes[slot.output] for slot in step.inputs],
        )
        written = CONVERTERS[type(layer)](self.onnx, use)
        names = [written] if isinstance(written, str) else written
        self._types.update(dict.fromkeys(names, self._type_after(layer, arriving[0])))
        return names

    def _as_float(self, name: str) -> str:
        if self._types[name] == TensorProto.FLOAT:
            return name
        cast = self.onnx.operator("Cast", name, to=TensorProto.FLOAT)
        self._types[cast] = TensorProto.FLOAT
        return cast

    def _type_after(self, layer: Layer, arriving: str) -> int:
        if isinstance(layer, StringLookup | IntegerLookup):
            if layer.invert:
                return int(TensorProto.STRING if isinstance(layer, StringLookup) else TensorProto.INT64)
            return int(TensorProto.INT64 if layer.output_mode == "int" else TensorProto.FLOAT)
        return (
            int(TensorProto.FLOAT)
            if not layer.any_dtype or isinstance(layer, Embedding)
            else self._types[arriving]
        )

    def _output(self, slot: Slot, wanted: str) -> Any:
        step = self._graph.steps[slot.step]
        value = self._names[slot.step][slot.output]
        taken = {name for node in self.onnx.nodes for name in node.output} | {
            each.name for each in self.inputs
        }
        name = next(
            each
            for each in (wanted, *(f"{wanted}_{number}" for number in range(1, len(taken) + 2)))
            if each not in taken
        )
        self.onnx.nodes.append(helper.make_node("Identity", [value], [name], name=f"{name}/output"))
        return helper.make_tensor_value_info(
            name, self._types[value], _lengths(name, step.shapes[slot.output])
        )


def _lengths(name: str, shape: Shape) -> Sequence[int | str]:
    """Return the lengths, with a name for each that is free."""
    return [
        "batch",
        *(f"{name}_{axis}" if length is None else length for axis, length in enumerate(shape, start=1)),
    ]
