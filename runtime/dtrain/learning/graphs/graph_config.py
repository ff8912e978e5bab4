"""Graphs as data in JSON types, there and back.

A config has a table of all layers, also of those in models within; a table of these models, if there are any;
for each use the number of its layer or model and the outputs that it reads; and the graph's outputs. A model
within has uses and outputs of its own, and may use the models before it in the table. A part that several
models share is thus one part again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dtrain.errors import SpecError
from dtrain.learning.core.configuration import CustomObjects, from_data, to_data
from dtrain.learning.graphs.wiring import InnerGraph, Part, Slot, Submodel, Use
from dtrain.learning.layers import CLASSES, Layer

KINDS = ("Model", "Sequential")

G = TypeVar("G", bound=InnerGraph)
Make = Callable[[Sequence[Use], Sequence[Slot]], G]
"""Makes a graph: the class `Graph`, or one that is derived from it."""


def to_config(graph: InnerGraph) -> dict[str, Any]:
    """Return a graph as data; raise a `SpecError` if a layer's argument cannot be written."""
    layers: dict[Part, int] = {}
    models: dict[Part, int] = {}
    described: list[dict[str, Any]] = []

    def collect(inner: InnerGraph) -> dict[str, Any]:
        for part in inner.names:
            if isinstance(part, Layer):
                layers.setdefault(part, len(layers))
            elif part not in models:
                description = {"name": part.name, "kind": part.kind, **collect(part.graph)}
                models[part] = len(models)
                described.append(description)
        return {
            "steps": [_use_to_data(use, layers, models) for use in inner.uses],
            "outputs": [list(slot) for slot in inner.leaving],
        }

    wiring = collect(graph)
    table = [
        to_data(layer) | ({"numbered": True} if getattr(layer, "numbered", False) else {}) for layer in layers
    ]
    return {"layers": table, **({"models": described} if described else {}), **wiring}


def from_config(config: Mapping[str, Any], make: Make[G], custom_objects: CustomObjects) -> G:
    """Return the graph, made by `make`, that `to_config` described, or raise a `SpecError`."""
    try:
        layers = [_layer_from_data(each, custom_objects) for each in config["layers"]]
        models: list[Submodel] = []
        for each in config.get("models", ()):
            if each["kind"] not in KINDS or not isinstance(each["name"], str):
                raise SpecError(
                    f"a model within: expected a name and one of {', '.join(KINDS)}, found "
                    f"{each['name']!r}, {each['kind']!r}"
                )
            inner = _graph_from_data(each, make, layers, models)
            inner.submodel = Submodel(each["name"], each["kind"], inner)
            models.append(inner.submodel)
        return _graph_from_data(config, make, layers, models)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise SpecError(f"the config of a network is malformed: {error!r}") from error


def _layer_from_data(data: Any, custom_objects: CustomObjects) -> Layer:
    layer: Layer = from_data(data, "layer", CLASSES, custom_objects)
    layer.numbered = bool(data.get("numbered", False))
    return layer


def _graph_from_data(
    data: Mapping[str, Any], make: Make[G], layers: Sequence[Layer], models: Sequence[Submodel]
) -> G:
    uses = [_use_from_data(each, layers, models) for each in data["steps"]]
    return make(uses, [Slot(*slot) for slot in data["outputs"]])


def _use_to_data(use: Use, layers: Mapping[Part, int], models: Mapping[Part, int]) -> dict[str, Any]:
    number = {"layer": layers[use.part]} if isinstance(use.part, Layer) else {"model": models[use.part]}
    told = {} if use.training is None else {"training": use.training}
    return {**number, "inputs": [list(slot) for slot in use.inputs], **told}


def _use_from_data(data: Mapping[str, Any], layers: Sequence[Layer], models: Sequence[Submodel]) -> Use:
    part: Part = models[data["model"]] if "model" in data else layers[data["layer"]]
    training = data.get("training")
    if training not in (None, True, False):
        raise SpecError(f"training: expected true or false, found {training!r}")
    return Use(part, tuple(Slot(*slot) for slot in data["inputs"]), training)
