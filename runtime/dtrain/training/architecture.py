"""A model without its training: its layers and the models within, their variables and values, its summary.

Every replica has a copy of the variables. A summary has the form of `tf.keras.Model.summary`.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

import numpy as np

from dtrain.checkpoints import OptimizerState
from dtrain.errors import InputError, SpecError
from dtrain.learning.core.configuration import OfBaseClass
from dtrain.learning.graphs.graph import Graph, Part, Submodel
from dtrain.learning.graphs.networks import Network
from dtrain.learning.graphs.passes import only
from dtrain.learning.layers import InputLayer, Layer, SymbolicTensor
from dtrain.learning.layers.weights import fitting
from dtrain.learning.optimizers import Optimizer
from dtrain.parameters.store import ShownVariables
from dtrain.saving.destination import FilePath, source, tell_format
from dtrain.saving.model_files import load_weights, save_weights
from dtrain.strategies.choice import get_strategy
from dtrain.strategies.interface import Strategy
from dtrain.strategies.replicas.contexts import ReplicaContext, ReplicaGroup, here
from dtrain.strategies.replicas.variable import Variable, VariableAggregation
from dtrain.strategies.shared import register_owner
from dtrain.training.access import WithAccess
from dtrain.training.batches import Batches
from dtrain.types import Array, Shape
from dtrain.variables import VariableSpec

if TYPE_CHECKING:  # loaded where a program asks for it
    from dtrain.learning.graphs.costs import Profile

CLASSES: dict[str, type[Any]] = {}
"""The classes of models of which files know, by name; each adds itself where it is defined."""


def submodel(model: Any) -> Submodel:
    """Return the form in which a model stands in others, always the same object.

    A model of a class that files do not know takes the form of the class that it extends.
    """
    graph = model.network.graph
    if graph.submodel is None:
        kind = next(cls.__name__ for cls in type(model).__mro__ if cls in CLASSES.values())
        graph.submodel = Submodel(model.name, kind, graph, model)
    standing: Submodel = graph.submodel
    return standing


def shown(part: Part) -> Any:
    """Return the item of `Model.layers` for a part of a graph; a model from a file is made first."""
    if isinstance(part, Layer):
        return part
    if part.model is None:
        graph = part.graph
        assert isinstance(graph, Graph)
        part.model = CLASSES[part.kind].of_network(Network(graph), part.name)
    return part.model


def names_by_weight(graph: Graph) -> dict[tuple[Layer, str], str]:
    """Return the variables' names in a graph by layer and weight, which other graphs may have too."""
    return {(layer, weight.name): name for layer, weight, name in graph.weights()}


def in_order(tensors: Any, what: str) -> Any:
    """Return symbolic tensors in a list; those of a dict, whose keys are their layers' names, sorted."""
    if not isinstance(tensors, Mapping):
        return tensors
    for key, tensor in tensors.items():
        if isinstance(tensor, SymbolicTensor) and tensor.node.part.name != key:
            raise SpecError(
                f"{what}: expected the names of layers, found {key!r} for {tensor.node.part.label}; give it "
                f"name={key!r}"
            )
    return [tensors[key] for key in sorted(tensors)]


_numbers = itertools.count()
"""Of the models of this process, in the order in which they are made."""

LINE_LENGTH = 65
UNITS = ("Byte", "KB", "MB", "GB", "TB")


