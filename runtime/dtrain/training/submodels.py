"""Models that stand in others as if they were layers, and the symbolic tensors between which a model lies."""

from collections.abc import Mapping
from typing import Any

from dtrain.errors import SpecError
from dtrain.learning.graphs.graph import Graph
from dtrain.learning.graphs.networks import Network
from dtrain.learning.graphs.wiring import Part, Submodel
from dtrain.learning.layers import Layer, SymbolicTensor

CLASSES: dict[str, type[Any]] = {}
"""The classes of models of which files know, by name; each adds itself where it is defined."""


def submodel(model: Any) -> Submodel:
    """Return the form in which a model stands in others, always the same object.

    A model of a class that files do not know takes the form of the class that it extends.
    """
    graph = model.network.graph
    if graph.submodel is None:
        kind = next(cls.__name__ for cls in type(model).__mro__ if cls in CLASSES.values())
        graph.submodel = Submodel(model.name, kind, graph, model)
    standing: Submodel = graph.submodel
    return standing


def shown(part: Part) -> Any:
    """Return the item of `Model.layers` for a part of a graph: a layer, or a model, made if from a file."""
    if isinstance(part, Layer):
        return part
    if part.model is None:
        graph = part.graph
        assert isinstance(graph, Graph)
        part.model = CLASSES[part.kind].of_network(Network(graph), part.name)
    return part.model


def in_order(tensors: Any, what: str) -> Any:
    """Return symbolic tensors in a list, in the order of their names if they stand in a dict.

    Raises:
        SpecError: a key is not the name of its tensor's layer.
    """
    if not isinstance(tensors, Mapping):
        return tensors
    for key, tensor in tensors.items():
        if isinstance(tensor, SymbolicTensor) and tensor.node.part.name != key:
            raise SpecError(
                f"{what}: expected the names of layers, found {key!r} for {tensor.node.part.label}; give it "
                f"name={key!r}"
            )
    return [tensors[key] for key in sorted(tensors)]
