"""A model's numbers: from weights and data to outputs, a loss and gradients.

A `Network` runs a graph of layers and declares its variables. It holds no weights: they are passed to every
call, and gradients are written into arrays that are passed too. Several passes may be in flight at once
(`Network.forward`), also in several threads: each has its own scratch memory, see
`dtrain.learning.graphs.passes`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np

from dtrain.errors import InputError, SpecError
from dtrain.learning.core import initializers
from dtrain.learning.core.arrays import fits, of_rank, shape_text
from dtrain.learning.core.configuration import NO_OBJECTS, CustomObjects
from dtrain.learning.core.drawn_table import DrawnTable
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.graphs.graph import Graph, LayerStep, Part, Slot
from dtrain.learning.graphs.heads import WHOLE, Head, Losses, LossScale, OutputLoss, by_output, masked
from dtrain.learning.graphs.passes import Going, Pass, ScratchPool, only
from dtrain.learning.layers import Layer, SymbolicTensor, Weight
from dtrain.learning.layers.base import Chance, StepSums
from dtrain.learning.losses import Loss
from dtrain.types import Array, Arrays, Shape
from dtrain.variables import DTYPE_BYTES, TABLE_BYTES, VariableSpec

NOTHING: Mapping[str, Any] = MappingProxyType({})


class StepResult(NamedTuple):
    """The results of one training step besides the gradients, which are in the arrays that were passed.

    Attributes:
        loss: with the penalties of regularizers.
        losses: of each output that has one, by its name.
        outputs: the model's output; a list of them if it has several.
        state_updates: new values of variables that are not trained, such as moving averages.
        masks: of the outputs, one for each, or None.
        row_gradients: gradients of the `Network.sparse_variables` for which no array was passed.
    """

    loss: float
    losses: dict[str, float]
    outputs: Any
    state_updates: Arrays = NOTHING
    row_gradients: Mapping[str, SparseRows] = NOTHING
    masks: Sequence[Array | None] = ()


class Network:
    """A graph of layers, built from an `InputLayer`, an `input_shape` in front, or by `build`."""

    def __init__(self, layers: Sequence[Part | SymbolicTensor] | Graph) -> None:
        self.graph = layers if isinstance(layers, Graph) else Graph.of_stack(layers)
        self._scratch = ScratchPool(len(self.graph.steps))
        self._headed: tuple[Losses, list[Head], dict[int, Layer]] | None = None

    @classmethod
    def from_graph(cls, inputs: Any, outputs: Any) -> Self:
        return cls(Graph.between(inputs, outputs))

    def get_config(self) -> dict[str, Any]:
        return self.graph.get_config()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: CustomObjects = NO_OBJECTS) -> Self:
        return cls(Graph.from_config(config, custom_objects))

    # Declaring

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self.graph.layers

    @property
    def built(self) -> bool:
        return self.graph.built

    def build(self, input_shape: Any) -> None:
        self.graph.build(input_shape)

    @property
    def assumed_input_shape(self) -> Shape | None:
        """The shape of one example that the reader of the only input assumes, if any."""
        return self._reader(self.graph.inputs[0]).assumed_input_shape if len(self.graph.inputs) == 1 else None

    @property
    def variables(self) -> tuple[VariableSpec, ...]:
        return tuple(
            VariableSpec(
                name, weight.shape, weight.dtype, weight.trainable and layer.trainable, weight.may_be_sparse
            )
            for layer, weight, name in self.graph.weights()
        )

    @property
    def sums_over_replicas(self) -> bool:
        return any(layer.sums_over_replicas for layer in self.graph.layers)

    @property
    def sparse_variables(self) -> tuple[str, ...]:
        """Variables whose gradients may be `SparseRows`; without an array they come in `row_gradients`."""
        return tuple(name for _, weight, name in self.graph.weights() if weight.may_be_sparse)

    @property
    def input_shapes(self) -> list[Shape]:
        return [step.shapes[0] for step in self.graph.inputs]

    @property
    def output_shapes(self) -> list[Shape]:
        return [self.graph.steps[slot.step].shapes[slot.output] for slot in self.graph.outputs]

    @property
    def input_names(self) -> list[str]:
        return [step.path for step in self.graph.inputs]

    @property
    def output_names(self) -> list[str]:
        return self.graph.output_names

    def initial_values(self, seed: int) -> dict[str, Array]:
        """Draw every value from (seed, its name), so that it is the same in any cluster.

        A large table whose rows are read one by one comes as a `DrawnTable`.
        """
        return {name: _first_value(weight, name, seed) for _, weight, name in self.graph.weights()}

    # Running

    def predict(self, weights: Arrays, x: Any, *, training: bool = False) -> Any:
        """Return the outputs for a batch: a new array, or a list of them if there are several outputs."""
        run = self._run(weights, self.entering(x), self.graph.stand_ins, training=training)
        return only([np.array(output) for output in run.outputs])

    def forward(
        self, weights: Arrays, x: Any, how: Going, stand_ins: Mapping[int, Layer] | None = None
    ) -> Pass:
        """Return a pass that has gone forward; `stand_ins` compute in the place of layers."""
        run = Pass(self.graph, self._scratch, weights, stand_ins or self.graph.stand_ins, how)
        run.forward(self.entering(x))
        return run

    def outputs_of_layers(self, weights: Arrays, x: Any) -> Iterator[tuple[str, list[Array]]]:
        """Yield each layer's label and its outputs in inference mode, which are scratch memory."""
        run = self._run(weights, self.entering(x), NOTHING, training=False)
        for step, outputs in run.values():
            yield f"{step.path} ({type(step.layer).__name__})", outputs

    def loss_and_outputs(
        self, weights: Arrays, x: Any, y: Any, loss: Losses, sample_weight: Any = None
    ) -> StepResult:
        heads, stand_ins = self._heads(loss)
        run = self._run(weights, self.entering(x), stand_ins, training=False)
        lost = [head.value(*given) for head, given in self._given(heads, run, y, sample_weight)]
        return StepResult(
            self._total(weights, heads, lost) + run.activity_loss(),
            self._named(heads, lost),
            self._outputs(heads, run),
            masks=run.masks,
        )

    def loss_and_gradients(
        self,
        weights: Arrays,
        x: Any,
        y: Any,
        loss: Losses,
        gradients: Arrays,
        *,
        sample_weight: Any = None,
        rng: Chance,
        scale: LossScale = WHOLE,
        training: bool = True,
        sums: StepSums | None = None,
    ) -> StepResult:
        """Compute one training step on one batch: fill `gradients` and return the rest.

        Args:
            x: the batch; a list, or a mapping by input name, if there are several inputs.
            y: the targets; see `by_output` if there are several outputs, also for `sample_weight`.
            loss: one for all outputs, or a list; losses of several outputs are added.
            gradients: an array for every trained variable but `sparse_variables`, overwritten.
            scale: of a batch that is a part of another one.
            sums: over the replicas that compute the other parts.

        Raises:
            InputError: x does not fit, or is empty.
        """
        entering = self.entering(x)
        if not len(entering[0]):
            raise InputError(
                f"{self.graph.inputs[0].layer.label}: expected at least one example, found an empty batch"
            )
        heads, stand_ins = self._heads(loss)
        run = self._run(weights, entering, stand_ins, training=training, rng=rng, sums=sums)
        found = [
            head.value_and_gradient(*given, scale)
            for head, given in self._given(heads, run, y, sample_weight)
        ]
        lost = [lost for lost, _ in found]
        outputs = self._outputs(heads, run)
        total = self._total(weights, heads, lost) + scale.activities * run.activity_loss()
        upstream = [gradient for _, gradient in found]
        rows = run.backward(upstream, gradients, scale.penalties, scale.activities)
        return StepResult(total, self._named(heads, lost), outputs, run.state_updates(), rows, run.masks)

    def penalty_gradients(self, weights: Arrays, gradients: Arrays, scale: float) -> None:
        for gradient in gradients.values():
            gradient.fill(0)
        for penalty, name in self.graph.regularized:
            if name in gradients:
                penalty.add_gradient(weights[name], gradients[name], scale)

    def regularization_loss(self, weights: Arrays) -> float:
        return sum([penalty(weights[name]) for penalty, name in self.graph.regularized], 0.0)

    def _run(
        self,
        weights: Arrays,
        entering: Sequence[Array],
        stand_ins: Mapping[Any, Layer],
        *,
        training: bool,
        rng: Chance | None = None,
        sums: StepSums | None = None,
    ) -> Pass:
        how = Going(training, self._own_chance if rng is None else rng, sums, goes_back=rng is not None)
        run = Pass(self.graph, self._scratch, weights, stand_ins, how)
        run.forward(entering)
        return run

    @cached_property
    def _own_chance(self) -> np.random.Generator:
        """Random numbers for layers that drop values in inference too, the same in every process."""
        return np.random.default_rng(0)

    def _heads(self, loss: Losses) -> tuple[list[Head], dict[int, Layer]]:
        """Return each output with its loss, and the layers that replace others; cached by `loss`."""
        headed = self._headed
        if headed is None or headed[0] is not loss:
            losses = by_output(loss, self.output_names, "losses")
            heads = [self._head(slot, each) for slot, each in zip(self.graph.outputs, losses, strict=True)]
            slots = zip(self.graph.outputs, heads, strict=True)
            of_heads = {slot.step: head.stand_in for slot, head in slots if head.stand_in is not None}
            self._headed = headed = loss, heads, self.graph.stand_ins | of_heads
        return headed[1:]

    def _head(self, slot: Slot, loss: Loss | OutputLoss | None) -> Head:
        layer, activation = self.graph.steps[slot.step].layer.before_activation()
        loss, weight = loss if isinstance(loss, OutputLoss) else (loss, 1.0)
        from_logits = None if activation is None or loss is None else loss.from_logits_of(activation.name)
        penalised = slot.step in self.graph.activity_penalties
        if from_logits is None or penalised or self.graph.readers(slot.step) > 1:
            return Head(layer.label, loss, weight)
        return Head(layer.label, from_logits, weight, layer, activation)

    def _given(
        self, heads: Sequence[Head], run: Pass, y: Any, sample_weight: Any
    ) -> Iterator[tuple[Head, tuple[Any, Array, Any]]]:
        names = self.output_names
        targets = by_output(y, names, "targets")
        weights = by_output(sample_weight, names, "sample weights")
        if self.graph.masks:
            weights = [
                weight if mask is None or head.loss is None else masked(weight, mask, head.loss.is_mean)
                for weight, mask, head in zip(weights, run.masks, heads, strict=True)
            ]
        return zip(heads, zip(targets, run.outputs, weights, strict=True), strict=True)

    def _total(self, weights: Arrays, heads: Sequence[Head], lost: Sequence[float]) -> float:
        return self.regularization_loss(weights) + sum(
            [head.weight * each for head, each in zip(heads, lost, strict=True)]
        )

    def _named(self, heads: Sequence[Head], lost: Sequence[float]) -> dict[str, float]:
        named = zip(self.output_names, heads, lost, strict=True)
        return {name: each for name, head, each in named if head.loss is not None}

    def _outputs(self, heads: Sequence[Head], run: Pass) -> Any:
        """Copy the outputs, whose memory `backward` and the next pass overwrite."""
        return only([head.output(value) for value, head in zip(run.outputs, heads, strict=True)])

    def entering(self, x: Any) -> list[Array]:
        """Return a batch as arrays in the order of the inputs; raise an `InputError` unless it fits."""
        if not self.built:
            raise InputError("the network is not built: give its first layer an input_shape, or call build")
        steps = self.graph.inputs
        if isinstance(x, Mapping):
            if not all(step.path in x for step in steps):
                raise InputError(f"expected inputs named {self.input_names}, found {list(x)}")
            given = [x[step.path] for step in steps]
        else:
            given = [x] if len(steps) == 1 else list(x)
        if len(given) != len(steps):
            raise InputError(f"expected {len(steps)} inputs, found {len(given)}")
        arrays: list[Array] = []
        for step, each in zip(steps, given, strict=True):
            array = np.asarray(each)
            expected = step.shapes[0]
            if array.ndim == 0 or array.shape[1:] != expected:
                array = of_rank(array, expected)
                if array.ndim == 0 or not fits(array.shape[1:], expected):
                    label = self._reader(step).label
                    unbatched = array.ndim == len(expected) and fits(array.shape, expected)
                    raise InputError(
                        f"{label}: expected an input of shape {shape_text(expected)}, found {array.shape}"
                        f"{'; does the dataset lack .batch(n)?' if unbatched else ''}"
                    )
            arrays.append(array)
            if len(array) != len(arrays[0]):
                raise InputError(
                    f"{step.layer.label}: expected {len(arrays[0])} examples, found {len(array)}"
                )
        return arrays

    def _reader(self, source: LayerStep) -> Layer:
        steps = self.graph.steps
        readers = (each.layer for each in steps if any(steps[slot.step] is source for slot in each.inputs))
        return next(readers, source.layer)


def _first_value(weight: Weight, name: str, seed: int) -> Any:
    try:
        initializer = initializers.get(weight.initializer)
        words = [seed, *name.encode()]
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from None
    table = DrawnTable.of(weight.shape, initializer, words) if weight.may_be_sparse else None
    if table is None:
        return initializer(weight.shape, np.random.default_rng(words)).astype(weight.dtype, copy=False)
    return table if prod(weight.shape) * DTYPE_BYTES[weight.dtype] >= TABLE_BYTES else np.asarray(table)
