"""A model's layers wired together: from weights and data to outputs, a loss and gradients.

A `Network` knows its layers and how they are connected, and declares its variables. It never holds weights: they are passed
to every call, and gradients are written into arrays that are passed too. It does hold scratch memory, so one network serves one
thread at a time; another thread makes its own with ``Network.from_config(network.get_config())``.

A stack of layers and a graph are the same thing here: a list of steps, each of which uses a layer on outputs of earlier steps.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from dtrain.errors import InputError, SpecError
from dtrain.learning import initializers, regularizers
from dtrain.learning.arrays import Array, Shape, as_float32, fits, shape_text
from dtrain.learning.configuration import from_data, to_data
from dtrain.learning.layers import CLASSES, Call, InputLayer, Layer, SymbolicTensor, Weight
from dtrain.learning.layers.base import Node
from dtrain.learning.sparse_rows import SparseRows
from dtrain.variables import VariableSpec

OnGradients = Callable[[tuple[str, ...]], None]


class Loss(Protocol):
    """What `Network.loss_and_gradients` needs of a loss."""

    def value_and_gradient(self, y_true: Any, y_pred: Array, sample_weight: Any) -> tuple[float, Array]:
        """The loss of a batch, and its gradient by `y_pred`, in y_pred's shape and dtype."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One training step's results besides the gradients, which are in the arrays that were passed.

    Attributes:
        loss: with the penalties of regularizers.
        outputs: the model's output; a list of them if it has several.
        state_updates: new values of variables that are not trained, such as moving averages, by variable name.
        row_gradients: gradients of variables for which no array was passed (see `Network.sparse_variables`), by variable name.
    """

    loss: float
    outputs: Any
    state_updates: dict[str, Array]
    row_gradients: dict[str, SparseRows]


class Slot(NamedTuple):
    """One output of one step."""

    step: int
    output: int


@dataclass(slots=True)
class Step:
    """One use of a layer.

    Attributes:
        inputs: earlier steps' outputs.
        shapes: of the outputs, for one example; empty until the network is built.
        needs_input_gradient: whether anything before this step is trained.
        memory: the layer's scratch memory for this use.
    """

    layer: Layer
    inputs: tuple[Slot, ...]
    shapes: list[Shape] = field(default_factory=list)
    needs_input_gradient: bool = False
    memory: dict[str, Array] = field(default_factory=dict)

    def call(self, training: bool, rng: np.random.Generator | None) -> Call:
        """The context of one run of this step."""
        return Call(training, rng, self.needs_input_gradient, _memory=self.memory)


class Network:
    """A stack of layers, or (`Network.from_graph`) a graph of them.

    Args:
        layers: applied one after the other. The shape of the data comes from an `InputLayer` or `input_shape` in front, or from
            `build`.

    Layers without a name are given Keras's: ``dense``, ``dense_1``, ..., numbered within this network.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        stack = list(layers)
        if not stack:
            raise SpecError("a network needs at least one layer")
        if not isinstance(stack[0], InputLayer):
            stack.insert(0, InputLayer(input_shape=stack[0].input_shape))
        steps = [Step(layer, (Slot(index - 1, 0),) if index else ()) for index, layer in enumerate(stack)]
        self._connect(steps, [Slot(len(steps) - 1, 0)])

    @classmethod
    def from_graph(cls, inputs: Any, outputs: Any) -> Self:
        """The network between symbolic inputs (results of `Input`) and outputs, each one tensor or a list of them."""
        nodes: list[Node] = []
        for tensor in [*_as_list(inputs), *_as_list(outputs)]:
            _collect(tensor.node, nodes)
        position = {node: index for index, node in enumerate(nodes)}
        steps = [Step(node.layer, tuple(Slot(position[t.node], t.index) for t in node.inputs)) for node in nodes]
        n_inputs = sum(isinstance(node.layer, InputLayer) for node in nodes)
        if n_inputs != len(_as_list(inputs)):
            raise SpecError(f"the outputs depend on {n_inputs} inputs, but {len(_as_list(inputs))} were named")
        network = cls.__new__(cls)
        network._connect(steps, [Slot(position[t.node], t.index) for t in _as_list(outputs)])
        return network

    def _connect(self, steps: list[Step], outputs: list[Slot]) -> None:
        self._steps = steps
        self._outputs = outputs
        self._inputs = [step for step in steps if isinstance(step.layer, InputLayer)]
        self.layers: tuple[Layer, ...] = tuple(dict.fromkeys(step.layer for step in steps))
        self._uses = Counter(step.layer for step in steps)
        self._weights: dict[Layer, tuple[Weight, ...]] = {}
        self.variables: tuple[VariableSpec, ...] = ()
        _name_layers(self.layers)
        shapes = [step.layer.input_shape for step in self._inputs]
        if all(shape is not None for shape in shapes):
            self.build(_only(shapes))

    # Declaring

    @property
    def built(self) -> bool:
        """Whether the shapes of the inputs are known, and so the variables."""
        return bool(self._weights)

    def build(self, input_shape: Any) -> None:
        """Work out all shapes and variables for inputs of `input_shape` (of one example; a list of shapes for several inputs).

        Raises:
            InputError: a layer cannot take the shape; it is named.
        """
        shapes = [tuple(shape) for shape in (input_shape if len(self._inputs) > 1 else [input_shape])]
        for step, shape in zip(self._inputs, shapes, strict=True):
            step.layer.input_shape = shape
        declared: dict[Layer, tuple[Weight, ...]] = {}
        for step in self._steps:
            arriving: list[Shape] = [self._steps[slot.step].shapes[slot.output] for slot in step.inputs]
            if not arriving:
                step.shapes = [tuple(step.layer.input_shape or ())]
                declared[step.layer] = ()
                continue
            shape = arriving if step.layer.takes_list else arriving[0]
            produced = step.layer.output_shape(shape)
            step.shapes = produced if isinstance(produced, list) else [produced]
            weights = tuple(step.layer.declare(shape))
            if declared.setdefault(step.layer, weights) != weights:
                raise InputError(f"{step.layer.label}: is used twice, on shapes that need different weights")
            step.needs_input_gradient = any(self._is_trained(self._steps[slot.step], declared) for slot in step.inputs)
        self._weights = declared
        self.variables = tuple(
            VariableSpec(_full_name(layer, weight), weight.shape, weight.dtype, weight.trainable and layer.trainable)
            for layer, weights in declared.items()
            for weight in weights
        )

    @staticmethod
    def _is_trained(step: Step, declared: Mapping[Layer, tuple[Weight, ...]]) -> bool:
        return step.needs_input_gradient or (step.layer.trainable and any(w.trainable for w in declared[step.layer]))

    @property
    def input_shapes(self) -> list[Shape]:
        """Of one example of each input."""
        return [step.shapes[0] for step in self._inputs]

    @property
    def output_shapes(self) -> list[Shape]:
        """Of one example of each output."""
        return [self._steps[slot.step].shapes[slot.output] for slot in self._outputs]

    @property
    def sparse_variables(self) -> tuple[str, ...]:
        """Variables whose gradient may be `SparseRows`: leave their array out of `gradients` and it comes in `row_gradients`."""
        return tuple(
            _full_name(layer, weight)
            for layer, weights in self._weights.items()
            for weight in weights
            if weight.sparse and weight.regularizer is None
        )

    def initial_values(self, seed: int) -> dict[str, Array]:
        """Every variable's first value. Each is drawn from (seed, its name): the same in any cluster, whatever else there is."""
        return {
            _full_name(layer, weight): initializers.get(weight.initializer)(
                weight.shape, np.random.default_rng([seed, *_full_name(layer, weight).encode()])
            ).astype(weight.dtype, copy=False)
            for layer, weights in self._weights.items()
            for weight in weights
        }

    # Running

    def predict(self, weights: Mapping[str, Array], x: Any) -> Any:
        """The outputs for a batch `x` in inference mode: a new array, or a list of them if the model has several outputs."""
        values, _ = self._forward(weights, x, training=False, rng=None)
        return _only([np.array(values[slot.step][slot.output]) for slot in self._outputs])

    def loss_and_gradients(
        self,
        weights: Mapping[str, Array],
        x: Any,
        y: Any,
        loss: Loss | Sequence[Loss],
        gradients: Mapping[str, Array],
        *,
        sample_weight: Any = None,
        rng: np.random.Generator,
        on_gradients: OnGradients | None = None,
    ) -> StepResult:
        """One training step on one batch: fill `gradients` and return the rest.

        Args:
            weights: every variable's array by name.
            x: the batch; a list, or a mapping by input name, if there are several inputs.
            y: the targets; a list if there are several outputs.
            loss: one for all outputs, or a list; losses of several outputs are added.
            gradients: an array for every trained variable, overwritten; see `sparse_variables` for the exception.
            sample_weight: handed to the loss.
            rng: for dropout and the like.
            on_gradients: called with names of variables as soon as their gradients are complete, last layer first.

        Raises:
            InputError: x does not fit, or is empty.
        """
        values, caches = self._forward(weights, x, training=True, rng=rng)
        outputs = [values[slot.step][slot.output] for slot in self._outputs]
        targets = list(y) if len(outputs) > 1 else [y]
        losses = list(loss) if isinstance(loss, Sequence) else [loss] * len(outputs)
        if not len(targets) == len(losses) == len(outputs):
            raise InputError(f"expected targets and losses for {len(outputs)} outputs, found {len(targets)} and {len(losses)}")
        if not len(outputs[0]):
            raise InputError(f"{self._inputs[0].layer.label}: expected at least one example, found an empty batch")
        total = self.regularization_loss(weights)
        upstream = _Upstream()
        for slot, output, target, each in zip(self._outputs, outputs, targets, losses, strict=True):
            value, gradient = each.value_and_gradient(target, output, sample_weight)
            total += value
            upstream.add(slot, gradient)
        calls = [call for call, _ in caches]
        updates = {
            f"{step.layer.name}/{name}": value
            for step, call in zip(self._steps, calls, strict=True)
            for name, value in call.updates.items()
        }
        rows = self._backward(weights, caches, values, upstream, gradients, on_gradients)
        return StepResult(total, _only([np.array(output) for output in outputs]), updates, rows)

    def regularization_loss(self, weights: Mapping[str, Array]) -> float:
        """The sum of all penalties."""
        return sum(penalty(weights[name]) for name, penalty in self._penalties(self.layers))

    def _penalties(self, layers: Iterable[Layer]) -> Iterable[tuple[str, regularizers.Regularizer]]:
        for layer in layers:
            for weight in self._weights[layer]:
                penalty = regularizers.get(weight.regularizer)
                if penalty is not None:
                    yield _full_name(layer, weight), penalty

    def _forward(
        self, weights: Mapping[str, Array], x: Any, training: bool, rng: np.random.Generator | None
    ) -> tuple[list[list[Array]], list[tuple[Call, Any]]]:
        """Every step's outputs, and its call and cache."""
        entering = iter(self._entering(x))
        values: list[list[Array]] = []
        caches: list[tuple[Call, Any]] = []
        for step in self._steps:
            layer = step.layer
            arriving = [values[slot.step][slot.output] for slot in step.inputs] or [next(entering)]
            if not layer.any_dtype:
                arriving = [as_float32(array, layer.label) for array in arriving]
            call = step.call(training, rng)
            mine = {weight.name: weights[_full_name(layer, weight)] for weight in self._weights[layer]}
            y, cache = layer.forward(mine, arriving if layer.takes_list else arriving[0], call)
            values.append(y if isinstance(y, list) else [y])
            caches.append((call, cache))
        return values, caches

    def _entering(self, x: Any) -> list[Array]:
        """The inputs as arrays, checked against the shapes of the inputs."""
        if not self.built:
            raise InputError("the network is not built: give its first layer an input_shape, or call build")
        if len(self._inputs) == 1 and not isinstance(x, Mapping):
            given = [x]
        else:
            given = [x.get(step.layer.name) for step in self._inputs] if isinstance(x, Mapping) else list(x)
        if len(given) != len(self._inputs):
            raise InputError(f"expected {len(self._inputs)} inputs, found {len(given)}")
        arrays = [np.asarray(each) for each in given]
        for step, array in zip(self._inputs, arrays, strict=True):
            if array.ndim == 0 or not fits(array.shape[1:], step.shapes[0]):
                reader = next((each.layer for each in self._steps if self._reads(each, step)), step.layer)
                raise InputError(f"{reader.label}: expected an input of shape {shape_text(step.shapes[0])}, found {array.shape}")
            if len(array) != len(arrays[0]):
                raise InputError(f"{step.layer.label}: expected {len(arrays[0])} examples, found {len(array)}")
        return arrays

    def _reads(self, step: Step, source: Step) -> bool:
        return any(self._steps[slot.step] is source for slot in step.inputs)

    def _backward(
        self,
        weights: Mapping[str, Array],
        caches: list[tuple[Call, Any]],
        values: list[list[Array]],
        upstream: "_Upstream",
        gradients: Mapping[str, Array],
        on_gradients: OnGradients | None,
    ) -> dict[str, SparseRows]:
        """Last step first: fill `gradients`, return the sparse ones."""
        collected = _Collected(gradients, dict(self._uses))
        for index in reversed(range(len(self._steps))):
            step, (call, cache) = self._steps[index], caches[index]
            layer = step.layer
            if not self._is_trained(step, self._weights):
                continue
            dy = upstream.take(index, values[index])
            trained = [w for w in self._weights[layer] if w.trainable]
            mine = {weight.name: weights[_full_name(layer, weight)] for weight in self._weights[layer]}
            places = collected.arrays(layer, trained, call)
            dx = layer.backward(mine, cache, dy, places, call)
            for slot, gradient in zip(step.inputs, dx if layer.takes_list else [dx], strict=True):
                upstream.add(slot, gradient)
            if collected.finish(layer, places, call) and layer.trainable and trained:
                for name, penalty in self._penalties([layer]):
                    penalty.add_gradient(weights[name], gradients[name])
                if on_gradients is not None:
                    on_gradients(tuple(_full_name(layer, weight) for weight in trained))
        return collected.rows

    # As data

    def get_config(self) -> dict[str, Any]:
        """The network in JSON types: its layers, and for each step the layer's number and where its inputs come from."""
        number = {layer: index for index, layer in enumerate(self.layers)}
        return {
            "layers": [to_data(layer) for layer in self.layers],
            "steps": [{"layer": number[step.layer], "inputs": [list(slot) for slot in step.inputs]} for step in self._steps],
            "outputs": [list(slot) for slot in self._outputs],
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_layers: Iterable[type[Layer]] = ()) -> Self:
        """The network that `get_config` described; layers of your own must be named in `custom_layers`.

        Raises:
            SpecError: an unknown layer, or a config that is none.
        """
        classes = {**CLASSES, **{layer.__name__: layer for layer in custom_layers}}
        try:
            layers = [from_data(each, "layer", classes) for each in config["layers"]]
            steps = [Step(layers[step["layer"]], tuple(Slot(*slot) for slot in step["inputs"])) for step in config["steps"]]
            outputs = [Slot(*slot) for slot in config["outputs"]]
        except (KeyError, IndexError, TypeError) as error:
            raise SpecError(f"the config of a network does not have its form: {error!r}") from error
        for index, step in enumerate(steps):
            source = isinstance(step.layer, InputLayer)
            if source == bool(step.inputs) or not all(0 <= slot.step < index for slot in step.inputs):
                raise SpecError(f"the config of a network: step {index} ({step.layer.label}) must read earlier steps")
        network = cls.__new__(cls)
        network._connect(steps, outputs)
        return network


