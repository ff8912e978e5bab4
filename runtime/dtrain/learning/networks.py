"""A model's numbers: from weights and data to outputs, a loss and gradients.

A `Network` runs a graph of layers and declares its variables. It never holds weights: they are passed to every call, and gradients
are written into arrays that are passed too. It does hold scratch memory, so one network serves one thread at a time; another
thread makes its own with ``Network.from_config(network.get_config())``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from dtrain.errors import InputError
from dtrain.learning import initializers, regularizers
from dtrain.learning.arrays import Array, Shape, as_float32, fits, shape_text
from dtrain.learning.graph import Graph, Slot, Step
from dtrain.learning.layers import Call, Layer, SymbolicTensor
from dtrain.learning.sparse_rows import SparseRows
from dtrain.variables import VariableSpec

OnGradients = Callable[[tuple[str, ...]], None]


class Loss(Protocol):
    """What `Network.loss_and_gradients` needs of a loss."""

    def value_and_gradient(self, y_true: Any, y_pred: Array, sample_weight: Any) -> tuple[float, Array]:
        """The loss of a batch, and its gradient by `y_pred`: a new array of y_pred's shape."""


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


class Network:
    """A stack of layers, or (`Network.from_graph`) a graph of them.

    The shape of the data comes from an `InputLayer` or an `input_shape` in front, or from `build`. Layers without a name are given
    Keras's: ``dense``, ``dense_1``, ..., numbered within this network.
    """

    def __init__(self, layers: Sequence[Layer | SymbolicTensor] | Graph) -> None:
        self.graph = layers if isinstance(layers, Graph) else Graph.of_stack(layers)

    @classmethod
    def from_graph(cls, inputs: Any, outputs: Any) -> Self:
        """The network between symbolic inputs (results of `Input`) and outputs, each one tensor or a list of them."""
        return cls(Graph.between(inputs, outputs))

    def get_config(self) -> dict[str, Any]:
        """The architecture in JSON types."""
        return self.graph.get_config()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_layers: Iterable[type[Layer]] = ()) -> Self:
        """The network that `get_config` described; `SpecError` for unknown layers, but for those in `custom_layers`."""
        return cls(Graph.from_config(config, custom_layers))

    # Declaring

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Every layer once, in order of first use."""
        return self.graph.layers

    @property
    def built(self) -> bool:
        """Whether the shapes of the inputs are known, and so the variables."""
        return self.graph.built

    def build(self, input_shape: Any) -> None:
        """Work out shapes and variables for inputs of `input_shape`: of one example; a list of shapes for several inputs.

        Raises:
            InputError: a layer cannot take the shape; it is named.
        """
        self.graph.build(input_shape)

    @property
    def variables(self) -> tuple[VariableSpec, ...]:
        """All variables in creation order, trainable as their layers are now."""
        return tuple(
            VariableSpec(name, weight.shape, weight.dtype, weight.trainable and layer.trainable)
            for layer, weight, name in self.graph.weights()
        )

    @property
    def sparse_variables(self) -> tuple[str, ...]:
        """Variables whose gradient may be `SparseRows`: leave their array out of `gradients` and it comes in `row_gradients`."""
        return tuple(name for _, weight, name in self.graph.weights() if weight.may_be_sparse)

    @property
    def input_shapes(self) -> list[Shape]:
        """Of one example of each input."""
        return [step.shapes[0] for step in self.graph.inputs]

    @property
    def output_shapes(self) -> list[Shape]:
        """Of one example of each output."""
        return [self.graph.steps[slot.step].shapes[slot.output] for slot in self.graph.outputs]

    def initial_values(self, seed: int) -> dict[str, Array]:
        """Every variable's first value. Each is drawn from (seed, its name): the same in any cluster, whatever else there is."""
        return {
            name: initializers.get(weight.initializer)(weight.shape, _generator(seed, name)).astype(weight.dtype, copy=False)
            for _, weight, name in self.graph.weights()
        }

    # Running

    def predict(self, weights: Mapping[str, Array], x: Any) -> Any:
        """The outputs for a batch `x` in inference mode: a new array, or a list of them if the model has several outputs."""
        run = _Run(self.graph, weights, training=False, rng=None)
        run.forward(self._entering(x))
        return _only([np.array(output) for output in run.outputs])

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
            on_gradients: called with names of variables as soon as their gradients are complete, last layer first; gradients
                of `sparse_variables` without an array come with the result only.

        Raises:
            InputError: x does not fit, or is empty.
        """
        entering = self._entering(x)
        if not len(entering[0]):
            raise InputError(f"{self.graph.inputs[0].layer.label}: expected at least one example, found an empty batch")
        run = _Run(self.graph, weights, training=True, rng=rng)
        run.forward(entering)
        count = len(run.outputs)
        targets = list(y) if count > 1 else [y]
        losses = list(loss) if isinstance(loss, Sequence) else [loss] * count
        if not len(targets) == len(losses) == count:
            raise InputError(f"expected targets and losses for {count} outputs, found {len(targets)} and {len(losses)}")
        total = self.regularization_loss(weights)
        upstream = []
        for output, target, each in zip(run.outputs, targets, losses, strict=True):
            value, gradient = each.value_and_gradient(target, output, sample_weight)
            total += value
            upstream.append(as_float32(gradient, "loss"))
        rows = run.backward(upstream, gradients, on_gradients)
        return StepResult(total, _only([np.array(output) for output in run.outputs]), run.state_updates(), rows)

    def regularization_loss(self, weights: Mapping[str, Array]) -> float:
        """The sum of all penalties."""
        penalties = ((regularizers.get(weight.regularizer), name) for _, weight, name in self.graph.weights())
        return sum(penalty(weights[name]) for penalty, name in penalties if penalty is not None)

    def _entering(self, x: Any) -> list[Array]:
        """The inputs as arrays, checked against their shapes."""
        if not self.built:
            raise InputError("the network is not built: give its first layer an input_shape, or call build")
        steps = self.graph.inputs
        if isinstance(x, Mapping):
            missing = [step.layer.name for step in steps if step.layer.name not in x]
            if missing:
                raise InputError(f"expected inputs named {[step.layer.name for step in steps]}, found {list(x)}")
            given = [x[step.layer.name] for step in steps]
        else:
            given = [x] if len(steps) == 1 else list(x)
        if len(given) != len(steps):
            raise InputError(f"expected {len(steps)} inputs, found {len(given)}")
        arrays = [np.asarray(each) for each in given]
        for step, array in zip(steps, arrays, strict=True):
            if array.ndim == 0 or not fits(array.shape[1:], step.shapes[0]):
                reader = next((each.layer for each in self.graph.steps if self._reads(each, step)), step.layer)
                raise InputError(f"{reader.label}: expected an input of shape {shape_text(step.shapes[0])}, found {array.shape}")
            if len(array) != len(arrays[0]):
                raise InputError(f"{step.layer.label}: expected {len(arrays[0])} examples, found {len(array)}")
        return arrays

    def _reads(self, step: Step, source: Step) -> bool:
        return any(self.graph.steps[slot.step] is source for slot in step.inputs)


class _Run:
    """One pass over one batch: forward, and then perhaps backward."""

    def __init__(self, graph: Graph, weights: Mapping[str, Array], training: bool, rng: np.random.Generator | None) -> None:
        self._graph = graph
        self._values: list[list[Array]] = []
        self._caches: list[Any] = []
        self._weights = [{weight.name: weights[name] for weight, name in step.weights} for step in graph.steps]
        self._needed: list[bool] = []  # for each step: whether it, or anything before it, is trained
        self._calls: list[Call] = []
        for step in graph.steps:
            before = any(self._needed[slot.step] for slot in step.inputs)
            self._needed.append(before or (step.layer.trainable and bool(step.trained)))
            self._calls.append(Call(training, rng, needs_input_gradient=before, memory=step.memory))

    @property
    def outputs(self) -> list[Array]:
        """The model's outputs: scratch memory."""
        return [self._values[slot.step][slot.output] for slot in self._graph.outputs]

    def state_updates(self) -> dict[str, Array]:
        """What the layers want their untrained weights to become."""
        steps = zip(self._graph.steps, self._calls, strict=True)
        return {f"{step.layer.name}/{name}": value for step, call in steps for name, value in call.updates.items()}

    def forward(self, entering: Iterable[Array]) -> None:
        """First step first."""
        source = iter(entering)
        for step, weights, call in zip(self._graph.steps, self._weights, self._calls, strict=True):
            layer = step.layer
            arriving = [self._values[slot.step][slot.output] for slot in step.inputs] or [next(source)]
            if not layer.any_dtype:
                arriving = [as_float32(array, layer.label) for array in arriving]
            y, cache = layer.forward(weights, arriving if layer.takes_list else arriving[0], call)
            self._values.append(y if isinstance(y, list) else [y])
            self._caches.append(cache)

    def backward(
        self, upstream: Iterable[Array], gradients: Mapping[str, Array], on_gradients: OnGradients | None
    ) -> dict[str, SparseRows]:
        """Last step first: fill `gradients`, and return those that are sparse."""
        arrived = _Arrived()
        for slot, gradient in zip(self._graph.outputs, upstream, strict=True):
            arrived.add(slot, gradient)
        collected = _Collected(gradients, Counter(step.layer for step in self._graph.steps))
        for index in reversed(range(len(self._graph.steps))):
            step, weights, call = self._graph.steps[index], self._weights[index], self._calls[index]
            if not self._needed[index]:
                continue
            places = collected.places(step, call)
            dy = arrived.take(index, self._values[index])
            dx = step.layer.backward(weights, self._caches[index], dy, places, call)
            for slot, gradient in zip(step.inputs, dx if step.layer.takes_list else [dx], strict=True):
                arrived.add(slot, gradient)
            if collected.finish(step, weights, places, call) and on_gradients is not None:
                on_gradients(tuple(name for _, name in step.trained))
        return collected.rows


