"""The graph of a model: uses of layers, each of which reads outputs of earlier ones; their order; its config.

A stack of layers and a graph with branches have the same form. A graph that has models in it is run as steps
of layers alone (`flattened`). Names nest by model: layer ``dense`` of model ``encoder`` is ``encoder/dense``
in every graph in which the model stands.

The parts of a model, and so its weights, are listed in Keras's order. Keras 2.15
(`keras/src/engine/functional.py`, `_map_graph_network`) sorts layers by depth, the deepest first.

- The depth of a use is the longest way from it to an output. A layer that is used several times is as deep as
  its deepest use, and so are the uses that are found after that one.
- Layers of the same depth come in the order in which a walk back from the outputs first meets them: a use
  before what it reads, and its inputs in their order.
- Inputs that no output needs have depth 0, and are the first of that depth.
- A model within another is one layer: its own layers stay together, in its own order.
- Of a model with a `call` the order is that of the attributes of its class (`Graph.order`).

A config, in JSON types, has a table of all layers, also of those in models within; a table of these models,
if there are any; for each use the number of its layer or model and the outputs that it reads; and the
graph's outputs. A model within has uses and outputs of its own, and may use the models before it in the
table. A part that several models share is thus one part again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self

from dtrain.errors import InputError, SpecError
from dtrain.learning.core import constraints, regularizers
from dtrain.learning.core.arrays import fits, shape_text
from dtrain.learning.core.configuration import NO_OBJECTS, CustomObjects, from_data, to_data
from dtrain.learning.core.constraints import Constraint
from dtrain.learning.core.regularizers import Regularizer
from dtrain.learning.layers import InputLayer, Layer, SymbolicTensor, Weight, classes
from dtrain.learning.layers.base import NO_ARGUMENTS, CallArguments, LayerNode
from dtrain.learning.layers.pooled_convolution import pooled
from dtrain.types import Shape

KINDS = ("Model", "Sequential")
"""The kinds of a model within another, as configs name them."""


class Slot(NamedTuple):
    """One output of one use, or of one step."""

    step: int
    output: int


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
    graph: "Graph"
    model: Any = None

    @property
    def label(self) -> str:
        return f"{self.name} ({self.kind})"

    def __call__(
        self, inputs: Sequence[SymbolicTensor], training: bool | None = None
    ) -> list[SymbolicTensor]:
        self.check([tensor.of_one for tensor in inputs])
        # while a `call` is traced, what stands for the model's own phase is neither True nor False
        node = LayerNode(self, tuple(inputs), training if isinstance(training, bool) else None)
        shapes = self.graph.output_shapes_for([tensor.of_one for tensor in inputs])
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
class PartUse:
    """One use of a part on `inputs`, outputs of earlier uses; `training` None: as the whole model does."""

    part: Part
    inputs: tuple[Slot, ...] = ()
    training: bool | None = None
    arguments: CallArguments = NO_ARGUMENTS


@dataclass(slots=True, eq=False)
class LayerStep:
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
    arguments: CallArguments = NO_ARGUMENTS
    shapes: list[Shape] = field(default_factory=list)
    weights: tuple[tuple[Weight, str], ...] = ()
    trained: tuple[tuple[Weight, str], ...] = ()

    def arriving(self, items: list[Any]) -> Any:
        """Return what the layer is given of something that all `inputs` have: one item, or a list."""
        return items[: len(items) - len(self.arguments.tensors)] if self.layer.takes_list else items[0]


class Graph:
    """Uses of layers and of models, and the outputs of them that are the model's.

    Attributes:
        uses: in an order in which they can run, which is the order in which their weights are created.
        names: of the layers and models within this graph; see `named`.
        steps: the layers that run, also those of models within, in the same order.
        outputs: the model's outputs, as outputs of steps.
        leaving: the same, as outputs of uses.
        regularized: the penalties on weights, and the model's name of each weight.
        submodel: the form in which the model stands in others; None: it stands in none.
        order: parts that come first; those of a class, which has them for attributes.
    """

    def __init__(self, uses: Sequence[PartUse], outputs: Sequence[Slot]) -> None:
        self.uses = tuple(uses)
        self.leaving = tuple(outputs)
        self.built = False
        self.regularized: tuple[tuple[Regularizer, str], ...] = ()
        self.submodel: Submodel | None = None
        self.order: Sequence[Part] = ()
        self._check_wiring()
        self.names = named(list(dict.fromkeys(use.part for use in uses)))
        steps, self._ends = flattened(self.uses, self.names)
        self.steps = tuple(steps)
        self.outputs = tuple(flat(slot, self._ends) for slot in self.leaving)
        self.inputs = tuple(step for step in steps if isinstance(step.layer, InputLayer))
        shapes = [step.layer.input_shape for step in self.inputs]
        if all(shape is not None for shape in shapes):
            self.build(shapes if len(shapes) > 1 else shapes[0])

    @classmethod
    def of_stack(cls, layers: Sequence[Part | SymbolicTensor]) -> Self:
        """Put an `InputLayer` in front unless there is one."""
        stack: list[Part] = [item.node.part if isinstance(item, SymbolicTensor) else item for item in layers]
        if not stack:
            raise SpecError("a network needs at least one layer")
        first = stack[0] if isinstance(stack[0], Layer) else stack[0].graph.inputs[0].layer
        if first is not stack[0] or not isinstance(first, InputLayer):
            stack.insert(0, InputLayer(input_shape=first.input_shape))
        if several := [
            part.label for part in stack[:-1] if isinstance(part, Submodel) and len(part.graph.outputs) > 1
        ]:
            raise SpecError(
                f"{several[0]}: expected a model with one output before another layer, found several outputs"
            )
        uses = [PartUse(part, (Slot(index - 1, 0),) if index else ()) for index, part in enumerate(stack)]
        n_outputs = len(stack[-1].graph.outputs) if isinstance(stack[-1], Submodel) else 1
        return cls(uses, [Slot(len(uses) - 1, output) for output in range(n_outputs)])

    @classmethod
    def between(cls, inputs: Any, outputs: Any) -> Self:
        entering = as_list(inputs)
        leaving = as_list(outputs)
        nodes: dict[LayerNode, int] = {}
        for tensor in [*entering, *leaving]:
            _collect(tensor.node, nodes)
        sources = [node for node in nodes if not node.inputs]
        if sources != [tensor.node for tensor in entering]:
            raise SpecError(
                f"the outputs depend on {len(sources)} inputs, but {len(entering)} were named: name each of "
                "them once"
            )
        uses = [
            PartUse(
                node.part,
                tuple(Slot(nodes[t.node], t.index) for t in node.inputs),
                node.training,
                node.arguments,
            )
            for node in nodes
        ]
        return cls(uses, [Slot(nodes[t.node], t.index) for t in leaving])

    def replayed(self, entering: Sequence[Any]) -> list[Any]:
        """Return the outputs of the same layers for other inputs of the same shapes.

        They are symbols, or within the `call` of a layer arrays.
        """
        source = iter(entering)
        produced = list[list[Any]]()
        for use in self.uses:
            arriving = [produced[slot.step][slot.output] for slot in use.inputs]
            result: Any = next(source) if not arriving else _called(use, arriving)
            produced.append(result if isinstance(result, list) else [result])
        return [produced[slot.step][slot.output] for slot in self.leaving]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Every layer once, also those of models within, in order of first use."""
        return tuple(dict.fromkeys(step.layer for step in self.steps))

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Every layer and model once, in Keras's order; see `by_depth`."""
        inputs = [number for number, use in enumerate(self.uses) if isinstance(use.part, InputLayer)]
        return tuple(dict.fromkeys([*self.order, *by_depth(self.uses, inputs, self.leaving)]))

    def build(self, input_shape: Any) -> None:
        """Work out shapes and weights for one example's shape(s); an `InputError` names the layer."""
        given = list(input_shape) if len(self.inputs) > 1 else [input_shape]
        if len(given) != len(self.inputs):
            raise InputError(f"expected shapes of {len(self.inputs)} inputs, found {len(given)}")
        for step, shape in zip(self.inputs, given, strict=True):
            step.layer.input_shape = tuple(shape)
        declared: dict[Layer, tuple[Weight, ...]] = {}
        for step, shapes in zip(self.steps, self._shapes([tuple(shape) for shape in given]), strict=True):
            step.shapes = shapes
        self._build_submodels()
        for step in self.steps:
            if not step.inputs:
                continue
            arriving = [self.steps[slot.step].shapes[slot.output] for slot in step.inputs]
            weights = tuple(step.layer.declare(step.arriving(arriving)))
            if declared.setdefault(step.layer, weights) != weights:
                raise InputError(
                    f"{step.layer.label}: is used on input shapes that need different weights; "
                    "make a layer for each"
                )
            step.weights = tuple((weight, f"{step.path}/{weight.name}") for weight in weights)
            step.trained = tuple((weight, name) for weight, name in step.weights if weight.trainable)
        penalties = ((regularizers.get(weight.regularizer), name) for _, weight, name in self.weights())
        self.regularized = tuple((penalty, name) for penalty, name in penalties if penalty is not None)
        self.built = True

    def _build_submodels(self) -> None:
        """Check that the shapes that reach models within fit them, and build those that are not built."""
        for use in self.uses:
            if isinstance(use.part, Submodel):
                arriving = [self.shapes_of(slot.step)[slot.output] for slot in use.inputs]
                use.part.check(arriving)
                if not use.part.graph.built:
                    use.part.graph.build(arriving if len(arriving) > 1 else arriving[0])

    def shapes_of(self, number: int) -> list[Shape]:
        end = self._ends[number]
        return (
            self.steps[end].shapes
            if isinstance(end, int)
            else [self.steps[s.step].shapes[s.output] for s in end]
        )

    def output_shapes_for(self, entering: Sequence[Shape]) -> list[Shape]:
        produced = self._shapes(entering)
        return [produced[slot.step][slot.output] for slot in self.outputs]

    def _shapes(self, entering: Sequence[Shape]) -> list[list[Shape]]:
        source = iter(entering)
        produced = list[list[Shape]]()
        for step in self.steps:
            arriving = [produced[slot.step][slot.output] for slot in step.inputs]
            layer = step.layer
            shape: Any = (
                layer.shape_of_use(step.arriving(arriving), step.arguments) if arriving else next(source)
            )
            produced.append(shape if isinstance(shape, list) else [shape])
        return produced

    def weights(self) -> Iterable[tuple[Layer, Weight, str]]:
        """Yield every weight once, in creation order: its layer, its declaration, its name in the model."""
        seen: set[Layer] = set()
        for step in self.steps:
            for weight, name in step.weights if step.layer not in seen else ():
                yield step.layer, weight, name
            seen.add(step.layer)

    def constraints(self) -> dict[str, Constraint]:
        """Return the limits of weights that are trained, by the model's names of them."""
        found = (
            (name, constraints.get(weight.constraint))
            for layer, weight, name in self.weights()
            if weight.trainable and layer.trainable
        )
        return {name: constraint for name, constraint in found if constraint is not None}

    def names_by_depth(self) -> list[str]:
        """Return the names by `parts`; within a layer the trained ones come first."""
        names: dict[Layer, list[str]] = {}
        for layer, _, name in sorted(self.weights(), key=lambda each: not each[1].trainable):
            names.setdefault(layer, []).append(name)
        return [name for layer in self.layers_by_depth() for name in names.pop(layer, ())]

    def layers_by_depth(self) -> Iterator[Layer]:
        """Yield the layers by `parts`, some of them several times."""
        for part in self.parts:
            yield from [part] if isinstance(part, Layer) else part.graph.layers_by_depth()

    @cached_property
    def counts(self) -> dict[Layer, int]:
        return dict(Counter(step.layer for step in self.steps))

    @cached_property
    def activity_penalties(self) -> dict[int, Regularizer]:
        found = ((number, step.layer.activity_penalty()) for number, step in enumerate(self.steps))
        return {number: penalty for number, penalty in found if penalty is not None}

    @cached_property
    def masks(self) -> bool:
        """Whether a layer may make masks, or be given one."""
        return any(
            type(step.layer).compute_mask is not Layer.compute_mask or step.arguments is not NO_ARGUMENTS
            for step in self.steps
        )

    @cached_property
    def stand_ins(self) -> dict[int, Layer]:
        """Return the layers that compute several steps together and faster, by the steps' numbers."""
        found: dict[int, Layer] = {}
        for number, step in enumerate(self.steps):
            source = step.inputs[0].step if len(step.inputs) == 1 else number
            together = pooled(self.steps[source].layer, step.layer)
            if together is not None and self.readers(source) == 1 and source not in self.activity_penalties:
                found |= {source: together, number: InputLayer(name=step.layer.name)}
        return found

    @cached_property
    def output_names(self) -> list[str]:
        names: list[str] = []
        for slot in self.leaving:
            base = self.names[self.uses[slot.step].part]
            numbered = (f"{base}_{number}" if number else base for number in range(len(self.leaving)))
            names.append(next(name for name in numbered if name not in names))
        return names

    def readers(self, number: int) -> int:
        """Return how often the outputs of a step are read, by other steps or as the model's."""
        read = [*self.outputs, *(slot for step in self.steps for slot in step.inputs)]
        return sum(slot.step == number for slot in read)

    def get_config(self) -> dict[str, Any]:
        layers: dict[Layer, int] = {}
        models: dict[Submodel, int] = {}
        described: list[dict[str, Any]] = []

        def collect(graph: Graph) -> dict[str, Any]:
            for part in graph.names:
                if isinstance(part, Layer):
                    layers.setdefault(part, len(layers))
                elif part not in models:
                    description = {"name": part.name, "kind": part.kind, **collect(part.graph)}
                    models[part] = len(models)
                    described.append(description)
            return {
                "steps": [_use_to_data(use, layers, models) for use in graph.uses],
                "outputs": [list(slot) for slot in graph.leaving],
                **({"order": [[*graph.names].index(part) for part in graph.order]} if graph.order else {}),
            }

        wiring = collect(self)
        table = [_layer_to_data(layer) for layer in layers]
        return {"layers": table, **({"models": described} if described else {}), **wiring}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: CustomObjects = NO_OBJECTS) -> Self:
        try:
            layers = [_layer_from_data(each, custom_objects) for each in config["layers"]]
            models: list[Submodel] = []
            for each in config.get("models", ()):
                if each["kind"] not in KINDS or not isinstance(each["name"], str):
                    raise SpecError(
                        f"a model within: expected a name and one of {', '.join(KINDS)}, found "
                        f"{each['name']!r}, {each['kind']!r}"
                    )
                inner = cls._of_uses(each, layers, models)
                inner.submodel = Submodel(each["name"], each["kind"], inner)
                models.append(inner.submodel)
            return cls._of_uses(config, layers, models)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise SpecError(f"the config of a network is malformed: {error!r}") from error

    @classmethod
    def _of_uses(cls, data: Mapping[str, Any], layers: Sequence[Layer], models: Sequence[Submodel]) -> Self:
        uses = [_use_from_data(each, layers, models) for each in data["steps"]]
        graph = cls(uses, [Slot(*slot) for slot in data["outputs"]])
        graph.order = [[*graph.names][number] for number in data.get("order", ())]
        return graph

    def _check_wiring(self) -> None:
        for index, use in enumerate(self.uses):
            where = f"step {index}, {use.part.label}"
            if isinstance(use.part, InputLayer) == bool(use.inputs):
                raise SpecError(f"{where}: input layers, and only they, read no other step")
            if not all(0 <= slot.step < index and slot.output >= 0 for slot in use.inputs):
                raise SpecError(f"{where}: reads {use.inputs}, which are not all outputs of earlier steps")
            takes = len(use.part.graph.inputs) if isinstance(use.part, Submodel) else 1
            if isinstance(use.part, Layer) and use.part.composition is not None and len(use.inputs) > 1:
                use.part.takes_list = True  # type: ignore[misc]
            if len(use.inputs) - len(use.arguments.tensors) not in (0, takes) and not (
                isinstance(use.part, Layer) and use.part.takes_list
            ):
                raise SpecError(
                    f"{where}: expected {takes} input{'s' if takes > 1 else ''}, found {len(use.inputs)}"
                )
        if not self.leaving or not all(
            0 <= slot.step < len(self.uses) and slot.output >= 0 for slot in self.leaving
        ):
            raise SpecError(f"a network needs outputs of its {len(self.uses)} steps, found {self.leaving}")


