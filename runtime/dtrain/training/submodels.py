"""Models that stand in others as if they were layers."""

from typing import Any

from dtrain.learning.layers import Layer
from dtrain.learning.networks import Network
from dtrain.learning.wiring import Part, Submodel

CLASSES: dict[str, type[Any]] = {}
"""The classes of models of which files know, by name; each adds itself where it is defined."""


def submodel(model: Any) -> Submodel:
    """How a model stands in others; always the same. One of a class that files do not know is what that class extends."""
    graph = model.network.graph
    if graph.submodel is None:
        kind = next(cls.__name__ for cls in type(model).__mro__ if cls in CLASSES.values())
        graph.submodel = Submodel(model.name, kind, graph, model)
    standing: Submodel = graph.submodel
    return standing


def shown(part: Part) -> Any:
    """What `Model.layers` shows for a part of a graph: the layer, or the model, which is made here if the part came from a file."""
    if isinstance(part, Layer):
        return part
    if part.model is None:
        part.model = CLASSES[part.kind].of_network(Network(part.graph), part.name)
    return part.model