class _Arrived:
    """Gradients by the steps' outputs, added up where an output is read more than once."""

    def __init__(self) -> None:
        self._gradients: dict[Slot, Array] = {}

    def add(self, slot: Slot, gradient: Array | None) -> None:
        """Add a gradient; the array is ours from now on."""
        if slot in self._gradients and gradient is not None:
            self._gradients[slot] += gradient
        elif gradient is not None:
            self._gradients[slot] = gradient

    def take(self, step: int, outputs: list[Array]) -> Any:
        """The gradient by the outputs of a step; 0 for an output that nobody read."""
        taken = [self._gradients.pop(Slot(step, index), None) for index in range(len(outputs))]
        return _only([np.zeros_like(y) if dy is None else dy for dy, y in zip(taken, outputs, strict=True)])


class _Collected:
    """The gradients by the weights. A frozen layer's, and those of a layer's second use, go to scratch memory first."""

    def __init__(self, gradients: Mapping[str, Array], uses: dict[Layer, int]) -> None:
        self.rows: dict[str, SparseRows] = {}
        self._gradients = gradients
        self._uses_left = uses
        self._begun: set[Layer] = set()

    def places(self, step: Step, call: Call) -> dict[str, Array]:
        """Where a step's layer shall write its gradients."""
        places: dict[str, Array] = {}
        for weight, name in step.trained:
            if weight.may_be_sparse and name not in self._gradients:
                continue
            if step.layer in self._begun or not step.layer.trainable:
                places[weight.name] = call.scratch(f"gradient of {weight.name}", weight.shape)
            else:
                places[weight.name] = self._gradients[name]
        return places

    def finish(self, step: Step, weights: Mapping[str, Array], places: Mapping[str, Array], call: Call) -> bool:
        """Take what a step's layer wrote; True if that completes the gradients of a layer that is trained."""
        layer = step.layer
        self._uses_left[layer] -= 1
        complete = self._uses_left[layer] == 0
        if not layer.trainable or not step.trained:
            return False
        for weight, name in step.trained:
            if weight.name in call.sparse_gradients:
                self._add_rows(name, call.sparse_gradients[weight.name])
            elif layer in self._begun:
                self._gradients[name][...] += places[weight.name]
            penalty = regularizers.get(weight.regularizer)
            if complete and penalty is not None:
                penalty.add_gradient(weights[weight.name], self._gradients[name])
        self._begun.add(layer)
        return complete

    def _add_rows(self, name: str, rows: SparseRows) -> None:
        if name in self.rows:
            before = self.rows[name]
            rows = SparseRows(np.concatenate([before.ids, rows.ids]), np.concatenate([before.rows, rows.rows])).summed()
        self.rows[name] = rows


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, *name.encode()])


def _only(items: list[Any]) -> Any:
    """The single item, or the list if there are several."""
    return items[0] if len(items) == 1 else items
