"""Layers that join several inputs, and their forms as functions: Add, Multiply, Concatenate, ..."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import and_, mul
from typing import Any, ClassVar

import numpy as np

from dtrain.learning.layers.base import Call, Layer, SymbolicTensor
from dtrain.types import Array, Arrays, Shape


class _Merging(Layer):
    """Base of layers that merge a list of inputs, which broadcast to one shape; the batch is the same."""

    takes_list: ClassVar[bool] = True

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return where every input that has a mask has something."""
        found = [each for each in mask or () if each is not None]
        return reduce(and_, found) if found else None

    def output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        """Return the shape to which all inputs broadcast."""
        shapes = list(input_shape)
        self.expect(len(shapes) >= 2, "at least 2 inputs", f"{len(shapes)}")
        rank = max(map(len, shapes))
        aligned = [(*[1] * (rank - len(shape)), *shape) for shape in shapes]
        output: list[int | None] = []
        for lengths in zip(*aligned, strict=True):
            wider = {n for n in lengths if n != 1}
            known = {n for n in wider if n is not None}
            self.expect(len(known) <= 1, "inputs that broadcast to one shape", str(shapes))
            output.append(known.pop() if known else None if wider else 1)
        return tuple(output)


def _aligned(arrays: Sequence[Array]) -> list[Array]:
    """Return the arrays with axes of length 1 after the batch axis, until all have the same rank."""
    rank = max(array.ndim for array in arrays)
    return [array.reshape(len(array), *[1] * (rank - array.ndim), *array.shape[1:]) for array in arrays]


def _gathered_back(gradient: Array, like: Array) -> Array:
    """Return a broadcast input's gradient, a new array: summed over the axes along which it was repeated."""
    rank = gradient.ndim
    aligned = (len(like), *[1] * (rank - like.ndim), *like.shape[1:])
    repeated = tuple(axis for axis in range(1, rank) if aligned[axis] == 1 != gradient.shape[axis])
    summed = gradient.sum(axis=repeated, keepdims=True) if repeated else gradient.copy()
    return summed.reshape(like.shape)


class _Summing(_Merging):
    """A sum with one factor for each input."""

    def _factors(self, count: int) -> list[float]:
        return [1.0] * count

    def forward(self, weights: Arrays, x: Sequence[Array], call: Call) -> tuple[Array, Any]:
        """Sum factor times input."""
        total: Any = 0
        for factor, array in zip(self._factors(len(x)), _aligned(x), strict=True):
            total = total + (array if factor == 1 else np.float32(factor) * array)
        return total, x

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy times each factor."""
        parts = [_gathered_back(dy, like) for like in cache]
        for part, factor in zip(parts, self._factors(len(cache)), strict=True):
            part *= np.float32(factor)
        return parts


class Add(_Summing):
    """The sum of the inputs, element by element.

    Called with a list of at least two symbolic tensors, whose shapes broadcast: ``dt.layers.Add()([a, b])``.
    """


class Subtract(_Summing):
    """The first of two inputs minus the second, element by element.

    Called with a list of two symbolic tensors, whose shapes broadcast: ``dt.layers.Subtract()([a, b])``.
    """

    def output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        """Return the shape as for any merge, of exactly two inputs."""
        self.expect(len(input_shape) == 2, "2 inputs", f"{len(input_shape)}")
        return super().output_shape(input_shape)

    def _factors(self, count: int) -> list[float]:
        return [1.0, -1.0]


class Average(_Summing):
    """The average of the inputs, element by element.

    Called with a list of at least two symbolic tensors, whose shapes broadcast: ``dt.layers.Average()([a,
    b])``.
    """

    def _factors(self, count: int) -> list[float]:
        return [1 / count] * count


class Multiply(_Merging):
    """The product of the inputs, element by element.

    Called with a list of at least two symbolic tensors, whose shapes broadcast: ``dt.layers.Multiply()([a,
    b])``.
    """

    def forward(self, weights: Arrays, x: Sequence[Array], call: Call) -> tuple[Array, Any]:
        """Return the product of all inputs."""
        return reduce(mul, _aligned(x)), x

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy times the product of the other inputs."""
        factors = _aligned(cache)
        others = (reduce(mul, [dy, *factors[:k], *factors[k + 1 :]]) for k in range(len(factors)))
        return [_gathered_back(gradient, like) for gradient, like in zip(others, cache, strict=True)]


