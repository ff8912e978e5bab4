"""What a layer is: a description of itself as data, its weights for an input shape, and forward and backward
side by side.

A layer holds no weights. They are passed in at every call, because a strategy owns their memory, and
gradients are written into arrays that are passed in too. Shapes are those of one example, without the batch
axis.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from math import prod
from numbers import Integral
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np

from dtrain.errors import InputError, ProgramError, SpecError
from dtrain.learning.core import activations
from dtrain.learning.core.activations import Activation
from dtrain.learning.core.arrays import Array, Shape, shape_text
from dtrain.learning.core.chance import Chance, generator_of
from dtrain.learning.core.configuration import Configurable, snake_case
from dtrain.learning.core.initializers import InitializerLike
from dtrain.learning.core.regularizers import RegularizerLike
from dtrain.learning.core.sparse_rows import SparseRows


@dataclass(frozen=True, slots=True)
class Weight:
    """One array that a layer declares.

    Attributes:
        name: within the layer, for example ``kernel``; a model's variable is called ``<layer name>/<name>``.
        sparse: the layer may give the gradient as `SparseRows` (see `Call.sparse_gradients`).
    """

    name: str
    shape: tuple[int, ...]
    initializer: InitializerLike = "glorot_uniform"
    regularizer: RegularizerLike = None
    trainable: bool = True
    sparse: bool = False
    dtype: str = "float32"

    @property
    def may_be_sparse(self) -> bool:
        """Whether the gradient may be `SparseRows`; with a penalty every row has one."""
        return self.sparse and self.regularizer is None and self.dtype == "float32"


class Call:
    """What belongs to one step of one layer besides its weights and arrays.

    Attributes:
        training: whether dropout drops and batch statistics are used.
        needs_input_gradient: False if what `backward` returns is not used; it may then return None.
        updates: new values of weights that are not trained, by name; the layer adds to it in `forward`.
        sparse_gradients: gradients that are `SparseRows`, by name; the layer adds to it in `backward`.
        memory: behind `scratch`; of this pass alone, and of a later one when it has ended.
    """

    __slots__ = ("_chance", "memory", "needs_input_gradient", "sparse_gradients", "training", "updates")

    def __init__(
        self,
        training: bool = False,
        rng: Chance | None = None,
        needs_input_gradient: bool = True,
        memory: dict[str, Array] | None = None,
    ) -> None:
        """Begin; `rng` is the source of chance, None where nothing random is wanted."""
        self.training = training
        self.needs_input_gradient = needs_input_gradient
        self.updates: dict[str, Array] = {}
        self.sparse_gradients: dict[str, SparseRows] = {}
        self.memory: dict[str, Array] = {} if memory is None else memory
        self._chance = rng

    @property
    def rng(self) -> np.random.Generator | None:
        """Return the source of chance; None where nothing random is wanted."""
        return None if self._chance is None else generator_of(self._chance)

    def scratch(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        """Uninitialised C-contiguous memory, the same for the same name until this pass has gone back or is
        dropped.

        Large temporary arrays come from here: memory that is asked for anew in every step costs a page fault
            every 4 KiB.
        """
        size = prod(shape)
        memory = self.memory.get(name)
        if memory is None or memory.size < size or memory.dtype != dtype:
            memory = self.memory[name] = np.empty(size, dtype)
        return memory[:size].reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One use of a layer in a graph, or of a model as if it were one.

    Attributes:
        part: a `Layer`, or a `dtrain.learning.graphs.wiring.Submodel`.
        training: whether it trains in this use; None: as the whole model does.
    """

    part: Any
    inputs: tuple["SymbolicTensor", ...]
    training: bool | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SymbolicTensor:
    """An array that will exist when the model runs: what `Input` and a layer called on one return."""

    node: Node
    index: int
    shape: Shape