def flattened(
    uses: Sequence[PartUse], names: Mapping[Part, str]
) -> tuple[list[LayerStep], list[list[Slot] | int]]:
    """Return a graph's steps, and each use's outputs or, for a layer, its step's number.

    A layer that is used in several models has the path of its first use. `training` of a call of an inner
    model's layer counts more than that of the model's call.
    """
    steps: list[LayerStep] = []
    paths: dict[Layer, str] = {}
    ends: list[list[Slot] | int] = []
    for use in uses:
        arriving = tuple(flat(slot, ends) for slot in use.inputs)
        if isinstance(use.part, Layer):
            steps.append(
                LayerStep(
                    use.part,
                    paths.setdefault(use.part, names[use.part]),
                    arriving,
                    use.training,
                    use.arguments,
                )
            )
            ends.append(len(steps) - 1)
            continue
        graph = use.part.graph
        within: list[list[Slot] | int] = []
        entering = iter(arriving)
        for inner in graph.steps:
            if isinstance(inner.layer, InputLayer):
                within.append([next(entering)])
                continue
            inputs = tuple(flat(slot, within) for slot in inner.inputs)
            path = paths.setdefault(inner.layer, f"{names[use.part]}/{inner.path}")
            training = use.training if inner.training is None else inner.training
            steps.append(LayerStep(inner.layer, path, inputs, training, inner.arguments))
            within.append(len(steps) - 1)
        ends.append([flat(slot, within) for slot in graph.outputs])
    return steps, ends


