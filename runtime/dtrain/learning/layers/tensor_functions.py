"""Functions of dt as layers: what operators and functions make of symbols, and `Lambda`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.core.configuration import to_data
from dtrain.learning.functions.tensors import functions
from dtrain.learning.layers.base import Call, Layer, SymbolicTensor
from dtrain.learning.layers.dense import Activation
from dtrain.learning.layers.merging import Add, Concatenate, Multiply, Subtract
from dtrain.learning.layers.preprocessing.numeric import Rescaling
from dtrain.types import Array, Arrays, Shape


@dataclass(eq=False)
class TensorFunction(Layer):
    """A function of dt, such as `dt.reduce_mean`, in a model; `dt.layers.Lambda` is for functions of yours.

    Its gradient is that of autograd (the extra ``dtrain[autograd]``), which only training needs.

    Args:
        function: its name.
        arguments: those without a name, in JSON types; ``{"input": n}`` stands for the n-th input, and
            ``{"array": ..., "dtype": ...}``, ``{"slice": ...}`` and others for what JSON has not.
        named: the others, by name.
    """

    takes_list: ClassVar[bool] = True
    any_dtype: ClassVar[bool] = True

    function: str
    arguments: Sequence[Any] = ()
    named: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.function not in functions():
            raise SpecError(f"TensorFunction: expected a function of dt, found {self.function!r}")

    @property
    def base_name(self) -> str:
        """Return the function's name."""
        return self.function

    def output_dtype(self, inputs: Sequence[SymbolicTensor]) -> np.dtype[Any]:
        """Return the dtype that the function's result has."""
        assert self.composition is not None
        dtype: np.dtype[Any] = self.composition.output_dtype([each.of_one for each in inputs])
        return dtype

    def call(self, inputs: Sequence[Any]) -> Any:
        """Return the function's result."""
        args = [_from_data(each, inputs) for each in self.arguments]
        named = {key: _from_data(each, inputs) for key, each in self.named.items()}
        return functions()[self.function](*args, **named)


def _to_data(value: Any, inputs: list[Any]) -> Any:
    """Return an argument in JSON types; symbols are added to `inputs`."""
    if isinstance(value, SymbolicTensor):
        inputs.append(value)
        return {"input": len(inputs) - 1}
    if isinstance(value, list | tuple):
        items = [_to_data(each, inputs) for each in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, type) and issubclass(value, np.generic):
        return {"dtype": np.dtype(value).name}
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    array = np.asarray(value)
    return {"array": array.tolist(), "dtype": array.dtype.name}


def _from_data(data: Any, inputs: Sequence[Any]) -> Any:
    if isinstance(data, list | tuple):
        return [_from_data(each, inputs) for each in data]
    if not isinstance(data, Mapping):
        return data
    if "input" in data:
        return inputs[data["input"]]
    if "tuple" in data:
        return tuple(_from_data(each, inputs) for each in data["tuple"])
    if "slice" in data:
        return slice(*data["slice"])
    if "ellipsis" in data:
        return Ellipsis
    if "array" in data:
        return np.array(data["array"], data["dtype"])
    return np.dtype(data["dtype"])


def applied(name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Return the symbol of a function's result; a layer of Keras's that computes the same is preferred."""
    if not named and (found := _as_layer(name, args)) is not None:
        return found
    inputs: list[Any] = []
    arguments = [_to_data(each, inputs) for each in args]
    given = {key: _to_data(each, inputs) for key, each in named.items()}
    return TensorFunction(name, arguments, given)(inputs)


def _as_layer(name: str, args: Sequence[Any]) -> Any:
    """Return the result of a layer with a gradient of its own; None: there is none for these arguments."""
    symbols = [isinstance(each, SymbolicTensor) for each in args]
    numbers = [isinstance(each, int | float) and not isinstance(each, bool) for each in args]
    floats = all(each.dtype.kind == "f" for each in args if isinstance(each, SymbolicTensor))
    if name in MERGES and all(symbols) and floats and len({len(each.of_one) for each in args}) == 1:
        return MERGES[name]()(list(args))
    if name in SCALES and (sum(symbols), sum(numbers), len(args)) == (1, 1, 2) and floats:
        [number] = [each for each, is_number in zip(args, numbers, strict=True) if is_number]
        [symbol] = [each for each, is_symbol in zip(args, symbols, strict=True) if is_symbol]
        scaling = SCALES[name](float(number), symbols[0])
        return None if scaling is None else Rescaling(*scaling)(symbol)
    if name == "negative" and floats:
        return Rescaling(-1.0)(args[0])
    if name in ("relu", "sigmoid", "tanh", "softplus", "elu", "selu", "swish", "silu") and len(args) == 1:
        return Activation(name)(args[0])
    if name == "concat" and len(args) == 2 and all(isinstance(each, SymbolicTensor) for each in args[0]):
        ranks = {len(each.of_one) + 1 for each in args[0]}
        if len(args[0]) > 1 and len(ranks) == 1 and args[1] % min(ranks):
            return Concatenate(args[1])(list(args[0]))
    return None


MERGES: dict[str, type[Layer]] = {"add": Add, "subtract": Subtract, "multiply": Multiply}
# (number, whether the symbol comes first) -> scale and offset
SCALES: dict[str, Callable[[float, bool], tuple[float, float] | None]] = {
    "add": lambda number, first: (1.0, number),
    "subtract": lambda number, first: (1.0, -number) if first else (-1.0, number),
    "multiply": lambda number, first: (number, 0.0),
    "divide": lambda number, first: (1 / number, 0.0) if first and number else None,
}


@dataclass(eq=False)
class InTrainPhase(Layer):
    """The first of two inputs in training, the second otherwise; what ``if training:`` in `call` comes to."""

    takes_list: ClassVar[bool] = True
    any_dtype: ClassVar[bool] = True

    def output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        """Return the shape that both have."""
        first, second = input_shape
        self.expect(
            tuple(first) == tuple(second), "results of one shape with and without training", str(input_shape)
        )
        return first

    def forward(self, weights: Arrays, x: Sequence[Array], call: Call) -> tuple[Array, Any]:
        """Return one of the two."""
        return x[0 if call.training else 1], None

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy to the one that was taken."""
        return [dy, None] if call.training else [None, dy]


class Lambda(Layer):
    """A function of yours as a layer; its gradient is autograd's (the extra ``dtrain[autograd]``).

    The function is no data. A saved model names it, and `dt.load_model` finds it among `custom_objects`; one
    without a name cannot be saved.

    Args:
        function: ``(inputs) -> outputs``, of functions of dt or of numpy.
        output_shape: without effect: the shape is found by a trial.
        mask: without effect.
        arguments: further arguments of the function, by name.
        kwargs: those of `Layer`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        output_shape: Any = None,
        mask: Any = None,
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not callable(function):
            raise SpecError(
                f"Lambda: expected a function, found {function!r}; give it to dt.load_model as "
                f"custom_objects={{{function!r}: ...}}"
            )
        self.function = function
        self.arguments = dict(arguments or {})

    def call(self, inputs: Any) -> Any:
        """Return the function's result."""
        return self.function(inputs, **self.arguments)

    def get_config(self) -> dict[str, Any]:
        """Return the function's name and the other arguments, as JSON types."""
        name = getattr(self.function, "__name__", "<lambda>")
        if name == "<lambda>":
            raise SpecError(f"{self.label}: a function without a name cannot be saved; write it with def")
        return super().get_config() | {"function": name, "arguments": to_data(self.arguments)}
