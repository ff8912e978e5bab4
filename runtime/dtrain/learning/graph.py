"""How layers are wired: a list of steps, each of which uses a layer on outputs of earlier steps.

A stack of layers and a graph with branches are the same thing here. A graph is data: `Graph.get_config` and back.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self

from dtrain.errors import InputError, SpecError
from dtrain.learning.arrays import Shape, fits, shape_text
from dtrain.learning.configuration import NO_OBJECTS, CustomObjects, from_data, to_data
from dtrain.learning.layers import CLASSES, InputLayer, Layer, SymbolicTensor, Weight
from dtrain.learning.layers.base import Node
from dtrain.learning.layers.pooled_convolution import pooled


class Slot(NamedTuple):
    """One output of one step."""

    step: int
    output: int


@dataclass(slots=True, eq=False)
class Step:
    """One use of a layer.

    Attributes:
        inputs: earlier steps' outputs.
        shapes: of the outputs, for one example; empty until the graph is built.
        weights: what the layer declared, and the model's name of each.
        trained: those that have gradients, unless the layer is frozen.
    """

    layer: Layer
    inputs: tuple[Slot, ...] = ()
    shapes: list[Shape] = field(default_factory=list)
    weights: tuple[tuple[Weight, str], ...] = ()
    trained: tuple[tuple[Weight, str], ...] = ()


class Graph:
    """Steps, and which of their outputs are the model's.

    Layers without a name are given Keras's: ``dense``, ``dense_1``, ..., numbered within this graph.

    Attributes:
        steps: in an order in which they can run.
        inputs: the steps at which data enters.
        outputs: the model's outputs.
        built: whether shapes and weights are known.
        regularized: the weights with a penalty, and the model's name of each.
    """

    def __init__(self, steps: Sequence[Step], outputs: Sequence[Slot]) -> None:
        self.steps = tuple(steps)
        self.outputs = tuple(outputs)
        self.inputs = tuple(step for step in steps if isinstance(step.layer, InputLayer))
        self.built = False
        self.regularized: tuple[tuple[Weight, str], ...] = ()
        self._check_wiring()
        _name_layers(self.layers)
        shapes = [step.layer.input_shape for step in self.inputs]
        if all(shape is not None for shape in shapes):
            self.build(shapes if len(shapes) > 1 else shapes[0])

    @classmethod
    def of_stack(cls, layers: Sequence[Layer | SymbolicTensor]) -> Self:
        """Layers one after the other; an `InputLayer` is put in front if there is none, nor an ``Input(...)``."""
        stack = [item.node.layer if isinstance(item, SymbolicTensor) else item for item in layers]
        if not stack:
            raise SpecError("a network needs at least one layer")
        if not isinstance(stack[0], InputLayer):
            stack.insert(0, InputLayer(input_shape=stack[0].input_shape))
        steps = [Step(layer, (Slot(index - 1, 0),) if index else ()) for index, layer in enumerate(stack)]
        return cls(steps, [Slot(len(steps) - 1, 0)])

    @classmethod
    def between(cls, inputs: Any, outputs: Any) -> Self:
        """What lies between symbolic inputs (results of `Input`) and outputs, each one tensor or a list of them."""
        entering, leaving = as_list(inputs), as_list(outputs)
        nodes: dict[Node, int] = {}
        for tensor in [*entering, *leaving]:
            _collect(tensor.node, nodes)
        sources = [node for node in nodes if not node.inputs]
        if sources != [tensor.node for tensor in entering]:
            raise SpecError(f"the outputs depend on {len(sources)} inputs, but {len(entering)} were named: name each of them once")
        steps = [Step(node.layer, tuple(Slot(nodes[t.node], t.index) for t in node.inputs)) for node in nodes]
        return cls(steps, [Slot(nodes[t.node], t.index) for t in leaving])

    def replayed(self, entering: Sequence[SymbolicTensor]) -> list[SymbolicTensor]:
        """The outputs of the same layers for other inputs, within another graph.

        Raises:
            InputError: there are more or fewer inputs, or a shape is another.
        """
        if len(entering) != len(self.inputs):
            raise InputError(f"expected {len(self.inputs)} inputs, found {len(entering)}")
        for step, tensor in zip(self.inputs, entering, strict=True):
            if step.shapes and not fits(tuple(length or -1 for length in tensor.shape), step.shapes[0]):
                label, found = step.layer.label, shape_text(tensor.shape)
                raise InputError(f"{label}: expected an input of shape {shape_text(step.shapes[0])}, found {found}")
        source, produced = iter(entering), list[list[SymbolicTensor]]()
        for step in self.steps:
            arriving = [produced[slot.step][slot.output] for slot in step.inputs]
            result = step.layer(arriving if step.layer.takes_list else arriving[0]) if arriving else next(source)
            produced.append(result if isinstance(result, list) else [result])
        return [produced[slot.step][slot.output] for slot in self.outputs]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Every layer once, in order of first use."""
        return tuple(dict.fromkeys(step.layer for step in self.steps))

    def build(self, input_shape: Any) -> None:
        """Work out all shapes and weights for inputs of `input_shape`: of one example, a list of shapes for several inputs.

        Raises:
            InputError: a layer cannot take the shape; it is named.
        """
        shapes = list(input_shape) if len(self.inputs) > 1 else [input_shape]
        if len(shapes) != len(self.inputs):
            raise InputError(f"expected shapes of {len(self.inputs)} inputs, found {len(shapes)}")
        for step, shape in zip(self.inputs, shapes, strict=True):
            step.layer.input_shape = tuple(shape)
            step.shapes = [tuple(shape)]
        declared: dict[Layer, tuple[Weight, ...]] = {}
        for step in self.steps:
            if not step.inputs:
                continue
            arriving = [self.steps[slot.step].shapes[slot.output] for slot in step.inputs]
            shape = arriving if step.layer.takes_list else arriving[0]
            produced = step.layer.output_shape(shape)
            step.shapes = produced if isinstance(produced, list) else [produced]
            weights = tuple(step.layer.declare(shape))
            if declared.setdefault(step.layer, weights) != weights:
                raise InputError(f"{step.layer.label}: is used twice, on shapes that need different weights")
            step.weights = tuple((weight, f"{step.layer.name}/{weight.name}") for weight in weights)
            step.trained = tuple((weight, name) for weight, name in step.weights if weight.trainable)
        self.regularized = tuple((weight, name) for _, weight, name in self.weights() if weight.regularizer is not None)
        self.built = True

    def weights(self) -> Iterable[tuple[Layer, Weight, str]]:
        """Every weight once, in creation order: its layer, what was declared, its name."""
        seen: set[Layer] = set()
        for step in self.steps:
            for weight, name in step.weights if step.layer not in seen else ():
                yield step.layer, weight, name
            seen.add(step.layer)

    @cached_property
    def uses(self) -> dict[Layer, int]:
        """How often each layer is used."""
        return dict(Counter(step.layer for step in self.steps))

    @cached_property
    def stand_ins(self) -> dict[int, Layer]:
        """Layers that compute faster what some steps compute together, by the steps' numbers."""
        found: dict[int, Layer] = {}
        for number, step in enumerate(self.steps):
            source = step.inputs[0].step if len(step.inputs) == 1 else number
            together = pooled(self.steps[source].layer, step.layer)
            if together is not None and self.readers(source) == 1:
                found |= {source: together, number: InputLayer(name=step.layer.name)}
        return found

    @cached_property
    def output_names(self) -> list[str]:
        """Of the outputs' layers, numbered where a layer has several."""
        names: list[str] = []
        for slot in self.outputs:
            base = str(self.steps[slot.step].layer.name)
            numbered = (f"{base}_{number}" if number else base for number in range(len(self.outputs)))
            names.append(next(name for name in numbered if name not in names))
        return names

    def readers(self, number: int) -> int:
        """How often the outputs of a step are read, by other steps or as the model's."""
        read = [*self.outputs, *(slot for step in self.steps for slot in step.inputs)]
        return sum(slot.step == number for slot in read)

    def get_config(self) -> dict[str, Any]:
        """The graph in JSON types: its layers, and for each step the layer's number and where its inputs come from."""
        number = {layer: index for index, layer in enumerate(self.layers)}
        return {
            "layers": [to_data(layer) for layer in self.layers],
            "steps": [{"layer": number[step.layer], "inputs": [list(slot) for slot in step.inputs]} for step in self.steps],
            "outputs": [list(slot) for slot in self.outputs],
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: CustomObjects = NO_OBJECTS) -> Self:
        """The graph that `get_config` described; classes of your own must be among `custom_objects`.

        Raises:
            SpecError: an unknown layer, or a config that is none.
        """
        try:
            layers = [from_data(each, "layer", CLASSES, custom_objects) for each in config["layers"]]
            steps = [Step(layers[step["layer"]], tuple(Slot(*slot) for slot in step["inputs"])) for step in config["steps"]]
            return cls(steps, [Slot(*slot) for slot in config["outputs"]])
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise SpecError(f"the config of a network does not have its form: {error!r}") from error

    def _check_wiring(self) -> None:
        for index, step in enumerate(self.steps):
            label = step.layer.label
            if isinstance(step.layer, InputLayer) == bool(step.inputs):
                raise SpecError(f"step {index}, {label}: input layers, and only they, read no other step")
            if not all(0 <= slot.step < index and slot.output >= 0 for slot in step.inputs):
                raise SpecError(f"step {index}, {label}: reads {step.inputs}, which are not all outputs of earlier steps")
            if len(step.inputs) > 1 and not step.layer.takes_list:
                raise SpecError(f"step {index}, {label}: expected one input, found {len(step.inputs)}")
        if not self.outputs or not all(0 <= slot.step < len(self.steps) and slot.output >= 0 for slot in self.outputs):
            raise SpecError(f"a network needs outputs of its {len(self.steps)} steps, found {self.outputs}")


def _name_layers(layers: Sequence[Layer]) -> None:
    given = Counter(layer.name for layer in layers if layer.name is not None)
    if twice := sorted(name for name, count in given.items() if count > 1):
        raise SpecError(f"names of layers must be unique; found twice: {twice}; give the layers names of their own")
    taken, numbers = set(given), Counter[str]()
    for layer in layers:
        while layer.name is None:
            number = numbers[layer.base_name]
            name = f"{layer.base_name}_{number}" if number else layer.base_name
            numbers[layer.base_name] += 1
            if name not in taken:
                layer.name = name


def _collect(node: Node, nodes: dict[Node, int]) -> None:
    """Number `node` after everything that it reads."""
    if node not in nodes:
        for tensor in node.inputs:
            _collect(tensor.node, nodes)
        nodes[node] = len(nodes)


def as_list(tensors: Any) -> list[SymbolicTensor]:
    """One symbolic tensor, or several, as a list."""
    given = [tensors] if isinstance(tensors, SymbolicTensor) else list(tensors)
    for tensor in given:
        if not isinstance(tensor, SymbolicTensor):
            raise SpecError(f"expected results of Input() or of layers, found {type(tensor).__name__}")
    return given