def flat(slot: Slot, ends: Sequence[list[Slot] | int]) -> Slot:
    end = ends[slot.step]
    return Slot(end, slot.output) if isinstance(end, int) else end[slot.output]


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


def _called(use: PartUse, arriving: list[Any]) -> Any:
    if isinstance(use.part, Submodel):
        if not isinstance(arriving[0], SymbolicTensor):
            return use.part.graph.replayed(arriving)
        return use.part(arriving, use.training)
    return use.part.used(tuple(arriving), use.training, use.arguments)


def _collect(node: LayerNode, nodes: dict[LayerNode, int]) -> None:
    if node not in nodes:
        for tensor in node.inputs:
            _collect(tensor.node, nodes)
        nodes[node] = len(nodes)


def as_list(tensors: Any) -> list[SymbolicTensor]:
    given = [tensors] if isinstance(tensors, SymbolicTensor) else list(tensors)
    for tensor in given:
        if not isinstance(tensor, SymbolicTensor):
            raise SpecError(f"expected results of Input() or of layers, found {type(tensor).__name__}")
    return given


def by_depth(uses: Sequence[PartUse], inputs: Sequence[int], outputs: Sequence[Slot]) -> list[Part]:
    """Return every part once; `inputs` are the numbers of the uses at which data enter."""
    left, met = _walk(uses, outputs)
    depths = dict.fromkeys(left, 0)
    deepest: dict[Part, int] = {}
    for number in reversed(left):
        use = uses[number]
        depth = deepest[use.part] = max(depths[number], deepest.get(use.part, 0))
        for slot in use.inputs:
            depths[slot.step] = max(depths[slot.step], depth + 1)
    for number in inputs:
        if uses[number].part not in deepest:
            deepest[uses[number].part] = 0
            met[uses[number].part] = -1
    return sorted(deepest, key=lambda part: (-deepest[part], met[part]))


