"""A model cut into stages, each of which computes by itself what lies between two edges of the graph.

A graph is cut in front of a step where one output alone crosses: then one array, and its mask, travels
forward, and the gradient by it back. Nothing is cut between two steps that are computed together, nor between
two uses of a layer.

A stage's numbers are those of one process that passes the same microbatches through the whole graph in
their order: each layer draws from its own source of chance, new values of variables that are not trained are
seen by the next microbatch, and gradients are added up in the order of the microbatches.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.graphs.graph import Graph, LayerStep, Slot
from dtrain.learning.graphs.heads import Head, Losses
from dtrain.learning.graphs.networks import Network, StepResult
from dtrain.learning.graphs.passes import Going, Pass, only
from dtrain.learning.layers import InputLayer, Layer
from dtrain.learning.layers.base import Chance
from dtrain.state.stage_layout import Segment
from dtrain.types import Array, Arrays

Crossing = tuple[Array, Array | None]
"""An array that enters or leaves, and its mask if it has one."""


def obstacle(graph: Graph, position: int) -> str | None:
    """Return why a graph cannot be cut in front of a step; None if it can."""
    steps = graph.steps
    before = {number for number, step in enumerate(steps) if number < position or not step.inputs}
    behind = [step for number, step in enumerate(steps) if number not in before]
    if not behind or len(before) == len(graph.inputs):
        return "it has no layer on one of its sides"
    if made := [slot for slot in graph.outputs if slot.step in before]:
        return f"an output of the model, of {steps[made[0].step].path}, lies in front of it"
    crossing = _crossing(graph, position)
    if len(crossing) > 1:
        names = ", ".join(dict.fromkeys(steps[slot.step].path for slot in crossing))
        return f"{len(crossing)} arrays would cross it, of {names}; expected one"
    if shared := {steps[number].layer for number in before} & {step.layer for step in behind}:
        return (
            f"it lies between two uses of the layer {next(iter(shared)).label}, which have the same weights"
        )
    source = crossing[0].step
    if source in graph.stand_ins and not isinstance(graph.stand_ins[source], InputLayer):
        return f"{steps[source].path} and the layer behind it are computed together"
    return None


def _crossing(graph: Graph, position: int) -> list[Slot]:
    """Return the outputs of steps in front of a position, inputs among them, that are read behind it."""
    read = (slot for step in graph.steps[position:] for slot in step.inputs)
    early = (slot for slot in read if slot.step < position or not graph.steps[slot.step].inputs)
    return list(dict.fromkeys(early))


def positions(graph: Graph) -> list[int]:
    """Return the numbers of the steps that are no inputs, in front of each of which a graph may be cut."""
    return [number for number, step in enumerate(graph.steps) if step.inputs]


def leaving_at(graph: Graph, position: int) -> Slot | None:
    """Return what crosses a cut in front of a step; None where a graph cannot be cut."""
    return None if obstacle(graph, position) else _crossing(graph, position)[0]


def cut_before(graph: Graph, names: Sequence[str]) -> list[range]:
    """Cut a graph in front of the layers of these names, of which the first one begins the model; return the
    numbers of the steps of each stage, inputs of the model among them.

    Raises:
        SpecError: there is no such layer, or the graph cannot be cut there.
    """
    first: dict[str, int] = {}
    for number in positions(graph):
        first.setdefault(graph.steps[number].path, number)
    if unknown := [name for name in names if name not in first]:
        near = get_close_matches(unknown[0], first, 1, 0.0)[0]
        raise SpecError(
            f"stages: the model has no layer {unknown[0]}; did you mean {near}? It has {', '.join(first)}"
        )
    begin = next(iter(first))
    if names[0] != begin:
        raise SpecError(f"stages: the first one begins with the model, at {begin}; found {names[0]}")
    places = [0, *(first[name] for name in names[1:]), len(graph.steps)]
    for name, (place, following) in zip(names, pairwise(places), strict=True):
        if following <= place:
            raise SpecError(f"stages: {name} lies behind the layer that is named after it")
        if place and (reason := obstacle(graph, place)) is not None:
            may = ", ".join(each for each, position in first.items() if obstacle(graph, position) is None)
            raise SpecError(
                f"stages: the model cannot be cut in front of {name}: {reason}; expected some of {may}"
            )
        if not any(step.weights for step in graph.steps[place:following]):
            raise SpecError(
                f"stages: the stage that begins with {name} has no variables: join it with another"
            )
    return [range(*each) for each in pairwise(places)]


def segments_of(ranges: Sequence[range], graph: Graph, replicas: Sequence[int]) -> list[Segment]:
    """Return the one segment of each stage of a chain of stages, of which each has so many replicas."""
    tasks = (tuple(range(stop - n, stop)) for n, stop in zip(replicas, accumulate(replicas), strict=True))
    return joined_segments(graph, list(zip(tasks, ranges, strict=True)))


def joined_segments(graph: Graph, parts: Sequence[tuple[tuple[int, ...], Sequence[int]]]) -> list[Segment]:
    """Return segments, and what travels between them, from tasks and the numbers of their steps; the last one
    has the outputs of the model.
    """
    found: list[Segment] = []
    for place, (tasks, numbers) in enumerate(parts):
        own, is_last = [n for n in numbers if graph.steps[n].inputs], place == len(parts) - 1
        read = [slot for number in own for slot in graph.steps[number].inputs]
        read += graph.outputs if is_last else ()
        outside = (slot for slot in read if slot.step not in own and graph.steps[slot.step].inputs)
        found.append(Segment(tasks, tuple(own), tuple(dict.fromkeys(outside)), (), is_last))
    needed = dict.fromkeys(slot for each in found for slot in each.entering)
    return [
        each._replace(leaving=tuple(slot for slot in needed if slot[0] in each.numbers)) for each in found
    ]


class StageGraph(Graph):
    """The steps of one segment of a built graph; in front of them steps that stand for what enters.

    Attributes:
        numbers: of its steps in the whole graph; -1 for what enters.
        read: which inputs of the model it reads itself, by their places.
    """

    def __init__(self, whole: Graph, segment: Segment) -> None:
        own = set(segment.numbers)
        entering = [Slot(*slot) for slot in segment.entering]
        reads = {slot.step for number in own for slot in whole.steps[number].inputs if slot not in entering}
        chosen = sorted(own | reads)
        n = len(entering)
        places = {
            Slot(old, output): Slot(new + n, output)
            for new, old in enumerate(chosen)
            for output in range(len(whole.steps[old].shapes))
        }
        steps: list[LayerStep] = []
        for place, slot in enumerate(entering):
            places[slot] = Slot(place, 0)
            shape = whole.steps[slot.step].shapes[slot.output]
            steps.append(LayerStep(InputLayer(input_shape=shape), "entering", shapes=[shape]))
        for number in chosen:
            each = whole.steps[number]
            steps.append(replace(each, inputs=tuple(places[slot] for slot in each.inputs)))
        self.numbers = [*[-1] * n, *chosen]
        self.read = [place for place, step in enumerate(whole.inputs) if whole.steps.index(step) in chosen]
        self.uses = self.leaving = ()
        self.names = whole.names
        self.submodel = None
        self.order = ()
        self.steps = tuple(steps)
        self.outputs = tuple(
            places[slot] for slot in (whole.outputs if segment.is_last else map(Slot._make, segment.leaving))
        )
        self.inputs = tuple(step for step in steps if not step.inputs)
        weights = {name for step in steps for _, name in step.weights}
        self.regularized = tuple(each for each in whole.regularized if each[1] in weights)
        self.built = True
        self.masks = whole.masks
        self.output_names = whole.output_names if segment.is_last else []


class StageNetwork(Network):
    """One segment of a model. It holds no weights, as every network."""

    graph: StageGraph

    def __init__(self, whole: Network, segment: Segment) -> None:
        super().__init__(StageGraph(whole.graph, segment))
        self.segment = segment
        self._whole = whole
        self._more: Arrays = {}

    @property
    def is_last(self) -> bool:
        return self.segment.is_last

    def heads(self, loss: Losses) -> tuple[Sequence[Head], Mapping[int, Layer]]:
        """Return the model's outputs and their losses, if they are here, and layers that replace others."""
        return self._heads(loss) if self.is_last else ([], self.graph.stand_ins)

    def more(self, gradients: Arrays) -> Arrays:
        """Return memory for gradients that are added to these, the same in each step."""
        if self._more.keys() != gradients.keys():
            self._more = {name: np.empty_like(array) for name, array in gradients.items()}
        return self._more

    def run(
        self, weights: Arrays, layers: Mapping[int, Layer], how: Going, x: Any, entering: Sequence[Crossing]
    ) -> Pass:
        run = Pass(self.graph, self._scratch, weights, layers, how)
        given = self._whole.entering(x) if self.graph.read else []
        arrays = [*(array for array, _ in entering), *(given[place] for place in self.graph.read)]
        run.forward(arrays, [mask for _, mask in entering])
        return run

    def given(
        self, heads: Sequence[Head], run: Pass, y: Any, sample_weight: Any
    ) -> Iterator[tuple[str, tuple[Head, tuple[Any, Array, Any]]]]:
        """Yield for each output its name, its head, and what its loss is computed from."""
        yield from zip(self.output_names, self._given(heads, run, y, sample_weight), strict=True)


