"""The recording of computations by HIPS autograd (https://github.com/HIPS/autograd), and their gradients.

autograd follows numpy's functions; this module adds what a tape needs: several values that are watched and
become known one by one, recordings within each other, and computations of ours that have a gradient of
their own, such as a layer's or a model's forward and backward. Each of these is one node.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from itertools import count
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from dtrain.errors import ProgramError
from dtrain.learning.core.results import ResultArray, ResultFloat, ResultNumber
from dtrain.learning.functions.tensors import WATCHERS, leaves, mapped, plain
from dtrain.types import Array

Forward = Callable[..., Any]
Backward = Callable[..., Sequence[Any]]

_numbers = count()
"""The number of each recording; autograd takes a greater number for one within another."""


@cache
def autograd() -> Any:
    """Return the package, or raise a `ProgramError` that says how to install it."""
    try:
        boxes = import_module("autograd.numpy.numpy_boxes")
    except ImportError:
        raise ProgramError(
            "gradients of functions of your own are computed by autograd, which is not installed; run: pip "
            "install dtrain[autograd]"
        ) from None
    spaces = import_module("autograd.numpy.numpy_vspaces")
    for result in (ResultArray, ResultNumber, ResultFloat):
        boxes.ArrayBox.register(result)
        spaces.ArrayVSpace.register(result)
    return import_module("autograd")


class RecordedTensor(NDArrayOperatorsMixin):
    """A value that a tape records. numpy's functions and operators work on it, and give such values.

    Args:
        box: autograd's form of it.
    """

    __slots__ = ("box",)

    def __init__(self, box: Any) -> None:
        self.box = box

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of all axes."""
        return np.shape(bare(self))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.size(bare(self)))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an element."""
        return np.result_type(bare(self))

    def numpy(self) -> Any:
        """Return the value as an array, or a number of numpy."""
        return bare(self)

    def astype(self, dtype: Any) -> Any:
        """Return the value in another dtype; whole numbers are not recorded, as they have no gradient."""
        if np.dtype(dtype).kind != "f":
            return np.asarray(bare(self)).astype(dtype)
        return wrapped(self.box.astype(dtype))

    def reshape(self, *shape: Any) -> Any:
        """Return the value in another shape."""
        return np.reshape(self, shape[0] if len(shape) == 1 else shape)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        if method != "__call__" or named.keys() - {"dtype"}:
            raise ProgramError(
                f"np.{ufunc.__name__}.{method}: a tape does not record this form; call np.{ufunc.__name__}"
            )
        return self._recorded(ufunc, inputs, {})

    def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> Any:
        return self._recorded(function, args, named)

    def _recorded(self, function: Any, args: Any, named: Any) -> Any:
        home = autograd().numpy
        if function.__module__.startswith("numpy.linalg"):
            home = import_module("autograd.numpy.linalg")
        known = getattr(home, function.__name__, None)
        if known is None:
            raise ProgramError(f"np.{function.__name__}: a tape cannot record it; use functions of dt")
        try:
            return wrapped(known(*mapped(boxed, args), **mapped(boxed, named)))
        except NotImplementedError:
            raise ProgramError(f"np.{function.__name__}: has no gradient; use functions of dt") from None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(bare(self), dtype)

    def __getitem__(self, key: Any) -> Any:
        return wrapped(self.box[mapped(lambda each: bare(plain(each)), key)])

    def __len__(self) -> int:
        return len(bare(self))

    def __bool__(self) -> bool:
        return bool(bare(self))

    def __float__(self) -> float:
        return float(bare(self))

    def __int__(self) -> int:
        return int(bare(self))

    def __format__(self, spec: str) -> str:
        return format(bare(self), spec)

    def __repr__(self) -> str:
        return f"<RecordedTensor {bare(self)!r}>"


def is_recorded(values: Any) -> bool:
    """Return whether any of nested lists, tuples and dicts of values is recorded."""
    return any(isinstance(each, RecordedTensor) for each in leaves(values))


def bare(value: Any) -> Any:
    """Return the array of a recorded value; others as they are."""
    return autograd().tracer.getval(value.box) if isinstance(value, RecordedTensor) else value


def boxed(value: Any) -> Any:
    """Return autograd's form of a value."""
    value = plain(value)
    return value.box if isinstance(value, RecordedTensor) else value


