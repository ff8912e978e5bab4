"""The `call` of a subclassed model as a graph of layers: it is run once, on symbols.

Where it asks ``if training:``, it is run twice, and the results are joined by a layer that takes one of them.
What both runs have in common stands in the graph once; the rest of the run without training is always
computed without it.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from dtrain.errors import ProgramError
from dtrain.learning.layers import Input, SymbolicTensor
from dtrain.learning.layers.base import LayerNode, TracedPhase
from dtrain.learning.layers.tensor_functions import InTrainPhase
from dtrain.types import Shape


def traced(model: Any, shapes: Sequence[Shape], keys: Sequence[str] | None) -> tuple[Any, Any]:
    """Return symbolic inputs of a model with a `call`, and what it makes of them.

    Args:
        model: of a class with a `call`.
        shapes: of one example of each input.
        keys: the names of the inputs, if it takes a dict of them.

    Raises:
        ProgramError: it returns something else than results of layers.
    """
    names: list[str | None] = [None] * len(shapes) if keys is None else [*keys]
    inputs = [Input(shape, name=name) for shape, name in zip(shapes, names, strict=True)]
    given: Any = dict(zip(keys, inputs, strict=True)) if keys else inputs if len(inputs) > 1 else inputs[0]
    phase = TracedPhase(assumed=False)
    outputs = _run(model, given, phase)
    if phase.asked:
        outputs = _joined(_run(model, given, TracedPhase(assumed=True)), outputs, inputs)
    return (given if keys else inputs), outputs


def _run(model: Any, given: Any, phase: TracedPhase) -> Any:
    takes_training = "training" in inspect.signature(model.call).parameters
    outputs = model.call(given, **({"training": phase} if takes_training else {}))
    found = outputs.values() if isinstance(outputs, Mapping) else outputs
    for each in found if isinstance(outputs, Mapping | list | tuple) else [outputs]:
        if not isinstance(each, SymbolicTensor):
            raise ProgramError(
                f"{model.name}: expected `call` to return results of layers and functions of dt, found "
                f"{type(each).__name__}"
            )
    return list(outputs) if isinstance(outputs, tuple) else outputs


def _joined(training: Any, otherwise: Any, inputs: Sequence[SymbolicTensor]) -> Any:
    if isinstance(training, Mapping):
        return {key: _joined(each, otherwise[key], inputs) for key, each in training.items()}
    if isinstance(training, list):
        return [_joined(each, other, inputs) for each, other in zip(training, otherwise, strict=True)]
    known: dict[Any, LayerNode] = {}
    _note(training.node, known)
    other = _merged(otherwise, known, {})
    return training if _key(training) == _key(other) else InTrainPhase()([training, other])


def _key(tensor: SymbolicTensor) -> tuple[int, int]:
    return id(tensor.node), tensor.index


def _note(node: LayerNode, known: dict[Any, LayerNode]) -> None:
    for tensor in node.inputs:
        _note(tensor.node, known)
    known[node.part, tuple(map(_key, node.inputs)), node.training] = node


def _merged(
    tensor: SymbolicTensor, known: Mapping[Any, LayerNode], made: dict[int, LayerNode]
) -> SymbolicTensor:
    """Return a result with nodes of `known` in the place of equal ones, and others without training."""
    node = tensor.node
    if node.inputs and id(node) not in made:
        inputs = tuple(_merged(each, known, made) for each in node.inputs)
        same = known.get((node.part, tuple(map(_key, inputs)), node.training))
        made[id(node)] = same or LayerNode(node.part, inputs, bool(node.training))
    return SymbolicTensor(made.get(id(node), node), tensor.index, tensor.of_one, tensor.dtype)
