"""The base of layers that give categories: integers, or encodings of them over the last axis."""

from typing import Any, ClassVar

import numpy as np

from dtrain.errors import InputError, SpecError
from dtrain.learning.layers.base import Call
from dtrain.learning.layers.preprocessing.preparing_layer import OUTPUTS_MAX, PreparingLayer
from dtrain.types import Array, Arrays, Shape


class CategoryLayer(PreparingLayer):
    """Base of layers whose results are integers, or what `output_mode` makes of them:

    - ``int``: int64, in the shape of the input;
    - ``one_hot``: a 1 at each integer's place; an axis of length 1 is replaced, else one is added;
    - ``multi_hot``: a 1 at the place of every integer that the last axis has; it is replaced;
    - ``count``: how often it has each.
    """

    any_dtype: ClassVar[bool] = True
    OUTPUT_MODES: ClassVar[tuple[str, ...]] = ("int", "one_hot", "multi_hot", "count")

    output_mode: str
    sparse: bool

    def check_encoding(self) -> None:
        """Raise a `SpecError` for an output mode that the layer does not have."""
        if self.output_mode not in self.OUTPUT_MODES:
            raise SpecError(
                f"{self.label}: output_mode: expected one of {self.OUTPUT_MODES}, found {self.output_mode!r}"
            )
        if self.sparse:
            raise SpecError(f"{self.label}: sparse: expected False, found True; arrays here are dense")

    def check_bins(self, num_bins: int) -> None:
        """Raise a `SpecError` unless the layer may have this number of bins; an encoding has a limit."""
        if self.output_mode == "int":
            self.expect_positive(num_bins=num_bins)
        else:
            self.expect_size(num_bins=num_bins)

    def expect_size(self, **arguments: Any) -> None:
        """Raise a `SpecError` unless these arguments are lengths that an encoding may have."""
        self.expect_positive(**arguments)
        for name, found in arguments.items():
            if found > OUTPUTS_MAX:
                raise SpecError(f"{self.label}: {name}: expected at most {OUTPUTS_MAX}, found {found:.6g}")

    @property
    def depth(self) -> int:
        """Return the length of encodings."""
        raise NotImplementedError

    def integers(self, x: Any) -> Array:
        """Return the integers of the input; one below 0 has no place in encodings."""
        raise NotImplementedError

    def encoded(self, integers: Array, weights: Array | None = None) -> Array:
        """Return integers as `output_mode` says."""
        return encoded(integers, self.output_mode, self.depth, weights)

    def output_shape(self, input_shape: Any) -> Any:
        """Return the same shape, or for the encodings one with all integers as last axis."""
        return encoded_shape(input_shape, self.output_mode, lambda: self.depth)

    def at_once(self, inputs: Any, training: bool | None) -> Array:
        """Return the output for arrays; one without a batch axis is a single example, as in Keras."""
        integers = self.integers(inputs)
        return integers if self.output_mode == "int" else self.encoded(integers)

    def forward(self, weights: Arrays, x: Any, call: Call) -> tuple[Array, Any]:
        """Return the integers or encodings of a batch."""
        integers = self.integers(x)
        if self.output_mode == "int":
            return integers, None
        return self.encoded(integers[:, np.newaxis] if integers.ndim == 1 else integers), None

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return None: categories have no gradient."""
        return None

    def whole_numbers(self, x: Array) -> Array:
        """Return numbers as int64; an `InputError` if one is not whole."""
        if x.dtype.kind in "iu":
            return x.astype(np.int64, copy=False)
        try:
            values = x.astype(np.float64) if x.dtype.kind in "fb" else np.asarray(x, np.int64)
        except (TypeError, ValueError):
            values = np.array([np.nan])
            self.expect(False, "integers", f"{x.reshape(-1)[0]!r}")
        if (odd := values[values != np.floor(values)]).size:
            raise InputError(f"{self.label}: expected integers, found {odd[0]}")
        return values.astype(np.int64)


def encoded_shape(shape: Shape, mode: str, depth: Any) -> Shape:
    """Return the shape of integers of `shape` under an output mode; `depth` is asked where it is needed."""
    if mode == "int":
        return shape
    replaced = shape[-1:] == (1,) if mode == "one_hot" else len(shape) > 0
    return (*(shape[:-1] if replaced else shape), depth())


def encoded(integers: Array, mode: str, depth: int, weights: Array | None = None) -> Array:
    """Return counts, or 0 and 1, over the last axis' integers; those not below `depth` have no place."""
    if integers.ndim == 0 or (mode == "one_hot" and integers.shape[-1] != 1):
        integers = integers[..., np.newaxis]
    *outer, length = integers.shape
    rows = int(np.prod(outer))
    flat = integers.reshape(rows, length)
    inside = (flat >= 0) & (flat < depth)
    places = (np.arange(rows)[:, np.newaxis] * depth + flat)[inside]
    if mode in ("one_hot", "multi_hot"):
        found = np.zeros(rows * depth, np.float32)
        found[places] = 1
    else:
        amounts = None if weights is None else np.asarray(weights).reshape(rows, length)[inside]
        found = np.bincount(places, amounts, minlength=rows * depth).astype(np.float32)
    return found.reshape(*outer, depth)
