"""A model as a table of layers, shapes and numbers of parameters, in the form of `tf.keras.Model.summary`."""

from collections.abc import Iterable
from math import prod

from dtrain.learning.graphs.graph import Graph
from dtrain.learning.layers import InputLayer, Layer
from dtrain.types import Shape
from dtrain.variables import VariableSpec

LINE_LENGTH = 65
UNITS = ("Byte", "KB", "MB", "GB", "TB")


def summary(
    name: str, graph: Graph, variables: Iterable[VariableSpec], line_length: int = LINE_LENGTH
) -> str:
    """Return the table of a built graph, at least `line_length` wide; a stack's lacks the connections."""
    is_stack = all(
        [slot.step for slot in use.inputs] == [index - 1]
        for index, use in enumerate(graph.uses)
        if use.inputs
    )
    rows = _rows(graph, is_stack)
    widths = [max(len(row[column]) for row in rows) + 2 for column in range(len(rows[0]))]
    length = max(line_length, sum(widths))
    head, *body = (
        " " + "".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    specs = list(variables)
    totals = [
        _total("Total", specs),
        _total("Trainable", [spec for spec in specs if spec.trainable]),
        _total("Non-trainable", [spec for spec in specs if not spec.trainable]),
    ]
    return "\n".join(
        [f'Model: "{name}"', "_" * length, head, "=" * length, *body, "=" * length, *totals, "_" * length]
    )


def _rows(graph: Graph, is_stack: bool) -> list[list[str]]:
    """Return the header, and a row for each use; only a layer's first row has its parameters."""
    rows = [["Layer (type)", "Output Shape", "Param #", "Connected to"]]
    sizes = dict[Layer, int]()
    for layer, weight, _ in graph.weights():
        sizes[layer] = sizes.get(layer, 0) + prod(weight.shape)
    for number, use in enumerate(graph.uses):
        if is_stack and isinstance(use.part, InputLayer):
            continue
        kind = type(use.part).__name__ if isinstance(use.part, Layer) else use.part.kind
        layers = [use.part] if isinstance(use.part, Layer) else use.part.graph.layers
        count = sum(sizes.pop(layer, 0) for layer in layers)
        sources = [f"{graph.names[graph.uses[slot.step].part]}[{slot.output}]" for slot in use.inputs]
        shapes = ", ".join(map(_shape, graph.shapes_of(number)))
        rows.append([f"{graph.names[use.part]} ({kind})", shapes, str(count), ", ".join(sources)])
    return [row[:3] for row in rows] if is_stack else rows


def _shape(shape: Shape) -> str:
    return f"({', '.join(str(length) for length in (None, *shape))}{',' if not shape else ''})"


def _total(what: str, specs: list[VariableSpec]) -> str:
    size = float(sum(spec.nbytes for spec in specs))
    unit = 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size = size / 1024
        unit = unit + 1
    return f"{what} params: {sum(spec.size for spec in specs)} ({size:.2f} {UNITS[unit]})"
