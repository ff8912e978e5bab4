"""The `call` of a subclassed model as a graph of layers: it is run once, on symbols.

Where it asks ``if training:``, the answer is yes, and the layers of that branch do in inference what they
then do: dropout, noise and augmentation nothing. A second run with the answer no tells whether that holds.
"""

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dtrain.errors import ProgramError
from dtrain.learning.functions.tensors import leaves
from dtrain.learning.graphs.graph import Part, Submodel
from dtrain.learning.layers import Input, Layer, SymbolicTensor
from dtrain.types import Shape

IDLE = ("Dropout", "SpatialDropout", "GaussianNoise", "Random")
"""How the names of layers begin that do nothing in inference."""


class TracedPhase:
    """The value of `training` in a run; layers that it is handed to do as the model does."""

    def __init__(self, assumed: bool) -> None:
        self.assumed = assumed
        self.asked = False

    def __bool__(self) -> bool:
        self.asked = True
        return self.assumed


def traced(model: Any, shapes: Sequence[Shape], keys: Sequence[str] | None) -> tuple[Any, Any]:
    """Return symbolic inputs of a model with a `call`, and what it makes of them.

    Args:
        model: of a class with a `call`.
        shapes: of one example of each input.
        keys: the names of the inputs, if it takes a dict of them.

    Raises:
        ProgramError: it returns something else than results of layers, or computes something else with than
            without training.
    """
    names: list[str | None] = [None] * len(shapes) if keys is None else [*keys]
    inputs = [Input(shape, name=name) for shape, name in zip(shapes, names, strict=True)]
    given: Any = dict(zip(keys, inputs, strict=True)) if keys else inputs if len(inputs) > 1 else inputs[0]
    phase = TracedPhase(True)
    outputs = _run(model, given, phase)
    if phase.asked and _kinds(outputs) != _kinds(_run(model, given, TracedPhase(False))):
        raise ProgramError(
            f"{model.name}: expected layers under `if training:` that do nothing in inference, such as "
            "Dropout; write the `if` into the `call` of a layer of your own, which is run at each step"
        )
    return (given if keys else inputs), list(outputs) if isinstance(outputs, tuple) else outputs


def attributes(model: Any, parts: Iterable[Part]) -> list[Part]:
    """Return those of a graph's parts that a model has for attributes, in their order."""
    forms = {id(part.model if isinstance(part, Submodel) else part): part for part in parts}
    return list(dict.fromkeys(forms[id(each)] for each in leaves(vars(model)) if id(each) in forms))


def _run(model: Any, given: Any, phase: TracedPhase) -> Any:
    takes_training = "training" in inspect.signature(model.call).parameters
    outputs = model.call(given, **({"training": phase} if takes_training else {}))
    for each in _each(outputs):
        if not isinstance(each, SymbolicTensor):
            raise ProgramError(
                f"{model.name}: expected `call` to return results of layers and functions of dt, found "
                f"{type(each).__name__}"
            )
    return outputs


def _each(outputs: Any) -> list[Any]:
    found = outputs.values() if isinstance(outputs, Mapping) else outputs
    return list(found) if isinstance(outputs, Mapping | list | tuple) else [outputs]


def _kinds(outputs: Any) -> Counter[Any]:
    """Return what makes outputs beside layers that do nothing in inference: the parts, or kinds of them."""
    nodes = {each.node for each in _each(outputs)}
    new = nodes
    while new:
        new = {each.node for node in new for each in node.inputs} - nodes
        nodes |= new
    found = Counter[Any]()
    for part in {node.part for node in nodes}:
        kind = type(part)
        has_weights = getattr(kind, "declare", None) is not Layer.declare
        found[part if has_weights else kind] += not kind.__name__.startswith(IDLE)
    return +found
