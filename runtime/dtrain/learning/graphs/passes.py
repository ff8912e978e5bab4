"""One pass over one batch: each layer's forward in the order of the graph, then perhaps each one's backward.

Several passes of one network may be in flight at once: each owns the scratch memory of its layers until it
has gone back or is dropped. Passes that follow each other use the same memory.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dtrain.errors import ProgramError
from dtrain.learning.core import regularizers
from dtrain.learning.core.arrays import as_float32
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.graphs.graph import Graph, LayerStep, Slot
from dtrain.learning.layers import Call, Layer
from dtrain.learning.layers.base import Chance, StepSums
from dtrain.types import Array, Arrays

Scratch = list[dict[str, Array]]
"""Arrays that layers keep from one pass to the next, by the step's number and the array's name."""


class ScratchPool:
    """Scratch memory for the passes of one network: as many sets as were ever in use at once."""

    def __init__(self, n_steps: int) -> None:
        self._n_steps = n_steps
        self._free: list[Scratch] = []

    def acquire(self) -> Scratch:
        try:
            return self._free.pop()
        except IndexError:
            return [{} for _ in range(self._n_steps)]

    def give_back(self, scratch: Scratch) -> None:
        self._free.append(scratch)


class Going(NamedTuple):
    """How a pass goes.

    Attributes:
        reached: the numbers of the input steps of which `backward` is to find the gradients too.
        chance_of: makes the source of chance of the step with this number, where each has its own.
    """

    training: bool
    rng: Chance
    sums: StepSums | None = None
    goes_back: bool = True
    reached: Collection[int] = ()
    chance_of: Callable[[int], Chance] | None = None


class Pass:
    """One pass over one batch: forward, and then perhaps backward, once.

    Attributes:
        of_inputs: the gradients by the inputs, in their order, of which `backward` was asked for them.
    """

    def __init__(
        self,
        graph: Graph,
        pool: ScratchPool,
        weights: Arrays,
        stand_ins: Mapping[int, Layer],
        how: Going,
    ) -> None:
        self.of_inputs: list[Any] = []
        self._pool = pool
        self._scratch: Scratch | None = pool.acquire()
        self._graph = graph
        self._layers = [stand_ins.get(index, step.layer) for index, step in enumerate(graph.steps)]
        self._values: list[list[Array]] = []
        self._masks: list[list[Array | None]] = []
        self._caches: list[Any] = []
        self._given = weights
        self._weights: list[dict[str, Array]] = []
        self._needed: list[bool] = []  # for each step: whether it, or anything before it, is trained
        self._calls: list[Call] = []
        needed = self._needed
        calls = self._calls
        for number, (step, memory) in enumerate(zip(graph.steps, self._scratch, strict=True)):
            before = False
            for slot in step.inputs:
                before = before or needed[slot.step]
            entrance = number in how.reached and not step.inputs
            needed.append(before or entrance or (step.layer.trainable and bool(step.trained)))
            trains = how.training if step.training is None else step.training
            rng = how.rng if how.chance_of is None else how.chance_of(number)
            calls.append(Call(trains, rng, before, memory, how.sums, goes_back=how.goes_back))

    def __del__(self) -> None:
        if self._scratch is not None:
            self._pool.give_back(self._scratch)

    @property
    def outputs(self) -> list[Array]:
        """The model's outputs: scratch memory, which `backward` gives back."""
        return [self._values[slot.step][slot.output] for slot in self._graph.outputs]

    @property
    def masks(self) -> list[Array | None]:
        """The masks of the model's outputs."""
        if not self._graph.masks:
            return [None] * len(self._graph.outputs)
        return [self._masks[slot.step][slot.output] for slot in self._graph.outputs]

    def values(self) -> Iterator[tuple[LayerStep, list[Array]]]:
        return zip(self._graph.steps, self._values, strict=True)

    def activity_loss(self) -> float:
        """Return the penalties on outputs of layers, divided by the number of examples."""
        penalties = self._graph.activity_penalties.items()
        return sum([penalty(y) / len(y) for number, penalty in penalties for y in self._values[number]])

    def state_updates(self) -> dict[str, Array]:
        updates: dict[str, Array] = {}
        for step, call in zip(self._graph.steps, self._calls, strict=True):
            for name, value in call.updates.items():
                updates[f"{step.path}/{name}"] = value
        return updates

    def kept_bytes(self) -> list[int]:
        """Return how much memory each step's outputs, caches and scratch memory take until it has gone back.

        Memory that an earlier step has as well is not counted again, nor are weights.
        """
        seen = {id(_owner(array)) for array in _arrays_in(self._weights)}
        found: list[int] = []
        for parts in zip(self._values, self._caches, self._scratch or (), strict=True):
            own = {id(owner): owner.nbytes for owner in map(_owner, _arrays_in(parts))}
            found.append(sum(own[each] for each in own.keys() - seen))
            seen |= own.keys()
        return found

    def forward(self, entering: Iterable[Array], masks: Iterable[Array | None] = ()) -> None:
        """Run the steps in order; each one's weights are read at its turn. `masks` are of the inputs."""
        source, given = iter(entering), iter(masks)
        for layer, step, call in zip(self._layers, self._graph.steps, self._calls, strict=True):
            weights = {weight.name: self._given[name] for weight, name in step.weights}
            arriving = [self._values[slot.step][slot.output] for slot in step.inputs] or [next(source)]
            if step.arguments.tensors:
                n = len(arriving) - len(step.arguments.tensors)
                named = dict(zip(step.arguments.tensors, arriving[n:], strict=True))
                call.arguments = {**step.arguments.options, **named}
                arriving = arriving[:n]
            elif step.arguments.options:
                call.arguments = step.arguments.options
            if not layer.any_dtype:
                arriving = [as_float32(array, layer.label) for array in arriving]
            x = arriving if layer.takes_list else arriving[0]
            if self._graph.masks and step.inputs:
                call.mask = self._mask(step, call)
                mask = step.layer.compute_mask(x, call.mask)
                self._masks.append(
                    mask if isinstance(mask, list) else [mask, *[None] * (len(step.shapes) - 1)]
                )
            elif self._graph.masks:
                self._masks.append([next(given, None)])
            y, cache = layer.forward(weights, x, call)
            self._weights.append(weights)
            self._values.append(y if isinstance(y, list) else [y])
            self._caches.append(cache)

    def _mask(self, step: LayerStep, call: Call) -> Any:
        """Return the mask of a layer's input, in whose place one may be given in the call; or a list."""
        flowing = [self._masks[slot.step][slot.output] for slot in step.inputs]
        if not step.layer.takes_list:
            given = call.arguments.get("mask", flowing[0])
            return None if given is None else np.asarray(given, bool)
        masks = step.arriving(flowing)
        return [call.arguments.get(f"mask/{number}", mask) for number, mask in enumerate(masks)]

    def backward(
        self,
        upstream: Iterable[Array | None],
        gradients: Arrays,
        penalty_scale: float = 1.0,
        activity_scale: float = 1.0,
    ) -> dict[str, SparseRows]:
        """Fill `gradients` in reverse and return the sparse ones; a second call raises a `ProgramError`."""
        if self._scratch is None:
            raise ProgramError("backward was called twice on one pass; call forward before each backward")
        arrived = Arrived(self._values)
        for slot, gradient in zip(self._graph.outputs, upstream, strict=True):
            arrived.add(slot, gradient)
        collected = Collected(gradients, dict(self._graph.counts), penalty_scale)
        for index in reversed(range(len(self._graph.steps))):
            step = self._graph.steps[index]
            weights = self._weights[index]
            call = self._calls[index]
            if not self._needed[index]:
                continue
            if not step.inputs:
                self.of_inputs.insert(0, np.array(arrived.pop(index)))  # not scratch memory
                continue
            places = collected.places(step, call)
            dy = arrived.pop(index)
            if index in self._graph.activity_penalties:
                [y] = self._values[index]
                dy = np.array(dy)
                scale = activity_scale / max(1, len(y))
                self._graph.activity_penalties[index].add_gradient(y, dy, scale)
            dx = self._layers[index].backward(weights, self._caches[index], dy, places, call)
            of_inputs = list(dx) if step.layer.takes_list else [dx]
            of_inputs += map(call.argument_gradients.get, step.arguments.tensors)
            for slot, gradient in zip(step.inputs, of_inputs, strict=True):
                arrived.add(slot, gradient)
            collected.finish(step, weights, places, call)
        scratch = self._scratch
        self._scratch = None
        self._pool.give_back(scratch)
        return collected.rows


