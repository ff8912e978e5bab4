"""The interface of layers: a description as data, weights for an input shape, forward and backward.

A layer holds no weights. They are passed in at every call, because a strategy owns their memory, and
gradients are written into arrays that are passed in too. So are the random numbers of a step, and the way
to sums over the replicas that compute its other parts. Shapes are those of one example, without the batch
axis.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from importlib import import_module
from math import prod
from numbers import Integral
from typing import Any, ClassVar, TypeAlias

import numpy as np

from dtrain.cluster import TaskId
from dtrain.errors import InputError, ProgramError, SpecError
from dtrain.learning.core import activations, regularizers
from dtrain.learning.core.activations import Activation
from dtrain.learning.core.arrays import FLOAT32, shape_text
from dtrain.learning.core.configuration import Configurable, snake_case
from dtrain.learning.core.constraints import ConstraintLike
from dtrain.learning.core.initializers import InitializerLike
from dtrain.learning.core.regularizers import Regularizer, RegularizerLike
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.functions.tensors import Symbol
from dtrain.learning.layers.weights import WithWeights
from dtrain.types import Array, Arrays, Shape

Chance: TypeAlias = np.random.Generator | Callable[[], np.random.Generator]


def generator_of(chance: Chance) -> np.random.Generator:
    return chance if isinstance(chance, np.random.Generator) else chance()


@dataclass(frozen=True)
class StepSums:
    """Sums over all replicas of a step; each of them asks for the same sums in the same order.

    Attributes:
        total: returns the sum of what all replicas give, added up in their order.
        weight: of this part's gradients in those of the step, compared with the other parts'.
    """

    total: Callable[[Array], Array]
    weight: float = 1.0

    def of_gradients(self, gradients: Array) -> Array:
        """Return the sum of gradients of every replica's own loss, weighed as in the step.

        It is divided by this replica's weight, by which its gradients are multiplied later.
        """
        if self.weight == 1.0:
            return self.total(gradients)
        weight = np.float32(self.weight)
        return self.total(gradients * weight) / weight


@dataclass(frozen=True, slots=True)
class Weight:
    """One array that a layer declares.

    Attributes:
        name: within the layer, for example ``kernel``; a model's variable is called ``<layer name>/<name>``.
        shape: without unknown lengths.
        initializer: first values: a name or an `Initializer`.
        regularizer: penalty, which is added to the loss.
        constraint: what becomes of it after each update.
        trainable: whether it has a gradient.
        sparse: the layer may give the gradient as `SparseRows` (see `Call.sparse_gradients`).
        dtype: numpy's name of it.
    """

    name: str
    shape: tuple[int, ...]
    initializer: InitializerLike = "glorot_uniform"
    regularizer: RegularizerLike = None
    trainable: bool = True
    sparse: bool = False
    dtype: str = "float32"
    constraint: ConstraintLike = None

    @property
    def may_be_sparse(self) -> bool:
        """True if the gradient may be `SparseRows`. A penalty or constraint concerns every row."""
        plain = self.regularizer is None and self.constraint is None
        return self.sparse and plain and self.dtype == "float32"


class Call:
    """The circumstances of one step of one layer, besides its weights and arrays.

    Attributes:
        training: whether dropout drops and batch statistics are used.
        rng: the source of random numbers, or a function that returns it; None where none are wanted.
        needs_input_gradient: False if the result of `backward` is not used; it may then return None.
        memory: behind `scratch`; of this pass alone, and of a later one when it has ended.
        sums: over the replicas of the step; None where this pass is alone.
        goes_back: whether `backward` may follow.
        updates: new values of weights that are not trained, by name; the layer adds to it in `forward`.
        sparse_gradients: gradients that are `SparseRows`, by name; the layer adds to it in `backward`.
        mask: of the input, [batch, ...] of bool: False where there is nothing; a list of masks for a list of
            inputs; None where there is none.
        arguments: of this use of the layer, by name; see `CallArguments`.
        argument_gradients: by the arguments that are arrays; the layer adds to it in `backward`.
    """

    __slots__ = (
        "_chance",
        "argument_gradients",
        "arguments",
        "goes_back",
        "mask",
        "memory",
        "needs_input_gradient",
        "sparse_gradients",
        "sums",
        "training",
        "updates",
    )

    def __init__(
        self,
        training: bool = False,
        rng: Chance | None = None,
        needs_input_gradient: bool = True,
        memory: dict[str, Any] | None = None,
        sums: StepSums | None = None,
        *,
        goes_back: bool = True,
    ) -> None:
        self.mask: Any = None
        self.arguments: Mapping[str, Any] = {}
        self.argument_gradients: dict[str, Array] = {}
        self.goes_back = goes_back
        self.sums = sums
        self.training = training
        self.needs_input_gradient = needs_input_gradient
        self.updates: dict[str, Array] = {}
        self.sparse_gradients: dict[str, SparseRows] = {}
        self.memory: dict[str, Any] = {} if memory is None else memory
        self._chance = rng

    @property
    def rng(self) -> np.random.Generator | None:
        """Source of random numbers; None where none are wanted."""
        return None if self._chance is None else generator_of(self._chance)

    def of_part(self, name: str) -> "Call":
        """Return the circumstances of a layer within this one, which has scratch memory of its own."""
        return Call(self.training, self._chance, True, self.memory.setdefault(name, {}), self.sums)

    def scratch(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        """Return uninitialised C-contiguous memory, the same for a name until this pass has ended.

        Take large temporary arrays from here: memory that is allocated anew costs a page fault every 4 KiB.
        """
        size = prod(shape)
        memory = self.memory.get(name)
        if memory is None or memory.size < size or memory.dtype != dtype:
            memory = self.memory[name] = np.empty(size, dtype)
        return memory[:size].reshape(shape)


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Arguments of a call of a layer beside its inputs: ``lstm(x, initial_state=[h, c])``.

    Attributes:
        tensors: the names of arguments that are tensors, which come behind the inputs of the use; those of a
            list are numbered: ``initial_state/0``.
        options: JSON types by name.
    """

    tensors: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