class _Extreme(_Merging):
    """The largest or smallest of the inputs, place by place; the gradient goes to the first that has it."""

    _beats: ClassVar[np.ufunc]

    def forward(self, weights: Arrays, x: Sequence[Array], call: Call) -> tuple[Array, Any]:
        """Return the winner's value at each place."""
        first, *others = np.broadcast_arrays(*_aligned(x))
        y = first.copy()
        winner = np.zeros(first.shape, np.int16)
        for number, array in enumerate(others, start=1):
            better = self._beats(array, y)
            y[better] = array[better]
            winner[better] = number
        return y, (x, winner)

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy to the winner at each place."""
        inputs, winner = cache
        return [_gathered_back(dy * (winner == number), like) for number, like in enumerate(inputs)]


class Maximum(_Extreme):
    """The largest of the inputs, element by element.

    Called with a list of at least two symbolic tensors, whose shapes broadcast: ``dt.layers.Maximum()([a,
    b])``.
    """

    _beats = np.greater


class Minimum(_Extreme):
    """The smallest of the inputs, element by element.

    Called with a list of at least two symbolic tensors, whose shapes broadcast: ``dt.layers.Minimum()([a,
    b])``.
    """

    _beats = np.less


@dataclass(eq=False)
class Concatenate(Layer):
    """The inputs one after the other along `axis`; all other lengths are equal.

    Called with a list of symbolic tensors: ``dt.layers.Concatenate()([a, b])``.

    Args:
        axis: counted with the batch axis as 0, which it cannot be.
    """

    takes_list: ClassVar[bool] = True

    axis: int = -1

    def output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        """Add up the lengths along the axis; all others must be equal."""
        shapes = [list(shape) for shape in input_shape]
        rank = len(shapes[0]) + 1
        axis = self.axis % rank - 1
        self.expect(
            -rank <= self.axis < rank and axis >= 0,
            f"an axis of {rank} axes but the batch's",
            f"axis {self.axis}",
        )
        along = [shape.pop(axis) if len(shape) == rank - 1 else None for shape in shapes]
        self.expect(
            all(shape == shapes[0] for shape in shapes),
            "inputs that differ along the axis only",
            str(list(input_shape)),
        )
        known = [n for n in along if n is not None]
        return (*shapes[0][:axis], sum(known) if len(known) == len(along) else None, *shapes[0][axis:])

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return the masks one after the other; one that is missing is True, the last axis is all in one."""
        if not any(each is not None for each in mask or ()):
            return None
        full = [
            np.broadcast_to(True if m is None else m.reshape(*m.shape, *[1] * (x.ndim - m.ndim)), x.shape)
            for x, m in zip(inputs, mask, strict=True)
        ]
        return np.concatenate(full, axis=self.axis).all(axis=-1)

    def forward(self, weights: Arrays, x: Sequence[Array], call: Call) -> tuple[Array, Any]:
        """Return one array."""
        return np.concatenate(x, axis=self.axis), [array.shape[self.axis] for array in x]

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return each input's part of dy."""
        return np.split(dy, np.cumsum(cache)[:-1], axis=self.axis)


