"""Stand-ins for arrays, and the dispatch of functions on them.

Functions of this room are written once, with numpy. What they are given decides what happens:

- arrays and numbers are computed at once;
- `Recorded` values, of a tape, are computed by autograd, which numpy finds through ``__array_function__``;
- a `Symbol` adds a node to the graph of a model, which names the function and holds its other arguments.

A `Source` is read before: a variable, or a weight of a layer. Python's numbers become float32 and int32, as
in TensorFlow.
"""

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from dtrain.errors import ProgramError
from dtrain.learning.core.results import result_of
from dtrain.types import Array, Shape

F = TypeVar("F", bound=Callable[..., Any])

FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""Every function of tensors by its name, under which a model's config may name it."""

# What numpy calls the functions of Python's operators, where TensorFlow has another name.
_OF_NUMPY = {"absolute": "abs", "power": "pow"}


class Symbol(NDArrayOperatorsMixin):
    """A tensor that will have a value when a model runs."""

    __slots__ = ()

    @property
    def shape(self) -> Shape:
        """The shape of a batch; None is a length that is unknown."""
        raise NotImplementedError

    def applied(self, name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Return the symbol of a function's result; some of the arguments are symbols."""
        raise NotImplementedError

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        name = _OF_NUMPY.get(ufunc.__name__, ufunc.__name__)
        if method != "__call__" or name not in functions():
            raise ProgramError(_no_numbers(f"np.{ufunc.__name__}"))
        return FUNCTIONS[name](*inputs, **named)

    def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> Any:
        raise ProgramError(_no_numbers(f"np.{function.__name__}"))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise ProgramError(_no_numbers("an array of it"))

    def __bool__(self) -> bool:
        raise ProgramError(_no_numbers("`if`"))

    def numpy(self) -> Array:
        """Raise a `ProgramError`: there are no numbers yet."""
        raise ProgramError(_no_numbers("numpy()"))

    def __getitem__(self, key: Any) -> Any:
        return self.applied("getitem", (self, key), {})

    def __iter__(self) -> Iterator[Any]:
        raise ProgramError(_no_numbers("a loop over it"))

    # The operators of the mixin compare element by element; a graph asks whether two are the same.
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__


def _no_numbers(what: str) -> str:
    return (
        f"{what}: found the result of Input() or of a layer, which has no numbers before the model runs; use "
        "functions of dt (dt.reduce_mean, dt.math.log, ...), or write a Layer with a `call`"
    )


WATCHERS: ContextVar[tuple[Any, ...]] = ContextVar("watchers", default=())
"""The tapes in which the lines of a thread run, the outermost first."""

CHANCE: ContextVar[Callable[[], np.random.Generator] | None] = ContextVar("chance", default=None)
"""What returns the generator of the step in which a layer runs; None: no layer runs."""


class Source(NDArrayOperatorsMixin):
    """Something that has a value which a tape can watch; it stands for it in arithmetic and functions.

    Attributes:
        trainable: whether a tape watches it by itself.
    """

    trainable: bool

    def read(self) -> Any:
        """Return the value, which is not written to."""
        raise NotImplementedError

    def numpy(self) -> Array:
        """Return the value as the calling line sees it, as a new array."""
        return np.array(self.read())

    def assign(self, value: Any) -> Any:
        """Take a value."""
        raise NotImplementedError

    def assign_add(self, delta: Any) -> Any:
        """Add a value."""
        return self.assign(self.read() + np.asarray(delta))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.read(), dtype)

    def __float__(self) -> float:
        return float(self.read())

    def __getitem__(self, key: Any) -> Any:
        return plain(self)[key]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        return getattr(ufunc, method)(*map(plain, inputs), **named)

    def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> Any:
        return function(*mapped(plain, args), **mapped(plain, named))


def plain(value: Any) -> Any:
    """Return a value as the calling line sees it: that of a variable, as open tapes record it."""
    watchers = WATCHERS.get()
    if isinstance(value, Source):
        found = value.read()
    elif watchers and (isinstance(value, np.ndarray) or hasattr(value, "box")):
        found = value
    else:
        return value
    for watcher in watchers:
        found = watcher.value_of(value, found)
    return found


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a value, or lists, tuples and dicts of them, each changed."""
    if isinstance(value, dict):
        return {key: mapped(change, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        made = [mapped(change, each) for each in value]
        return tuple(made) if isinstance(value, tuple) else made
    return change(value)


def leaves(value: Any) -> Iterator[Any]:
    """Yield the items of nested lists, tuples and dicts."""
    if isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)
    else:
        yield value


def tensor(value: Any, dtype: Any = None) -> Any:
    """Return an array of numbers or of nested lists of them, float32 or int32; others stay as they are."""
    if isinstance(value, list | tuple) and any(not isinstance(each, int | float) for each in leaves(value)):
        value = np.stack([tensor(each) for each in value])
    if not hasattr(value, "dtype"):
        value = np.asarray(value)
        if dtype is None and value.dtype in (np.float64, np.int64):
            value = value.astype(np.float32 if value.dtype == np.float64 else np.int32)
    return value if dtype is None or value.dtype == dtype else value.astype(dtype)


def operands(x: Any, y: Any) -> tuple[Any, Any]:
    """Return two operands; a Python number takes the other one's dtype."""
    numbers = [isinstance(each, bool | int | float) for each in (x, y)]
    if all(numbers):
        return tensor(x), tensor(y)
    return x if numbers[0] else tensor(x), y if numbers[1] else tensor(y)


def tensor_function(run: F) -> F:
    """Let a function written with numpy work on everything of which this module tells.

    It may be given a `name`, which has no effect.
    """

    @wraps(run)
    def function(*args: Any, name: str | None = None, **named: Any) -> Any:
        for each in leaves((args, named)):
            if isinstance(each, Symbol):
                return each.applied(function.__name__, args, named)
        return result_of(run(*mapped(plain, args), **mapped(plain, named)))

    FUNCTIONS[function.__name__] = function
    return function  # type: ignore[return-value]


def functions() -> dict[str, Callable[..., Any]]:
    """Return every function by its name; they are loaded when the first is asked for."""
    for home in ("arithmetic", "shapes", "networks"):
        import_module(f"{__package__}.{home}")
    return FUNCTIONS