NO_ARGUMENTS = CallArguments()


@dataclass(frozen=True, slots=True, eq=False)
class LayerNode:
    """One use of a layer or a `Submodel` in a graph; `training` None: as the model does."""

    part: Any
    inputs: tuple["SymbolicTensor", ...]
    training: bool | None = None
    arguments: CallArguments = NO_ARGUMENTS


@dataclass(frozen=True, slots=True, eq=False)
class SymbolicTensor(Symbol):
    """An array that will exist when the model runs: the result of `Input`, and of a layer called on one.

    Operators and functions of dt make more of them: ``x + y``, ``2 * x``, ``dt.reduce_mean(x, axis=1)``.

    Args:
        node: the use of a layer that makes it.
        index: which of the outputs of that use.
        of_one: the shape of one example; None is an unknown length.
        dtype: of the elements.
    """

    node: LayerNode
    index: int
    of_one: Shape
    dtype: np.dtype[Any] = FLOAT32

    @property
    def shape(self) -> Shape:
        """The shape of a batch, whose size is None."""
        return (None, *self.of_one)

    @property
    def name(self) -> str | None:
        """The name of the layer that makes it."""
        name: str | None = self.node.part.name
        return name

    def applied(self, name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Return the symbol of a function's result: that of a layer which computes it."""
        return import_module("dtrain.learning.layers.tensor_functions").applied(name, args, named)


PLACE: ContextVar[TaskId | None] = ContextVar("place", default=None)
"""The task on which layers that are made now are placed; see `dtrain.learning.graphs.by_hand.device`."""


@dataclass(eq=False)
class Layer(WithWeights, Configurable):
    """Base class of layers. A layer of your own takes ten lines:

        class Scale(dt.layers.Layer):
            def declare(self, input_shape):                     # weights, for the shape of one example
                return [dt.layers.Weight("scale", input_shape[-1:], "ones")]

            def forward(self, weights, x, call):                # -> output, and a cache for backward
                return x * weights["scale"], x

            def backward(self, weights, x, dy, gradients, call):    # fills gradients, returns dx
                gradients["scale"][...] = (x * dy).reshape(-1, x.shape[-1]).sum(axis=0)
                return dy * weights["scale"]

    - `forward` leaves x and weights as they are; `backward` may overwrite dy, but not the arrays in its cache
      that come from elsewhere.
    - `gradients` has a contiguous array for every trained weight, to be filled completely.
    - A layer that changes the shape overrides `output_shape`.
    - A layer with arguments keeps each in an attribute of the same name and hands ``**kwargs`` to
      `super().__init__` (or is a ``@dataclass(eq=False)``).
    - x is float32 unless `any_dtype`. A layer with `takes_list` gets and returns lists of arrays and shapes
      on its input side; one with several outputs returns lists on its output side.
    - `Call` has the rest: whether this is training, random numbers, scratch memory, and the place for new
      values of untrained weights.

    With the extra ``dtrain[autograd]`` a layer may be written as in Keras: `build` makes weights with
    `add_weight`, and ``call(self, inputs)`` or ``call(self, inputs, training)`` computes with functions of dt
    and other layers. Its gradient is then autograd's.

    Args:
        name: unique within a model; if None, Keras's snake_case name, numbered within the model.
        trainable: False freezes the layer: no gradients, and batch normalization uses its moving averages.
        input_shape: the shape of one example, for a first layer; others know it when the model is built.
    """

    _: KW_ONLY
    name: str | None = None
    trainable: bool = True
    input_shape: Sequence[int | None] | None = None

    any_dtype: ClassVar[bool] = False
    takes_list: ClassVar[bool] = False
    call_arguments: ClassVar[tuple[str, ...]] = ()  # those of a call, besides inputs and `training`
    supports_masking = False  # True: the output has the input's mask
    numbered = False  # True if a graph has chosen the name
    placed_on = None  # type: TaskId | None  # where `dt.device` has placed it; no field

    def _begin_life(self) -> None:
        if (place := PLACE.get()) is not None:
            self.placed_on = place

    @property
    def assumed_input_shape(self) -> Shape | None:
        """Return the shape that a first layer without `input_shape` assumes, None if the data must say."""
        return None

    @property
    def sums_over_replicas(self) -> bool:
        """Whether training needs sums over all replicas within a step (`Call.sums`)."""
        return False

    def activity_penalty(self) -> Regularizer | None:
        """Return the penalty on the output, of which each example has its share; None: there is none."""
        return regularizers.get(getattr(self, "activity_regularizer", None))

    def declare(self, input_shape: Any) -> Sequence[Weight]:
        """Return the layer's weights for inputs of `input_shape`."""
        return () if self.composition is None else self.composition.declare(input_shape)

    def output_shape(self, input_shape: Any) -> Any:
        """Return the output's shape for inputs of `input_shape`; a list if there are several outputs."""
        return input_shape if self.composition is None else self.composition.output_shape(input_shape)

    def output_dtype(self, inputs: Sequence[SymbolicTensor]) -> np.dtype[Any]:
        """Return the dtype of the outputs for these inputs."""
        return FLOAT32

    def shape_of_use(self, shapes: Any, arguments: CallArguments) -> Any:
        """Return the output's shape for a use with these arguments: here, that of any use."""
        return self.output_shape(shapes)

    def forward(self, weights: Arrays, x: Any, call: Call) -> tuple[Any, Any]:
        """Return the output for `x` (batch axis first), and a cache for `backward`."""
        if self.composition is None:
            raise ProgramError(
                f"{type(self).__name__}: expected `call`, or declare, output_shape, forward and backward as "
                "dtrain help Layer shows; found none of them"
            )
        output, cache = self.composition.forward(weights, x, call)
        return output, cache

    def backward(self, weights: Arrays, cache: Any, dy: Any, gradients: Arrays, call: Call) -> Any:
        """Fill `gradients` from dy, the gradient by the output, and return the gradient by the input."""
        if self.composition is None:
            raise NotImplementedError(f"{type(self).__name__}.backward")
        return self.composition.backward(cache, dy, gradients)

    @cached_property
    def composition(self) -> Any:
        """The form of the layer's `call`; None: it has a forward and a backward of its own."""
        if not hasattr(type(self), "call"):
            return None
        return import_module("dtrain.learning.layers.composition").Composition(self)

    def _declared(self, **shapes: tuple[int, ...]) -> list[Weight]:
        """Return weights of these names and shapes with the layer's arguments for them.

        Those of `recurrent_kernel` are `recurrent_initializer`, `recurrent_regularizer` and
        `recurrent_constraint`. Without `use_bias` there is no bias.
        """
        arguments = vars(self)  # not getattr, which looks among the weights too
        weights = []
        for name, shape in shapes.items():
            begin = name.removesuffix("_kernel")
            first, penalty, limit = (
                arguments.get(f"{begin}_{kind}") for kind in ("initializer", "regularizer", "constraint")
            )
            if name != "bias" or arguments.get("use_bias", True):
                weights.append(Weight(name, shape, first, penalty, constraint=limit))
        return weights

    def build(self, input_shape: Any) -> None:
        """Make weights with `add_weight` for batches of this shape; a layer with a `call` may override it."""

    def add_weight(
        self,
        name: str | None = None,
        shape: Sequence[int] = (),
        dtype: Any = None,
        initializer: InitializerLike = "glorot_uniform",
        regularizer: RegularizerLike = None,
        trainable: bool = True,
        constraint: ConstraintLike = None,
    ) -> Any:
        """Return a new weight of a layer with a `call`, for `build` or `__init__`; see `tf.keras`.

        It stands for its value in `call`, in arithmetic and in functions of dt.
        """
        if self.composition is None:
            raise ProgramError(f"{self.label}: add_weight: expected a `call`; else `declare` names weights")
        if None in shape:
            raise InputError(
                f"{self.label}: add_weight: expected lengths that are known, found shape {tuple(shape)}"
            )
        declared = Weight(
            name or "",
            tuple(shape),
            initializer,
            regularizer,
            trainable,
            dtype=np.dtype(dtype or FLOAT32).name,
            constraint=constraint,
        )
        return self.composition.add(declared)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return the output's mask for that of the input, None if it has none; a list for several outputs.

        A mask is [batch, ...] of bool, False where the array has nothing: padding behind a short sequence.

        Args:
            inputs: the input, or a list of inputs.
            mask: its mask, or a list with one for each input; None: it has none.
        """
        return mask if self.supports_masking else None

    def before_activation(self) -> "tuple[Layer, Activation | None]":
        """Return this layer without its final activation function, and that function, None if it has none."""
        return self, None

    def __call__(
        self,
        inputs: Any,
        training: bool | None = None,
        **arguments: Any,
    ) -> Any:
        """Use the layer in a functional model; return its symbolic output (a list if there are several).

        Of arrays it returns the value, with weights that are drawn at the first such call.

        With `training` False it computes as in inference always (batch normalization by its moving averages,
        no dropout), with True as in training always; with None as the whole model does. Some layers take more
        arguments, such as the `initial_state` of recurrent ones; see `call_arguments`.
        """
        several = isinstance(inputs, list | tuple)
        tensors = tuple(inputs) if several else (inputs,)
        if not any(isinstance(tensor, SymbolicTensor) for tensor in tensors):
            tensors = import_module("dtrain.learning.layers.composition").arrays_of(self, inputs)
        elif not all(isinstance(tensor, SymbolicTensor) for tensor in tensors):
            kinds = ", ".join(type(tensor).__name__ for tensor in tensors)
            raise ProgramError(
                f"{self.label}: expected results of Input() or of other layers alone, found {kinds}"
            )
        if self.composition is not None and several:
            self.takes_list = True  # type: ignore[misc]
        behind: Any = training
        if isinstance(behind, Symbol) or np.ndim(behind):
            raise ProgramError(
                f"{self.label}: expected True, False or None behind the inputs, found another tensor; give "
                "several inputs as one list, and other arguments by name"
            )
        named, given = self._arguments(arguments)
        return self.used((*tensors, *named), training if isinstance(training, bool) else None, given)

    def used(self, tensors: tuple[Any, ...], training: bool | None, arguments: CallArguments) -> Any:
        """Return the output of a use on inputs and, behind them, the arguments that are tensors."""
        if not isinstance(tensors[0], SymbolicTensor):
            composition = import_module("dtrain.learning.layers.composition")
            return composition.at_once(self, tensors, training, arguments)
        inputs = tensors[: len(tensors) - len(arguments.tensors)]
        shapes = [tensor.of_one for tensor in inputs]
        if not self.takes_list and len(shapes) != 1:
            raise InputError(f"{self.label}: expected one input, found {len(shapes)}")
        shape = self.shape_of_use(shapes if self.takes_list else shapes[0], arguments)
        node = LayerNode(self, tensors, training, arguments)
        dtype = self.output_dtype(inputs)
        outputs = [
            SymbolicTensor(node, index, each, dtype)
            for index, each in enumerate(shape if isinstance(shape, list) else [shape])
        ]
        self.output = outputs if isinstance(shape, list) else outputs[0]
        return self.output

    def _arguments(self, arguments: Mapping[str, Any]) -> tuple[list[Any], CallArguments]:
        """Return the tensors among the arguments of a call, and the names of all."""
        if unknown := arguments.keys() - set(self.call_arguments):
            known = ", ".join(("training", *self.call_arguments))
            raise ProgramError(
                f"{self.label}: is called with {min(unknown)}; known are {known}; give several inputs in a "
                "list"
            )
        tensors: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for name, value in arguments.items():
            if isinstance(value, list | tuple):
                each = {f"{name}/{n}": part for n, part in enumerate(value) if part is not None}
            else:
                each = {} if value is None or value is False else {name: value}
            for key, part in each.items():
                (tensors if isinstance(part, Symbol) or np.ndim(part) else options)[key] = part
        return list(tensors.values()), CallArguments(tuple(tensors), options)

    @cached_property
    def output(self) -> Any:
        """The result of the layer's last use in a functional model."""
        raise ProgramError(
            f"{self.label}: has no output before it is called with the result of Input() or of another layer"
        )

    @property
    def label(self) -> str:
        """The name of the layer in errors: ``dense_1 (Dense)``."""
        return f"{self.name or self.base_name} ({type(self).__name__})"

    @property
    def base_name(self) -> str:
        """Return the name to which a model appends a number: ``dense``."""
        return snake_case(type(self).__name__)

    def expect(self, condition: bool, expected: str, found: Shape | str) -> None:
        """Raise an `InputError` that names this layer unless `condition` holds."""
        if not condition:
            found_text = found if isinstance(found, str) else f"shape {shape_text(found)}"
            raise InputError(f"{self.label}: expected {expected}, found {found_text}")

    def expect_positive(self, **arguments: Any) -> None:
        """Raise a `SpecError` that names this layer unless these arguments are integers of at least 1."""
        for name, found in arguments.items():
            if not isinstance(found, Integral) or isinstance(found, bool) or found < 1:
                raise SpecError(f"{self.label}: {name}: expected a positive integer, found {found!r}")

    def _expect_one_of(self, name: str, known: Sequence[Any]) -> None:
        if (found := getattr(self, name)) not in known:
            raise SpecError(f"{self.label}: {name}: expected one of {known}, found {found!r}")

    def _generator(self, call: Call) -> np.random.Generator:
        rng = call.rng
        if rng is None:
            raise SpecError(f"{self.label}: training needs a random generator")
        return rng

    def known_length(self, shape: Shape, axis: int = -1) -> int:
        """Return the length of `axis` of `shape`; raise an `InputError` if it is unknown."""
        self.expect(len(shape) > 0 and shape[axis] is not None, f"a known length of axis {axis}", shape)
        length = shape[axis]
        assert length is not None
        return length


def prefixed(name: str, weights: Sequence[Weight]) -> list[Weight]:
    """Return the weights of a layer within another under the names that they have there: ``name/kernel``."""
    return [replace(weight, name=f"{name}/{weight.name}") for weight in weights]


def of_part(name: str, arrays: Arrays) -> dict[str, Array]:
    """Return the arrays of a layer within another under their own names; see `prefixed`."""
    start = f"{name}/"
    return {key.removeprefix(start): each for key, each in arrays.items() if key.startswith(start)}


class ActivatedLayer(Layer):
    """A layer that ends with an activation function: `function`, set by the constructor."""

    function: Activation

    def before_activation(self) -> tuple[Layer, Activation | None]:
        """Return a copy whose function is the identity, and the function."""
        if self.function is activations.linear:
            return self, None
        bare = copy(self)
        bare.function = activations.linear
        return bare, self.function


@dataclass(eq=False)
class InputLayer(Layer):
    """The entry of data into a model; hands them on, as they are or as `dtype` (numpy's, or ``string``).

    Args:
        dtype: numpy's name of it, or ``string``; None: data stay as they are.
    """

    any_dtype: ClassVar[bool] = True

    dtype: str | None = None

    @property
    def base_name(self) -> str:
        """Return ``input``, Keras's name."""
        return "input"

    def forward(self, weights: Arrays, x: Any, call: Call) -> tuple[Any, Any]:
        """Hand x on."""
        if self.dtype == "string":
            self.expect(x.dtype.kind in "USO", "strings", f"dtype {x.dtype}")
            return x, None
        return (x if self.dtype is None else x.astype(self.dtype, copy=False)), None

    def backward(self, weights: Arrays, cache: Any, dy: Any, gradients: Arrays, call: Call) -> Any:
        """Hand dy on."""
        return dy


def Input(shape: Sequence[int | None], name: str | None = None, dtype: str | None = None) -> SymbolicTensor:  # noqa: N802
    """Return the input of a functional model, or the first item of a stack, for examples of `shape`.

    Args:
        shape: of one example, without the batch axis; None is an unknown length.
        name: of the input, by which a dict of arrays finds it.
        dtype: numpy's name of it, or ``string``; None: float32 where the layers want it.
    """
    if not isinstance(shape, Iterable):
        raise InputError(f"Input: expected the shape of one example, such as ({shape},), found {shape!r}")
    node = LayerNode(InputLayer(dtype, name=name, input_shape=tuple(shape)), ())
    return SymbolicTensor(node, 0, tuple(shape), np.dtype(object if dtype == "string" else dtype or FLOAT32))