class StageStep:
    """One step of one segment: microbatches go forward and back in their order, several of them in flight.

    A microbatch has a `share` of the examples of its batch, and the same of the gradient of a mean over them.
    """

    def __init__(
        self,
        network: StageNetwork,
        weights: Arrays,
        gradients: Arrays,
        loss: Losses,
        entropy: Sequence[int],
        *,
        penalises: bool = True,
    ) -> None:
        """Begin with no microbatch under way.

        Args:
            weights: the variables of this segment, by name, perhaps among others.
            gradients: arrays for each that is trained, which the gradient overwrites.
            entropy: the words from which the chance of this step follows.
            penalises: whether the penalties on weights count here, of the replicas of a stage.
        """
        self._network = network
        self._weights = weights
        names = [spec.name for spec in network.variables]
        self._gradients = {name: gradients[name] for name in names if name in gradients}
        self._more = network.more(self._gradients)
        self._heads, self._stand_ins = network.heads(loss)
        self._entropy = entropy
        self._updates: dict[str, Array] = {}
        self._flying: dict[int, tuple[Pass, float]] = {}
        self._rows: dict[str, SparseRows] = {}
        self._outputs: list[list[Array]] = []
        self._masks: list[list[Array | None]] = []
        self._losses: dict[str, float] = {}
        self._total = network.regularization_loss(weights) if penalises else 0.0
        self._begun = False

    def forward(self, microbatch: int, share: float, x: Any, entering: Sequence[Crossing]) -> list[Crossing]:
        """Pass a microbatch forward; return what leaves, which is memory of the pass.

        Args:
            x: the inputs of the model, whole.
            entering: what other segments have returned, in the order of `Segment.entering`.
        """
        chance_of = partial(self._chance, microbatch)
        how = Going(True, chance_of(-1), reached=range(len(entering)), chance_of=chance_of)
        weights = {**self._weights, **self._updates} if self._updates else self._weights
        run = self._network.run(weights, self._stand_ins, how, x, entering)
        self._updates.update({name: np.array(value) for name, value in run.state_updates().items()})
        self._flying[microbatch] = run, share
        return list(zip(run.outputs, run.masks, strict=True))

    def judged(self, microbatch: int, y: Any, sample_weight: Any) -> list[Array | None]:
        """Return the gradients by the outputs of the model, and keep its losses; in the last stage."""
        run, share = self._flying[microbatch]
        upstream: list[Array | None] = []
        for name, (head, given) in self._network.given(self._heads, run, y, sample_weight):
            loss, gradient = head.value_and_gradient(*given)
            upstream.append(gradient)
            if head.loss is None:
                continue
            if head.loss.is_mean and gradient is not None:
                upstream[-1] = gradient * np.float32(share)
            loss *= 1.0 if head.loss.reduction == "sum" else share
            self._losses[name] = self._losses.get(name, 0.0) + loss
            self._total += head.weight * loss
        self._outputs.append([head.output(y) for y, head in zip(run.outputs, self._heads, strict=True)])
        self._masks.append([None if mask is None else np.array(mask) for mask in run.masks])
        return upstream

    def backward(self, microbatch: int, upstream: Sequence[Array | None]) -> list[Array]:
        """Add the gradient of a microbatch; return the gradients by what entered.

        Args:
            upstream: the gradients by what left; in the last segment by the outputs of the model.
        """
        run, share = self._flying.pop(microbatch)
        self._total += share * run.activity_loss()
        rows = run.backward(upstream, self._more if self._begun else self._gradients, share, share)
        for name, more in self._more.items() if self._begun else ():
            self._gradients[name] += more
        for name, each in rows.items():
            self._rows[name] = self._rows[name].plus(each) if name in self._rows else each
        self._begun = True
        return run.of_inputs

    def result(self) -> StepResult:
        """Return the results of the step; `outputs` is None where this is not the last stage."""
        outputs = [np.concatenate(each) for each in zip(*self._outputs, strict=True)]
        masks = [
            None if each[0] is None else np.concatenate([mask for mask in each if mask is not None])
            for each in zip(*self._masks, strict=True)
        ]
        found = only(outputs) if outputs else None
        return StepResult(self._total, self._losses, found, self._updates, self._rows, masks)

    def _chance(self, microbatch: int, step: int) -> Chance:
        """Return a layer's source of chance, which follows from step, microbatch and layer."""
        number = self._network.graph.numbers[step] if step >= 0 else 0
        return cache(lambda: np.random.default_rng([*self._entropy, microbatch, number, LAYERS]))


LAYERS = 2
"""The last word of the seeds of layers, which no seed of a step has."""
