"""Functions of dt as layers: what operators and functions make of symbols, and `Lambda`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.core.configuration import to_data
from dtrain.learning.functions.tensors import functions
from dtrain.learning.layers.base import Layer, SymbolicTensor
from dtrain.learning.layers.merging import Add, Concatenate, Multiply, Subtract
from dtrain.learning.layers.preprocessing.numeric import Rescaling


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
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
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
    return np.array(data["array"], data["dtype"])


def applied(name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Return the symbol of a function's result; a layer of Keras's that computes the same is preferred."""
    if name == "concat" and len(args) == 1 and named.keys() == {"axis"}:
        args, named = (*args, named["axis"]), {}
    if not named and (found := _as_layer(name, args)) is not None:
        return found
    inputs: list[Any] = []
    arguments = [_to_data(each, inputs) for each in args]
    given = {key: _to_data(each, inputs) for key, each in named.items()}
    return TensorFunction(name, arguments, given)(inputs)


def _as_layer(name: str, args: Sequence[Any]) -> Any:
    """Return the result of a layer with a gradient of its own; None: there is none for these arguments."""
    tensors: Any = args[0] if name == "concat" else args
    symbols = [each for each in tensors if isinstance(each, SymbolicTensor)]
    if any(each.dtype.kind != "f" for each in symbols):
        return None
    if len(symbols) == len(tensors) > 1 and len({len(each.of_one) for each in symbols}) == 1:
        if name == "concat" and args[1] % (len(symbols[0].of_one) + 1):
            return Concatenate(args[1])(symbols)
        return MERGES[name]()(symbols) if name in MERGES else None
    numbers = [each for each in tensors if isinstance(each, int | float) and not isinstance(each, bool)]
    scale = SCALES.get((name, args[0] is symbols[0])) if len(symbols) == 1 and len(numbers) < 2 else None
    if scale is None or len(symbols) + len(numbers) != len(tensors):
        return None
    return Rescaling(*scale(*map(float, numbers)))(symbols[0])


MERGES: dict[str, type[Layer]] = {"add": Add, "subtract": Subtract, "multiply": Multiply}
# a function, and whether the symbol comes first -> scale and offset by the number
SCALES: dict[tuple[str, bool], Callable[..., tuple[float, float]]] = {
    ("add", True): lambda number: (1.0, number),
    ("add", False): lambda number: (1.0, number),
    ("subtract", True): lambda number: (1.0, -number),
    ("subtract", False): lambda number: (-1.0, number),
    ("multiply", True): lambda number: (number, 0.0),
    ("multiply", False): lambda number: (number, 0.0),
    ("divide", True): lambda number: (float(np.divide(1, number)), 0.0),
    ("negative", True): lambda: (-1.0, 0.0),
}


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
