"""An ONNX graph while it is being written, and one use of a layer in it."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from dtrain.learning.layers import Layer
from dtrain.types import Array, Arrays, Shape

Value = str | Array
"""The name of a value in the graph, or an array that becomes a constant."""


class OnnxGraph(msgspec.Struct):
    """Operators and constants, in the order in which they were added."""

    nodes: list[NodeProto] = msgspec.field(default_factory=list)
    constants: dict[str, TensorProto] = msgspec.field(default_factory=dict)
    scope: str = ""

    def operator(self, kind: str, *inputs: Value, **attributes: Any) -> str:
        """Add an operator with one output, whose name is returned."""
        return self.operators(kind, *inputs, outputs=1, **attributes)[0]

    def operators(self, kind: str, *inputs: Value, outputs: int, **attributes: Any) -> list[str]:
        label = f"{self.scope}/{kind}_{len(self.nodes)}"
        names = [f"{label}:{number}" for number in range(outputs)]
        arguments = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        self.nodes.append(helper.make_node(kind, arguments, names, name=label, **attributes))
        return names

    def constant(self, array: Array, name: str = "") -> str:
        name = name or f"{self.scope}/constant_{len(self.constants)}"
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name


class OnnxUse(msgspec.Struct, frozen=True):
    """One use of a layer; shapes are those of one example."""

    layer: Any
    weights: Arrays
    inputs: Sequence[str]
    shapes: Sequence[Shape]

    @property
    def x(self) -> str:
        return self.inputs[0]

    @property
    def shape(self) -> Shape:
        return self.shapes[0]

    @property
    def rank(self) -> int:
        """The number of axes of the only input, with the batch axis."""
        return len(self.shape) + 1

    @property
    def label(self) -> str:
        layer: Layer = self.layer
        return layer.label


def numbers(*values: float) -> Array:
    """Return float32 numbers; one number becomes a scalar."""
    return np.array(values[0] if len(values) == 1 else values, np.float32)


def integers(*values: int) -> Array:
    return np.array(values, np.int64)
