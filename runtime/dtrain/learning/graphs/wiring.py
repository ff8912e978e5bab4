"""The parts of a graph: uses of layers, and of models that stand in it as if they were layers.

A graph that has models in it is run as steps of layers alone (`flattened`). Names nest by model: layer
``dense`` of model ``encoder`` is ``encoder/dense`` in every graph in which the model stands.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from dtrain.errors import InputError, SpecError
from dtrain.learning.core.arrays import fits, shape_text
from dtrain.learning.layers import InputLayer, Layer, SymbolicTensor, Weight
from dtrain.learning.layers.base import LayerNode
from dtrain.types import Shape


class Slot(NamedTuple):
    """One output of one use, or of one step."""

    step: int
    output: int


class InnerGraph(Protocol):
    """The members of `Graph`, which documents them, that a `Submodel` and its config need."""

    uses: "tuple[Use, ...]"
    leaving: tuple[Slot, ...]
    names: "dict[Part, str]"
    steps: "tuple[Step, ...]"
    inputs: "tuple[Step, ...]"
    outputs: tuple[Slot, ...]
    submodel: "Submodel | None"
    built: bool

    def build(self, input_shape: Any) -> None: ...

    @property
    def layers(self) -> tuple[Layer, ...]: ...

    def layers_by_depth(self) -> Iterator[Layer]: ...

    def weights(self) -> Iterable[tuple[Layer, Weight, str]]: ...

    def output_shapes_for(self, entering: Sequence[Shape]) -> list[Shape]: ...


@dataclass(eq=False)
class Submodel:
    """A model that stands in the graphs of others as if it were a layer; one for all of them.

    Attributes:
        kind: ``Model`` or ``Sequential``.
        model: the object in `Model.layers` of the others; None until it is read, where they come from a
            config.
    """

    name: str
    kind: str
    graph: InnerGraph
    model: Any = None

    @property
    def label(self) -> str:
        """For summaries: ``encoder (Sequential)``."""
        return f"{self.name} ({self.kind})"

    def __call__(
        self, inputs: Sequence[SymbolicTensor], training: bool | None = None
    ) -> list[SymbolicTensor]:
        """Raise an `InputError` if number or shapes of the inputs are others."""
        self.check([tensor.shape for tensor in inputs])
        node = LayerNode(self, tuple(inputs), training)
        shapes = self.graph.output_shapes_for([tensor.shape for tensor in inputs])
        return [SymbolicTensor(node, index, shape) for index, shape in enumerate(shapes)]

    def check(self, shapes: Sequence[Shape]) -> None:
        """Raise an `InputError` unless shapes of examples fit the inputs, as far as known."""
        entrances = self.graph.inputs
        if len(shapes) != len(entrances):
            raise InputError(f"{self.name}: expected {len(entrances)} inputs, found {len(shapes)}")
        for step, shape in zip(entrances, shapes, strict=True):
            if step.shapes and not fits(tuple(length or -1 for length in shape), step.shapes[0]):
                label = step.layer.label
                found = shape_text(shape)
                raise InputError(
                    f"{label}: expected an input of shape {shape_text(step.shapes[0])}, found {found}"
                )


Part = Layer | Submodel
"""A part of a graph."""


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One use of a part on `inputs`, outputs of earlier uses; `training` None: as the whole model does."""

    part: Part
    inputs: tuple[Slot, ...] = ()
    training: bool | None = None


@dataclass(slots=True, eq=False)
class Step:
    """One use of a layer in a graph that is run.

    Attributes:
        path: the layer's name, behind the names of the models in which it stands.
        shapes: of the outputs, for one example; empty until the graph is built.
        weights: the weights that the layer declared, and the model's name of each.
        trained: those that have gradients, unless the layer is frozen.
    """

    layer: Layer
    path: str
    inputs: tuple[Slot, ...] = ()
    training: bool | None = None
    shapes: list[Shape] = field(default_factory=list)
    weights: tuple[tuple[Weight, str], ...] = ()
    trained: tuple[tuple[Weight, str], ...] = ()


def flattened(uses: Sequence[Use], names: Mapping[Part, str]) -> tuple[list[Step], list[list[Slot] | int]]:
    """Return a graph's steps, and each use's outputs or, for a layer, its step's number.

    A layer that is used in several models has the path of its first use. `training` of a call of an inner
    model's layer counts more than that of the model's call.
    """
    steps: list[Step] = []
    paths: dict[Layer, str] = {}
    ends: list[list[Slot] | int] = []
    for use in uses:
        arriving = tuple(flat(slot, ends) for slot in use.inputs)
        if isinstance(use.part, Layer):
            steps.append(Step(use.part, paths.setdefault(use.part, names[use.part]), arriving, use.training))
            ends.append(len(steps) - 1)
            continue
        graph = use.part.graph
        places = dict[int, Slot | int]()
        entering = iter(arriving)
        for number, inner in enumerate(graph.steps):
            if isinstance(inner.layer, InputLayer):
                places[number] = next(entering)
                continue
            inputs = tuple(_within(slot, places) for slot in inner.inputs)
            path = paths.setdefault(inner.layer, f"{names[use.part]}/{inner.path}")
            steps.append(
                Step(inner.layer, path, inputs, use.training if inner.training is None else inner.training)
            )
            places[number] = len(steps) - 1
        ends.append([_within(slot, places) for slot in graph.outputs])
    return steps, ends


def flat(slot: Slot, ends: Sequence[list[Slot] | int]) -> Slot:
    end = ends[slot.step]
    return Slot(end, slot.output) if isinstance(end, int) else end[slot.output]


def _within(slot: Slot, places: Mapping[int, Slot | int]) -> Slot:
    place = places[slot.step]
    return Slot(place, slot.output) if isinstance(place, int) else place


def named(parts: Sequence[Part]) -> dict[Part, str]:
    """Return the name of each part within a graph; raise a `SpecError` if two layers were given one name.

    Layers without a name are called after their class, numbered where that is taken: ``dense``, ``dense_1``,
    ... A layer or model that has such a name from another graph keeps it if it can.
    """
    own = [part for part in parts if isinstance(part, Layer) and part.name is not None and not part.numbered]
    given: dict[Part, str] = {part: str(part.name) for part in own}
    if twice := sorted(name for name, count in Counter(given.values()).items() if count > 1):
        raise SpecError(
            f"names of layers must be unique; found twice: {twice}; give the layers names of their own"
        )
    names: dict[Part, str] = dict(given)
    taken = set(given.values())
    numbers = Counter[str]()
    others = [part for part in parts if part not in given]
    for part in sorted(others, key=lambda part: part.name is None):
        wished = part.base_name if isinstance(part, Layer) else part.name
        for name in _numbered(part.name, wished, numbers):
            if name not in taken:
                names[part] = name
                taken.add(name)
                break
        if part.name is None and isinstance(part, Layer):
            part.name = names[part]
            part.numbered = True
    return {part: names[part] for part in parts}


def _numbered(first: str | None, base: str, numbers: Counter[str]) -> Iterator[str]:
    if first is not None:
        yield first
    while True:
        number = numbers[base]
        numbers[base] += 1
        yield f"{base}_{number}" if number else base
