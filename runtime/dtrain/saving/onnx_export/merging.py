"""Layers that join several inputs."""

from collections.abc import Callable
from functools import reduce

from dtrain.saving.onnx_export.graph import OnnxGraph, Use, integers

Converter = Callable[[OnnxGraph, Use], str]


def merging(kind: str) -> Converter:
    """Return a converter to an operator of any number of inputs: ``Sum``, ``Mean``, ``Max``, ``Min``."""
    return lambda graph, use: graph.operator(kind, *_aligned(graph, use))


def folding(kind: str) -> Converter:
    """Return a converter to an operator of two inputs, applied in turn: ``Mul``, ``Sub``."""
    return lambda graph, use: reduce(lambda a, b: graph.operator(kind, a, b), _aligned(graph, use))


def concatenate(graph: OnnxGraph, use: Use) -> str:
    """Concatenate the inputs."""
    return graph.operator("Concat", *use.inputs, axis=use.layer.axis)


def _aligned(graph: OnnxGraph, use: Use) -> list[str]:
    """Return the inputs with equally many axes; new ones stand behind the batch's."""
    rank = max(map(len, use.shapes))
    missing = [rank - len(shape) for shape in use.shapes]
    return [
        graph.operator("Unsqueeze", name, integers(*range(1, count + 1))) if count else name
        for name, count in zip(use.inputs, missing, strict=True)
    ]