class _Upstream:
    """Gradients by the steps' outputs, added up where an output is read more than once."""

    def __init__(self) -> None:
        self._gradients: dict[Slot, Array] = {}

    def add(self, slot: Slot, gradient: Array | None) -> None:
        """Add a gradient; the array is ours from now on."""
        if gradient is None:
            return
        if slot in self._gradients:
            self._gradients[slot] += gradient
        else:
            self._gradients[slot] = gradient

    def take(self, step: int, outputs: list[Array]) -> Any:
        """The gradient by the outputs of a step; 0 for outputs that nobody read."""
        taken = [self._gradients.pop(Slot(step, index), None) for index in range(len(outputs))]
        return _only([np.zeros_like(y) if dy is None else dy for dy, y in zip(taken, outputs, strict=True)])


class _Collected:
    """The gradients by the weights. A frozen layer's, and those of a layer's second use, go to scratch memory first."""

    def __init__(self, gradients: Mapping[str, Array], uses: dict[Layer, int]) -> None:
        self.rows: dict[str, SparseRows] = {}
        self._gradients = gradients
        self._uses_left = uses
        self._begun: set[Layer] = set()

    def arrays(self, layer: Layer, trained: Sequence[Weight], call: Call) -> dict[str, Array]:
        """Where `layer` shall write its gradients now."""
        places: dict[str, Array] = {}
        for weight in trained:
            name = _full_name(layer, weight)
            if weight.sparse and weight.regularizer is None and name not in self._gradients:
                continue
            if layer in self._begun or not layer.trainable:
                places[weight.name] = call.scratch(f"gradient of {weight.name}", weight.shape)
            else:
                places[weight.name] = self._gradients[name]
        return places

    def finish(self, layer: Layer, places: Mapping[str, Array], call: Call) -> bool:
        """Take what `layer` wrote; True if that was its last use, so that its gradients are complete."""
        self._uses_left[layer] -= 1
        if layer.trainable:
            for name, array in places.items() if layer in self._begun else ():
                self._gradients[f"{layer.name}/{name}"][...] += array
            for name, rows in call.sparse_gradients.items():
                self._add_rows(f"{layer.name}/{name}", rows)
        self._begun.add(layer)
        return self._uses_left[layer] == 0

    def _add_rows(self, name: str, rows: SparseRows) -> None:
        if name in self.rows:
            before = self.rows[name]
            rows = SparseRows(np.concatenate([before.ids, rows.ids]), np.concatenate([before.rows, rows.rows])).summed()
        self.rows[name] = rows


def _full_name(layer: Layer, weight: Weight) -> str:
    return f"{layer.name}/{weight.name}"


def _name_layers(layers: Sequence[Layer]) -> None:
    """Give Keras's names to layers that have none: ``dense``, ``dense_1``, ..."""
    taken = [layer.name for layer in layers if layer.name is not None]
    if len(set(taken)) != len(taken):
        raise SpecError(f"names of layers must be unique; found twice: {sorted({n for n in taken if taken.count(n) > 1})}")
    for layer in layers:
        if layer.name is None:
            names = (f"{layer.base_name}_{k}" if k else layer.base_name for k in range(len(layers) + len(taken)))
            layer.name = next(name for name in names if name not in taken)
            taken.append(layer.name)


def _collect(node: Node, nodes: list[Node]) -> None:
    """Append `node` after everything it reads."""
    if node not in nodes:
        for tensor in node.inputs:
            _collect(tensor.node, nodes)
        nodes.append(node)


def _as_list(tensors: Any) -> list[SymbolicTensor]:
    return [tensors] if isinstance(tensors, SymbolicTensor) else list(tensors)


def _only(items: list[Any]) -> Any:
    """The single item, or the list if there are several."""
    return items[0] if len(items) == 1 else items