def _walk(uses: Sequence[PartUse], outputs: Sequence[Slot]) -> tuple[list[int], dict[Part, int]]:
    """Return the uses in the order in which a walk back from the outputs leaves them, and first visits."""
    left: list[int] = []
    met: dict[Part, int] = {}
    seen: set[int] = set()
    ahead = [(slot.step, False) for slot in reversed(outputs)]
    while ahead:
        number, done = ahead.pop()
        if done:
            left.append(number)
        elif number not in seen:
            seen.add(number)
            met.setdefault(uses[number].part, len(met))
            ahead.append((number, True))
            ahead += [(slot.step, False) for slot in reversed(uses[number].inputs)]
    return left, met


def _layer_to_data(layer: Layer) -> dict[str, Any]:
    data: dict[str, Any] = to_data(layer)
    return data | {"numbered": True} if layer.numbered else data


def _layer_from_data(data: Any, custom_objects: CustomObjects) -> Layer:
    layer: Layer = from_data(data, "layer", classes(), custom_objects)
    layer.numbered = bool(data.get("numbered", False))
    return layer


def _use_to_data(use: PartUse, layers: Mapping[Layer, int], models: Mapping[Submodel, int]) -> dict[str, Any]:
    number = {"layer": layers[use.part]} if isinstance(use.part, Layer) else {"model": models[use.part]}
    training = {} if use.training is None else {"training": use.training}
    given = {"arguments": list(use.arguments.tensors)} if use.arguments.tensors else {}
    options = {"options": to_data(use.arguments.options)} if use.arguments.options else {}
    return {**number, "inputs": [list(slot) for slot in use.inputs], **training, **given, **options}


def _use_from_data(data: Mapping[str, Any], layers: Sequence[Layer], models: Sequence[Submodel]) -> PartUse:
    part: Part = models[data["model"]] if "model" in data else layers[data["layer"]]
    training = data.get("training")
    if training not in (None, True, False):
        raise SpecError(f"training: expected true or false, found {training!r}")
    given = CallArguments(tuple(data.get("arguments", ())), dict(data.get("options", {})))
    return PartUse(part, tuple(Slot(*slot) for slot in data["inputs"]), training, given)