def wrapped(value: Any) -> Any:
    """Return what a function of autograd gives in the form that programs see."""
    tracer = autograd().tracer
    if isinstance(value, tuple | list):
        return type(value)(wrapped(each) for each in value)
    if not tracer.isbox(value):
        return value
    inner = tracer.getval(value)
    if isinstance(inner, tuple | list):
        return type(inner)(wrapped(value[number]) for number in range(len(inner)))
    return RecordedTensor(value)


def compute(what: str, forward: Forward, backward: Backward, *values: Any) -> Any:
    """Return the result of a computation with a gradient of its own: one node, if a value is recorded.

    Args:
        what: its name, for errors.
        forward: ``(*arrays) -> result``, an array or a tuple of arrays.
        backward: ``(gradient, *arrays) -> gradients`` by each of the arrays; None where there is none.
        values: what `forward` is given.
    """
    values = tuple(plain(value) for value in values)
    if not is_recorded(values):
        return _aside(forward, *values)
    return wrapped(_computed()((what, forward, backward), *(boxed(value) for value in values)))


def _aside(run: Callable[..., Any], *arrays: Any) -> Any:
    """Run a node's own forward or backward: open tapes record the node, and nothing of what is within."""
    token = WATCHERS.set(())
    try:
        return run(*arrays)
    finally:
        WATCHERS.reset(token)


@cache
def _computed() -> Any:
    """Return the run of `forward` as a primitive of autograd."""
    extend = import_module("autograd.extend") if autograd() else None
    assert extend is not None

    def back(node: Any, gradient: Any, *arrays: Array) -> Any:
        pairs = zip(_aside(node[2], gradient, *arrays), arrays, strict=True)
        return tuple(np.zeros(np.shape(like), np.float32) if each is None else each for each, like in pairs)

    def no_second(argnums: Any, result: Any, args: Any, named: Any) -> Any:
        raise ProgramError(
            f"{args[0][0]}: second derivatives through layers and models are not computed; write what you "
            "differentiate twice with functions of dt, without layers"
        )

    forward = extend.primitive(lambda node, *arrays: _aside(node[1], *arrays))
    backward = extend.primitive(back)

    def gradients(argnums: Any, result: Any, args: Any, named: Any) -> Any:
        def of(gradient: Any) -> Any:
            found = backward(args[0], gradient, *args[1:])
            return [found[number - 1] for number in argnums]

        return of

    extend.defvjp_argnums(forward, gradients)
    extend.defvjp_argnums(backward, lambda *call: lambda gradient: no_second(*call))
    return forward


class Recording:
    """The watched values of one recording, and gradients by them."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self._found: list[list[Any]] = []

    def watch(self, value: Any) -> RecordedTensor:
        """Return a value as a recorded one; the n-th that is watched has the n-th gradient."""
        package = autograd()
        place: list[Any] = []

        def collect(gradient: Any) -> tuple[()]:
            place.append(gradient)
            return ()

        root = package.core.VJPNode.new_root()
        root.vjp = collect
        self._found.append(place)
        inner = value.box if isinstance(value, RecordedTensor) else np.array(value)
        return RecordedTensor(package.tracer.new_box(inner, self.number, root))

    def gradients(self, target: Any, upstream: Any = None) -> list[Any]:
        """Return the gradient of the sum of `target` (times `upstream`) by each watched value.

        None stands for a value on which the target does not depend.
        """
        tracer, core = autograd().tracer, autograd().core
        box = target.box if isinstance(target, RecordedTensor) else target
        while tracer.isbox(box) and box._trace != self.number:
            box = box._value
        for place in self._found:
            place.clear()
        if tracer.isbox(box):
            value = tracer.getval(box)
            given = np.ones(np.shape(value), value.dtype) if upstream is None else upstream
            core.backward_pass(boxed(given), box._node)
        return [wrapped(place[0]) if place else None for place in self._found]