class Arrived:
    """Gradients by the steps' outputs, added up where an output is read more than once."""

    def __init__(self, outputs: Sequence[Sequence[Array]]) -> None:
        self._outputs = outputs
        self._gradients: list[list[Array | None]] = [[None] * len(arrays) for arrays in outputs]

    def add(self, slot: Slot, gradient: Array | None) -> None:
        """Add a gradient; the array belongs to this object from now on."""
        gradients = self._gradients[slot.step]
        output = slot.output
        before = gradients[output]
        if before is None:
            gradients[output] = gradient
        elif gradient is not None:
            before += gradient

    def pop(self, step: int) -> Any:
        """Return the gradient by the outputs of a step; 0 for an output that was not read."""
        taken = self._gradients[step]
        self._gradients[step] = []
        return only(
            [np.zeros_like(y) if dy is None else dy for dy, y in zip(taken, self._outputs[step], strict=True)]
        )


class Collected:
    """Gradients by the weights; those of frozen layers and of second uses go to scratch memory first."""

    def __init__(self, gradients: Arrays, uses: dict[Layer, int], penalty_scale: float = 1.0) -> None:
        self._penalty_scale = penalty_scale
        self.rows: dict[str, SparseRows] = {}
        self._gradients = gradients
        self._uses_left = uses
        self._begun: set[Layer] = set()

    def places(self, step: LayerStep, call: Call) -> dict[str, Array]:
        places: dict[str, Array] = {}
        for weight, name in step.trained:
            if name not in self._gradients and weight.may_be_sparse:
                continue
            if step.layer in self._begun or not step.layer.trainable:
                places[weight.name] = call.scratch(f"gradient of {weight.name}", weight.shape)
            else:
                places[weight.name] = self._gradients[name]
        return places

    def finish(self, step: LayerStep, weights: Arrays, places: Arrays, call: Call) -> None:
        layer = step.layer
        self._uses_left[layer] -= 1
        if not layer.trainable or not step.trained:
            return
        for weight, name in step.trained:
            if weight.name in call.sparse_gradients:
                rows = call.sparse_gradients[weight.name]
                self.rows[name] = self.rows[name].plus(rows) if name in self.rows else rows
            elif layer in self._begun:
                self._gradients[name][...] += places[weight.name]
            penalty = regularizers.get(weight.regularizer) if self._uses_left[layer] == 0 else None
            if penalty is not None:
                penalty.add_gradient(weights[weight.name], self._gradients[name], self._penalty_scale)
        self._begun.add(layer)


def _arrays_in(found: Any) -> list[Array]:
    """Return the arrays in what a layer keeps, also those in lists, mappings and objects."""
    if isinstance(found, np.ndarray):
        return [found]
    if not isinstance(found, list | tuple):
        found = (found if isinstance(found, Mapping) else getattr(found, "__dict__", {})).values()
    return [array for each in found for array in _arrays_in(each)]


def _owner(array: Array) -> Array:
    return array.base if isinstance(array.base, np.ndarray) else array


def only(items: list[Any]) -> Any:
    return items[0] if len(items) == 1 else items