def summary(
    name: str, graph: Graph, variables: Iterable[VariableSpec], line_length: int = LINE_LENGTH
) -> str:
    """Return the table of a built graph; a stack's has no column of connections."""
    is_stack = all(
        [slot.step for slot in use.inputs] == [index - 1]
        for index, use in enumerate(graph.uses)
        if use.inputs
    )
    rows = _rows(graph, is_stack)
    widths = [max(len(row[column]) for row in rows) + 2 for column in range(len(rows[0]))]
    length = max(line_length, sum(widths))
    head, *body = (
        " " + "".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    specs = list(variables)
    totals = [
        _total("Total", specs),
        _total("Trainable", [spec for spec in specs if spec.trainable]),
        _total("Non-trainable", [spec for spec in specs if not spec.trainable]),
    ]
    return "\n".join(
        [f'Model: "{name}"', "_" * length, head, "=" * length, *body, "=" * length, *totals, "_" * length]
    )


def profile(model: "Architecture", batch: Any) -> "Profile":
    """Measure what each layer of a model costs for one batch, in about a second: seconds forward and back,
    parameters, what is kept from forward to backward, and what crosses a cut behind it. Printed, it is a
    table. Nothing is trained.

    Args:
        model: a `Sequential` or `Model` of layers.
        batch: its inputs, or a tuple ``(x, y)`` as `fit` reads them, of which y is not used.

    Raises:
        InputError: the model has no layers, or the batch does not fit.
    """
    from dtrain.learning.graphs.costs import measure

    x = batch[0] if isinstance(batch, tuple) else batch
    if not model.built:
        model.build((None, *np.shape(x)[1:]))
    return measure(model.network.graph, model.created_variables, model.arrays, x, time.perf_counter)


def _rows(graph: Graph, is_stack: bool) -> list[list[str]]:
    """Return the header, and a row for each use; only a layer's first row has its parameters."""
    rows = [["Layer (type)", "Output Shape", "Param #", "Connected to"]]
    sizes = dict[Layer, int]()
    for layer, weight, _ in graph.weights():
        sizes[layer] = sizes.get(layer, 0) + prod(weight.shape)
    for number, use in enumerate(graph.uses):
        if is_stack and isinstance(use.part, InputLayer):
            continue
        kind = type(use.part).__name__ if isinstance(use.part, Layer) else use.part.kind
        layers = [use.part] if isinstance(use.part, Layer) else use.part.graph.layers
        count = sum(sizes.pop(layer, 0) for layer in layers)
        sources = [f"{graph.names[graph.uses[slot.step].part]}[{slot.output}]" for slot in use.inputs]
        shapes = ", ".join(map(_shape, graph.shapes_of(number)))
        rows.append([f"{graph.names[use.part]} ({kind})", shapes, str(count), ", ".join(sources)])
    return [row[:3] for row in rows] if is_stack else rows


def _shape(shape: Shape) -> str:
    return f"({', '.join(str(length) for length in (None, *shape))}{',' if not shape else ''})"


def _total(what: str, specs: list[VariableSpec]) -> str:
    size = float(sum(spec.nbytes for spec in specs))
    unit = 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size = size / 1024
        unit = unit + 1
    return f"{what} params: {sum(spec.size for spec in specs)} ({size:.2f} {UNITS[unit]})"


class ModelVariables:
    """The variables of one model; they share the arrays of `Model.arrays`.

    Those that are not trained, such as moving averages, differ from replica to replica; outside of the
    replicas they are their mean, as TensorFlow's are.
    """

    def __init__(
        self, group: ReplicaGroup, specs: tuple[VariableSpec, ...], values: Mapping[str, Array]
    ) -> None:
        self.group = group
        self.by_name = {
            spec.name: Variable.of(
                as_array(values[spec.name]),
                spec.name,
                group,
                VariableAggregation.NONE if spec.trainable else VariableAggregation.MEAN,
                on_read=not spec.trainable,
                trainable=spec.trainable,
            )
            for spec in specs
        }
        self._draws = [itertools.count() for _ in range(group.replicas)]

    def bind(self, values: Mapping[str, Array]) -> None:
        for name, variable in self.by_name.items():
            variable.set_all(as_array(values[name]))

    def follow(self, replaced: Mapping[int, Array]) -> None:
        for variable in self.by_name.values():
            if (new := replaced.get(id(variable.copy_of(0)))) is not None:
                variable.set_all(new)

    def seen_here(self) -> dict[str, Array]:
        """Return the calling replica's own values; outside of the replicas, the common ones."""
        index = self.index()
        if index is not None:
            return {name: variable.copy_of(index) for name, variable in self.by_name.items()}
        return {
            name: variable.common() if variable.on_read else variable.copy_of(0)
            for name, variable in self.by_name.items()
        }

    def index(self) -> int | None:
        place = here()
        return place.index if isinstance(place, ReplicaContext) and place.group is self.group else None

    def diverge(self) -> None:
        """Note that the replicas' copies of variables that are not trained may differ from now on."""
        for variable in self.by_name.values():
            variable.diverge()

    def take_state(self, index: int, updates: Mapping[str, Array]) -> None:
        """Set a replica's copies of variables that are not trained."""
        for name, value in updates.items():
            variable = self.by_name[name]
            if variable.home is not None:
                variable.assign(value)
            else:
                variable.set_copy(index, np.array(value))

    def rng(self, index: int, seed: int) -> Callable[[], np.random.Generator]:
        """Return what makes the random numbers of a replica's next pass, which follow from the seed."""
        words = [seed, self.group.first + index, next(self._draws[index])]
        return lambda: np.random.default_rng(words)


def as_array(value: Any) -> Array:
    """Return a variable's value as an array in memory; a table may not be one yet."""
    return value if isinstance(value, np.ndarray) else np.array(value)


class Architecture(WithAccess):
    """A network with the strategy in whose scope it was made; `Model` adds training."""

    _network: Network | None = OfBaseClass()  # type: ignore[assignment]

    def __init__(self, network: Network | None, name: str | None) -> None:
        self.name = name or type(self).__name__.lower()
        self.strategy: Strategy = get_strategy()
        self.number = next(_numbers)
        self.compiled: Any = None
        self._network = network
        self._values: dict[str, Array] | None = None
        self._in_replicas: ModelVariables | None = None
        self._making = threading.RLock()
        self._once_built: Callable[[], None] | None = None
        self.stop_training = False
        register_owner(self)

    def __repr__(self) -> str:
        size = f"{self.count_params():,} parameters" if self.built else "not built yet"
        return f"<{type(self).__name__} {self.name}: {size}>"

    @property
    def network(self) -> Network:
        """The layers as a whole.

        Raises:
            InputError: there are none yet.
        """
        if self._network is None:
            use = "has no layers; compose them in Sequential or Model(inputs, outputs)"
            if hasattr(self, "call"):
                use = "has no layers yet; call it with an array, build(input_shape), or fit first"
            raise InputError(f"{self.name}: {use}")
        return self._network

    @property
    def has_layers(self) -> bool:
        """True if there is a network."""
        return self._network is not None

    @property
    def layers(self) -> list[Any]:
        """Every layer, and every model used like one, once, in Keras's order (see `depth_order`)."""
        return list(map(shown, self.network.graph.parts))

    @property
    def trainable(self) -> bool:
        """True if any layer is trainable; set it to freeze or thaw all of them."""
        return any(layer.trainable for layer in self.network.layers)

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        """Freeze or thaw every layer."""
        for layer in self.network.layers:
            layer.trainable = trainable

    @property
    def input_shape(self) -> Any:
        """The shape of a batch, whose size is None; a list for several inputs."""
        return only([(None, *shape) for shape in self._built_network().input_shapes])

    @property
    def output_shape(self) -> Any:
        """The shape of the output of a batch, whose size is None; a list for several outputs."""
        return only([(None, *shape) for shape in self._built_network().output_shapes])

    def get_layer(self, name: str | None = None, index: int | None = None) -> Any:
        """Return the layer (or the model used like one) of this name, or with this number in `layers`.

        Raises:
            InputError: there is none.
        """
        layers = self.layers
        names = {shown(part): each for part, each in self.network.graph.names.items()}
        found = (
            layers[index : index + 1]
            if index is not None
            else [each for each in layers if names[each] == name]
        )
        if not found:
            wanted = name if index is None else index
            raise InputError(
                f"{self.name}: has no layer {wanted}; it has {', '.join(names[each] for each in layers)}"
            )
        return found[0]

    def count_params(self) -> int:
        """Return the number of elements of all variables."""
        return sum(spec.size for spec in self._built_network().variables)

    @property
    def variable_specs(self) -> tuple[VariableSpec, ...]:
        """Trained and other variables in Keras's order, in which `get_weights` gives their values.

        Checkpoints, files and the placement on servers follow `created_variables`.
        """
        created = {spec.name: spec for spec in self.network.variables}
        return tuple(created[name] for name in self.network.graph.names_by_depth())

    def in_replicas(self) -> ModelVariables:
        """Return the variables as those of the strategy's replicas, made at the first call."""
        with self._making:
            if self._in_replicas is None:
                values = self.arrays
                self._in_replicas = ModelVariables(self.strategy.loops, self.created_variables, values)
                for name, limit in (self.network.graph.constraints() if self.has_layers else {}).items():
                    self._in_replicas.by_name[name].constraint = limit
                for variable in self._in_replicas.by_name.values():
                    variable.find_state = self._state_of
                    variable.assigned = self._share
            return self._in_replicas

    @property
    def created_variables(self) -> tuple[VariableSpec, ...]:
        """The same variables in order of creation: a stack's; in a graph each after those it depends on."""
        return self.network.variables

    @property
    def built(self) -> bool:
        """True if the variables' shapes are known."""
        return self._network is not None and self._network.built

    def build(self, input_shape: Any = None) -> None:
        """Fix the shapes for inputs of this shape: of one example, or of a batch if its first length is None.

        A list of shapes stands for several inputs. Compare `tf.keras.Model.build`, which wants the batch
        axis. Without a shape that of the first layer holds.
        """
        if input_shape is None:
            self._know_shapes()
        elif not self.built:
            self._fix_shapes(_of_one_example(input_shape))

    def once_built(self, act: Callable[[], None]) -> None:
        """Call a function as soon as the shapes are known, which may be now; the last one given counts."""
        if self.built:
            act()
        else:
            self._once_built = act

    def build_for(self, batches: Batches) -> None:
        """Fix the shapes, if they are not known, for inputs like these."""
        if not self.built:
            shape = batches.first().input_shape
            try:
                self._fix_shapes(batches.open_shape(shape))
            except InputError:  # a layer needs a length that may vary
                self._fix_shapes(shape)

    @property
    def arrays(self) -> dict[str, Array]:
        """Every variable by name: of the training under way or the last one, else the initial values."""
        shared = self.strategy.shared
        if shared is not None and shared.holds(self):
            return shared.weights(self)
        values = self._values
        if values is None:
            self._know_shapes()
            first = self.initial_values(self.strategy.seed)
            known = {
                ours: values[theirs] for _, names, values in self._sharing() for ours, theirs in names.items()
            }
            values = self.arrays = first | known
        return values if self._in_replicas is None else self._in_replicas.seen_here()

    @arrays.setter
    def arrays(self, values: dict[str, Array]) -> None:
        """Use these arrays, every variable by name, from now on, also in models that use the same layers.

        See `set_weights` for copies that are checked.
        """
        shared = self.strategy.shared
        if shared is not None and shared.holds(self):
            shared.assign(self, {spec.name: np.asarray(values[spec.name]) for spec in self.created_variables})
            return
        self._set_values(values)
        for other, names, others in self._sharing():
            other._set_values({**others, **{theirs: values[ours] for ours, theirs in names.items()}})
        for layer in self.network.layers if self.has_layers else ():
            layer.used_by.add(self)
        self._hand_down(values)
        if isinstance(values, ShownVariables):
            values.follower = WeakMethod(self._follow)

    def _follow(self, replaced: Mapping[int, Array]) -> None:
        """Let new arrays stand wherever this model, and those that use its layers, keep the old ones."""
        layers = () if self._network is None else self._network.layers
        for model in {self, *(user for layer in layers for user in layer.used_by)}:
            values = model._values
            if values is not None and not isinstance(values, ShownVariables):
                model._values = {name: replaced.get(id(value), value) for name, value in values.items()}
            if model._in_replicas is not None:
                model._in_replicas.follow(replaced)

    def _set_values(self, values: dict[str, Array]) -> None:
        self._values = values
        if self._in_replicas is not None:
            self._in_replicas.bind(values)

    def _share(self, variable: Variable) -> None:
        """Give models that use the same layers the value that a variable was assigned."""
        for other, names, values in self._sharing():
            if variable.name in names:
                other._set_values({**values, names[variable.name]: variable.copy_of(0)})

    def _hand_down(self, values: dict[str, Array]) -> None:
        """Give the models within this one their values, if they have none; they outlive this model then."""
        for part in self.network.graph.names if self.has_layers else ():
            if isinstance(part, Submodel) and part.model is not None and part.model._values is None:
                ours, theirs = names_by_weight(self.network.graph), names_by_weight(part.graph)
                if theirs.keys() <= ours.keys():
                    part.model.arrays = {name: values[ours[weight]] for weight, name in theirs.items()}

    def _sharing(self) -> "Iterator[tuple[Architecture, dict[str, str], dict[str, Array]]]":
        """Yield models that share layers, the variables' names here and there, and their values."""
        layers = self.network.layers if self.has_layers else ()
        others: set[Architecture] = {user for layer in layers for user in layer.used_by if user is not self}
        for other in others:
            ours, theirs = names_by_weight(self.network.graph), names_by_weight(other.network.graph)
            shared = {name: theirs[weight] for weight, name in ours.items() if weight in theirs}
            yield other, shared, other.arrays

    def initial_values(self, seed: int) -> dict[str, Array]:
        """Return the initial value of every variable, which follows from the seed."""
        return self.network.initial_values(seed)

    def get_config(self) -> dict[str, Any]:
        """Return name and layers as JSON types; see `tf.keras.Model.get_config`."""
        return {"name": self.name, **self.network.get_config()}

    def get_weights(self) -> list[Array]:
        """Return copies of every variable, in the order of `variables`, which is Keras's."""
        return [np.array(self.arrays[spec.name]) for spec in self.variable_specs]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set every variable, in the order of `variables`, which is Keras's.

        Raises:
            InputError: there are more or fewer, or a shape differs.
        """
        variables = self.variable_specs
        if len(weights) != len(variables):
            raise InputError(f"set_weights: expected {len(variables)} arrays, found {len(weights)}")
        self.arrays = {
            spec.name: fitting("set_weights", spec.name, value, spec)
            for spec, value in zip(variables, weights, strict=True)
        }

    def save_weights(self, filepath: FilePath, overwrite: bool = True) -> None:
        """Write every variable to a safetensors file, whatever its name; see `tf.keras.Model.save_weights`.

        Raises:
            CheckpointError: it cannot be written.
        """
        if self.strategy.is_leader:
            tell_format(filepath)
        save_weights(filepath, self.created_variables, self.arrays, self.strategy, overwrite=overwrite)

    def load_weights(self, filepath: FilePath, skip_mismatch: bool = False, by_name: bool = False) -> None:
        """Set the variables from a file of `save_weights` or `save`, or a checkpoint.

        See `dtrain.saving.model_files.load_weights`. A task that does not lead reads its own copy of a file
        that it saved, else the leader's file.

        Raises:
            CheckpointError: the file is damaged, or holds other variables than this model has.
        """
        path = source(self.strategy, filepath)
        known = self.arrays
        keras_files = import_module("dtrain.training.keras_files")  # which makes models
        if keras_files.is_of_keras(Path(path)):
            found = keras_files.load_weights(Path(path), self, by_name=by_name, skip_mismatch=skip_mismatch)
        else:
            found = load_weights(path, self.variable_specs, by_name=by_name, skip_mismatch=skip_mismatch)
        self.arrays = known | found

    def summary(self, line_length: int = LINE_LENGTH, print_fn: Callable[[str], object] = print) -> None:
        """Print layers, shapes and numbers of parameters; see `tf.keras.Model.summary`.

        Raises:
            InputError: the shapes are not known.
        """
        print_fn(summary(self.name, self._built_network().graph, self.variable_specs, line_length))

    def _built_network(self) -> Network:
        self._know_shapes()
        return self.network

    def _state_of(self, optimizer: Optimizer) -> OptimizerState | None:
        """Return an optimizer's state with this model, from `fit` or a file; None: it has made no update."""
        return None

    def _know_shapes(self) -> None:
        """Fix the shapes as the first layer assumes them, unless known; otherwise raise an `InputError`."""
        if self.built:
            return
        assumed = self.network.assumed_input_shape
        if assumed is None:
            raise InputError(
                f"{self.name}: its shapes are unknown; give the first layer an input_shape, or call build "
                "or fit first"
            )
        self._fix_shapes(assumed)

    def _fix_shapes(self, of_one_example: Any) -> None:
        self.network.build(of_one_example)
        act, self._once_built = self._once_built, None
        if act is not None:
            act()


def _of_one_example(shape: Any) -> Any:
    """Return a shape, or each of a list of them, without a batch axis, whose length is None."""
    if shape and isinstance(shape[0], list | tuple):
        return [_of_one_example(each) for each in shape]
    return tuple(shape[1:] if shape and shape[0] is None else shape)