@dataclass(eq=False)
class Dot(Layer):
    """The products of two inputs, summed along an axis of each.

    Called with a list of two symbolic tensors: ``dt.layers.Dot(axes=-1)([a, b])``. The first's other axes
    come before those of the second; where there are none the output is [batch, 1].

    Args:
        axes: the axis of both, or one for each, counted with the batch axis as 0.
        normalize: whether inputs are first divided by their norms along the axis: a cosine.

    Raises:
        InputError: the axes have different lengths.
    """

    takes_list: ClassVar[bool] = True

    axes: int | Sequence[int]
    normalize: bool = False

    def output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        """Return the other axes of both."""
        self.expect(len(input_shape) == 2, "2 inputs", f"{len(input_shape)}")
        (one, length), (other, wanted) = (
            ((*shape[: axis - 1], *shape[axis:]), shape[axis - 1])
            for shape, axis in zip(
                input_shape, self._axes([len(each) + 1 for each in input_shape]), strict=True
            )
        )
        self.expect(
            None in (length, wanted) or length == wanted, f"the length {length}", f"the length {wanted}"
        )
        return (*one, *other) or (1,)

    def _axes(self, ranks: Sequence[int]) -> list[int]:
        given = [self.axes] * 2 if isinstance(self.axes, int) else list(self.axes)
        self.expect(
            all(axis % rank and -rank < axis < rank for axis, rank in zip(given, ranks, strict=True)),
            "axes of the inputs but the batch's",
            f"{self.axes}",
        )
        return [axis % rank for axis, rank in zip(given, ranks, strict=True)]

    def forward(self, weights: Arrays, x: Sequence[Array], call: Call) -> tuple[Array, Any]:
        """Multiply matrices whose last axis is the one that is summed."""
        ranks = [each.ndim for each in x]
        last = [np.moveaxis(each, axis, -1) for each, axis in zip(x, self._axes(ranks), strict=True)]
        shapes = [each.shape for each in last]
        units = [unit(each) if self.normalize else (each, None) for each in last]
        one, other = (each.reshape(len(each), prod(each.shape[1:-1]), each.shape[-1]) for each, _ in units)
        y = one @ other.swapaxes(1, 2)
        lengths = (*shapes[0][1:-1], *shapes[1][1:-1]) or (1,)
        kept = [(shape, inverse) for shape, (_, inverse) in zip(shapes, units, strict=True)]
        return y.reshape(len(y), *lengths), (one, other, kept, ranks)

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Multiply by the other input, and turn the axes back."""
        one, other, kept, ranks = cache
        dy = dy.reshape(len(dy), one.shape[1], other.shape[1])
        found = []
        for each, gradient, (shape, inverse), axis in zip(
            (one, other), (dy @ other, dy.swapaxes(1, 2) @ one), kept, self._axes(ranks), strict=True
        ):
            dx = gradient.reshape(shape)
            if inverse is not None:
                dx = unit_back(each.reshape(shape), inverse, dx)
            found.append(np.moveaxis(dx, -1, axis))
        return found


def unit(x: Array) -> tuple[Array, Array]:
    """Return x divided by its norm along the last axis, and the inverse norms (`tf.math.l2_normalize`)."""
    inverse = 1 / np.sqrt(np.maximum((x * x).sum(axis=-1, keepdims=True), np.float32(1e-12)))
    return x * inverse, inverse


def unit_back(y: Array, inverse: Array, dy: Array) -> Array:
    """Return the gradient by x of `unit`; below its least norm that is a constant."""
    through = dy - y * (dy * y).sum(axis=-1, keepdims=True)
    gradient: Array = np.where(inverse < 1e6, through, dy) * inverse
    return gradient


def _function(layer: type[Layer]) -> Callable[..., SymbolicTensor]:
    """Return the layer as a function of its inputs: ``add([a, b])`` is ``Add()([a, b])``."""

    def join(inputs: Sequence[SymbolicTensor], **arguments: Any) -> SymbolicTensor:
        joined: SymbolicTensor = layer(**arguments)(inputs)
        return joined

    join.__doc__ = (
        f"Return `dt.layers.{layer.__name__}(**arguments)(inputs)`; `inputs` are a list of tensors."
    )
    return join


add = _function(Add)
subtract = _function(Subtract)
multiply = _function(Multiply)
average = _function(Average)
maximum = _function(Maximum)
minimum = _function(Minimum)
concatenate = _function(Concatenate)
dot = _function(Dot)