@dataclass(eq=False)
class Layer(Configurable):
    """Base class of layers. A layer of your own takes ten lines:

        class Scale(dt.layers.Layer):
            def declare(self, input_shape):                     # weights, for the shape of one example
                return [dt.layers.Weight("scale", input_shape[-1:], "ones")]

            def forward(self, weights, x, call):                # -> output, and whatever backward needs
                return x * weights["scale"], x

            def backward(self, weights, x, dy, gradients, call):    # fills gradients, returns the input's
                gradient gradients["scale"][...] = (x * dy).reshape(-1, x.shape[-1]).sum(axis=0) return dy *
                weights["scale"]

    Rules. `forward` leaves x and weights as they are; `backward` may overwrite dy but not what came in its
    cache from elsewhere. `gradients` has a contiguous array for every trained weight, to be filled
    completely. A layer that changes the shape overrides `output_shape`; one with arguments keeps each in an
    attribute of the same name and hands ``**kwargs`` to `super().__init__` (or is a
    ``@dataclass(eq=False)``). x is float32 unless `any_dtype`. A layer with `takes_list` gets and returns
    lists of arrays and shapes on its input side; one with several outputs returns lists on its output side.
    `Call` has the rest: whether this is training, the source of chance, scratch memory, and where new values
    of untrained weights go.

    Args:
        name: unique within a model; Keras's snake_case name, numbered within the model, if None.
        trainable: False freezes the layer: no gradients, and batch normalization uses its moving averages.
        input_shape: the shape of one example, for a first layer; otherwise it is known when the model is
            built.
    """

    _: KW_ONLY
    name: str | None = None
    trainable: bool = True
    input_shape: Sequence[int | None] | None = None

    any_dtype: ClassVar[bool] = False
    takes_list: ClassVar[bool] = False
    numbered = False  # whether a graph has chosen the name

    @property
    def assumed_input_shape(self) -> Shape | None:
        """The shape of one example that a first layer without `input_shape` assumes; None: it has to wait for
        the data.
        """
        return None

    def declare(self, input_shape: Any) -> Sequence[Weight]:
        """The layer's weights for inputs of `input_shape`."""
        return ()

    def output_shape(self, input_shape: Any) -> Any:
        """The output's shape for inputs of `input_shape`; a list of shapes if there are several outputs."""
        return input_shape

    def forward(self, weights: Mapping[str, Array], x: Any, call: Call) -> tuple[Any, Any]:
        """The output for `x` (batch axis first), and a cache for `backward`."""
        raise NotImplementedError(f"{type(self).__name__}.forward")

    def backward(
        self, weights: Mapping[str, Array], cache: Any, dy: Any, gradients: Mapping[str, Array], call: Call
    ) -> Any:
        """Given dy, the gradient by the output, fill `gradients` by the weights and return the gradient by
        the input.
        """
        raise NotImplementedError(f"{type(self).__name__}.backward")

    def before_activation(self) -> "tuple[Layer, Activation | None]":
        """This layer without the activation function that it ends with, and that function; None if there is
        none.
        """
        return self, None

    def __call__(
        self, inputs: SymbolicTensor | Sequence[SymbolicTensor], training: bool | None = None
    ) -> Any:
        """Use the layer in a functional model: the symbolic output (a list of them if the layer has several).

        With `training` False it always computes as in inference (batch normalization by its moving averages,
        no dropout), with True always as in training; with None as the whole model does.
        """
        tensors = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
        if not all(isinstance(tensor, SymbolicTensor) for tensor in tensors):
            raise ProgramError(
                f"{self.label}: expected the result of Input() or of another layer, found "
                f"{type(inputs).__name__}"
            )
        shapes = [tensor.shape for tensor in tensors]
        if not self.takes_list and len(shapes) != 1:
            raise InputError(f"{self.label}: expected one input, found {len(shapes)}")
        shape = self.output_shape(shapes if self.takes_list else shapes[0])
        node = Node(self, tensors, training)
        outputs = [
            SymbolicTensor(node, index, each)
            for index, each in enumerate(shape if isinstance(shape, list) else [shape])
        ]
        self.output = outputs if isinstance(shape, list) else outputs[0]
        return self.output

    @cached_property
    def output(self) -> Any:
        """What the last use of the layer in a functional model returned."""
        raise ProgramError(
            f"{self.label}: has no output before it is called with the result of Input() or of another layer"
        )

    @cached_property
    def used_by(self) -> "WeakSet[Any]":
        """The models that hold values of its weights, and share them."""
        return WeakSet()

    @property
    def label(self) -> str:
        """How errors name the layer: ``dense_1 (Dense)``."""
        return f"{self.name or self.base_name} ({type(self).__name__})"

    @property
    def base_name(self) -> str:
        """The name to which a model appends a number: ``dense``."""
        return snake_case(type(self).__name__)

    def expect(self, condition: bool, expected: str, found: Shape | str) -> None:
        """Raise an `InputError` that names this layer unless `condition` holds."""
        if not condition:
            found_text = found if isinstance(found, str) else f"shape {shape_text(found)}"
            raise InputError(f"{self.label}: expected {expected}, found {found_text}")

    def expect_positive(self, **arguments: Any) -> None:
        """Raise a `SpecError` that names this layer unless these arguments of its constructor are integers of
        at least 1.
        """
        for name, found in arguments.items():
            if not isinstance(found, Integral) or isinstance(found, bool) or found < 1:
                raise SpecError(f"{self.label}: {name}: expected a positive integer, found {found!r}")

    def known_length(self, shape: Shape, axis: int = -1) -> int:
        """The length of `axis` of `shape`, which must be known; `InputError` otherwise."""
        self.expect(len(shape) > 0 and shape[axis] is not None, f"a known length of axis {axis}", shape)
        length = shape[axis]
        assert length is not None
        return length


class ActivatedLayer(Layer):
    """A layer that ends with an activation function: `function`, set by the constructor."""

    function: Activation

    def before_activation(self) -> tuple[Layer, Activation | None]:
        """A copy whose function is the identity, and the function."""
        if self.function is activations.linear:
            return self, None
        bare = copy(self)
        bare.function = activations.linear
        return bare, self.function


@dataclass(eq=False)
class InputLayer(Layer):
    """The place where data enters a model; hands it on unchanged, or as `dtype` (numpy's name, or
    ``string``).
    """

    any_dtype: ClassVar[bool] = True

    dtype: str | None = None

    @property
    def base_name(self) -> str:
        """Keras calls it ``input``."""
        return "input"

    def forward(self, weights: Mapping[str, Array], x: Any, call: Call) -> tuple[Any, Any]:
        """Hand x on."""
        if self.dtype == "string":
            self.expect(x.dtype.kind in "USO", "strings", f"dtype {x.dtype}")
            return x, None
        return (x if self.dtype is None else x.astype(self.dtype, copy=False)), None

    def backward(
        self, weights: Mapping[str, Array], cache: Any, dy: Any, gradients: Mapping[str, Array], call: Call
    ) -> Any:
        """Hand dy on."""
        return dy


def Input(shape: Sequence[int | None], name: str | None = None, dtype: str | None = None) -> SymbolicTensor:  # noqa: N802
    """The input of a functional model, or the first item of a stack, for examples of `shape` (without the
    batch axis).
    """
    return SymbolicTensor(Node(InputLayer(dtype, name=name, input_shape=tuple(shape)), ()), 0, tuple(shape))
