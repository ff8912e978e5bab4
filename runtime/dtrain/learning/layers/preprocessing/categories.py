"""Layers that give categories without a vocabulary: integers, or encodings of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import InputError, SpecError
from dtrain.learning.core.arrays import as_float32
from dtrain.learning.layers.base import Call
from dtrain.learning.layers.preprocessing.hashes import ByteStrings, chained, fingerprints, keyed_hashes
from dtrain.learning.layers.preprocessing.numeric import OUTPUTS_MAX, PreparingLayer
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
        self._expect_one_of("output_mode", self.OUTPUT_MODES)
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


@dataclass(eq=False)
class CategoryEncoding(CategoryLayer):
    """Integers from 0 to `num_tokens` (not included) as ``one_hot``, ``multi_hot`` or ``count``.

    Shapes: whole numbers [batch, n] become float32 [batch, num_tokens] by ``multi_hot`` and ``count``,
    [batch, n, num_tokens] by ``one_hot``.

    Differs from Keras: encodings may have any number of axes.

    Args:
        num_tokens: how many different numbers there are.
        output_mode: ``one_hot``, ``multi_hot`` or ``count``.
        sparse: False alone: arrays are dense.

    Raises:
        SpecError: `num_tokens` is missing, or is none.
    """

    OUTPUT_MODES: ClassVar[tuple[str, ...]] = ("one_hot", "multi_hot", "count")

    num_tokens: int | None = None
    output_mode: str = "multi_hot"
    sparse: bool = False

    def __post_init__(self) -> None:
        self.check_encoding()
        if self.num_tokens is None:
            raise SpecError(
                f"{self.label}: num_tokens: expected a number, found None; IntegerLookup learns it"
            )
        self.expect_size(num_tokens=self.num_tokens)

    def __call__(  # type: ignore[override]
        self, inputs: Any, training: bool | None = None, count_weights: Any = None
    ) -> Any:
        """Encode; in mode ``count`` each integer may count as much as `count_weights`, of the same shape."""
        if count_weights is None:
            return super().__call__(inputs, training)
        if self.output_mode != "count":
            raise InputError(
                f"{self.label}: count_weights: expected output_mode 'count', found {self.output_mode!r}"
            )
        integers, weights = self.integers(self.as_input(inputs)), np.asarray(count_weights, np.float32)
        self.expect(
            weights.shape == integers.shape, f"count_weights of shape {integers.shape}", f"{weights.shape}"
        )
        return self.encoded(integers, weights)

    @property
    def depth(self) -> int:
        """Return the number of tokens."""
        assert self.num_tokens is not None
        return self.num_tokens

    def integers(self, x: Array) -> Array:
        """Return the integers as they are; an `InputError` if one is out of range."""
        found = self.whole_numbers(x)
        if (outside := found[(found < 0) | (found >= self.depth)]).size:
            raise InputError(
                f"{self.label}: expected integers from 0 to {self.depth - 1}, found {outside[0]}"
            )
        return found


@dataclass(eq=False)
class Hashing(CategoryLayer):
    """The bin of a string, or of an integer's decimal digits: FarmHash64, with a `salt` SipHash64.

    Attributes:
        num_bins: the number of bins, that of the mask included.
        mask_value: what gets bin 0, which then is for nothing else.
        salt: one integer, or two.
        output_mode: ``int``, ``one_hot``, ``multi_hot`` or ``count``.
        sparse: False alone: arrays are dense.
    """

    num_bins: int
    mask_value: Any = None
    salt: int | Sequence[int] | None = None
    output_mode: str = "int"
    sparse: bool = False

    def __post_init__(self) -> None:
        self.check_encoding()
        self.check_bins(self.num_bins)
        if isinstance(self.salt, int) and not isinstance(self.salt, bool):
            self.salt = [self.salt, self.salt]
        if self.salt is not None and not (
            isinstance(self.salt, list | tuple)
            and len(self.salt) == 2
            and all(isinstance(each, int) and not isinstance(each, bool) for each in self.salt)
        ):
            raise SpecError(f"{self.label}: salt: expected an integer, or two, found {self.salt!r}")

    @property
    def depth(self) -> int:
        """Return the number of bins."""
        return self.num_bins

    def integers(self, x: Array) -> Array:
        """Return the bins."""
        self.expect(x.dtype.kind in "iuOSU", "strings or integers", f"dtype {x.dtype}")
        masks = self.mask_value is not None and self.num_bins > 1
        strings = ByteStrings.of(x.reshape(-1))
        hashes = fingerprints(strings) if self.salt is None else keyed_hashes(strings, self._key)
        bins = (hashes % np.uint64(self.num_bins - masks)).astype(np.int64).reshape(x.shape)
        if masks:
            bins = np.where(self._masked(x), 0, bins + 1)
        return bins

    @property
    def _key(self) -> Sequence[int]:
        assert isinstance(self.salt, Sequence)
        return self.salt

    def _masked(self, x: Array) -> Array:
        if x.dtype.kind in "iu":
            return np.asarray(x == self.mask_value, bool)
        wanted = self.mask_value.encode() if isinstance(self.mask_value, str) else self.mask_value
        found = [
            (each if isinstance(each, bytes) else str(each).encode()) == wanted
            for each in x.reshape(-1).tolist()
        ]
        return np.array(found, bool).reshape(x.shape)


_FIRST = 0xDECAFCAFFE
"""The key with which TensorFlow's crosses begin."""


@dataclass(eq=False)
class HashedCrossing(CategoryLayer):
    """The bin of two or more features' values together, one value an example; strings or integers.

    Args:
        num_bins: how many bins there are.
        output_mode: ``int`` or ``one_hot``.
        sparse: False alone: arrays are dense.
    """

    takes_list: ClassVar[bool] = True
    OUTPUT_MODES: ClassVar[tuple[str, ...]] = ("int", "one_hot")

    num_bins: int
    output_mode: str = "int"
    sparse: bool = False

    def __post_init__(self) -> None:
        self.check_encoding()
        self.check_bins(self.num_bins)

    def __call__(  # type: ignore[override]
        self, inputs: Any, training: bool | None = None
    ) -> Any:
        if not isinstance(inputs, list | tuple) or len(inputs) < 2:
            raise InputError(f"{self.label}: expected a list of at least two features, found {inputs!r:.60}")
        return super().__call__(inputs, training)

    @property
    def depth(self) -> int:
        """Return the number of bins."""
        return self.num_bins

    def output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        """Return the shape of one feature, or that with the bins as last axis."""
        for shape in input_shape:
            self.expect(shape in ((), (1,)), "features with one value an example", shape)
            self.expect(
                shape == input_shape[0], f"features of one shape, as the first's {input_shape[0]}", shape
            )
        found: Shape = super().output_shape(tuple(input_shape[0]))
        return found

    def integers(self, x: list[Array]) -> Array:
        """Return the bins."""
        shape = x[0].shape
        one_value = len(shape) < 2 or (len(shape) == 2 and shape[1] == 1)
        self.expect(one_value, "features with one value an example", f"an array of shape {shape}")
        result = np.full(x[0].size, _FIRST, np.uint64)
        for feature in x:
            self.expect(feature.shape == shape, f"features of shape {shape}", f"one of {feature.shape}")
            self.expect(feature.dtype.kind in "iuOSU", "strings or integers", f"dtype {feature.dtype}")
            flat = feature.reshape(-1)
            numbers = flat.dtype.kind in "iu"
            result = chained(
                result, flat.astype(np.uint64) if numbers else fingerprints(ByteStrings.of(flat))
            )
        return (result % np.uint64(self.num_bins)).astype(np.int64).reshape(shape)


@dataclass(eq=False)
class Discretization(CategoryLayer):
    """The number of the bin in which a value lies: bin i holds values from boundary i - 1 (included) to i.

    Either `bin_boundaries` are given, or `adapt` learns `num_bins` of them: quantiles of the data, to within
    `epsilon`, by Keras's summary, whose memory does not grow with the data.

    Differs from Keras: a layer that has neither learned nor been given boundaries refuses data.

    Args:
        bin_boundaries: ascending; the bins are one more.
        num_bins: how many bins `adapt` learns.
        epsilon: how far off a quantile may be, as a fraction of the data.
        output_mode: ``int``, ``one_hot``, ``multi_hot`` or ``count``.
        sparse: False alone: arrays are dense.
    """

    bin_boundaries: Sequence[float] | None = None
    num_bins: int | None = None
    epsilon: float = 0.01
    output_mode: str = "int"
    sparse: bool = False

    def __post_init__(self) -> None:
        self.check_encoding()
        if self.num_bins is not None:
            if self.bin_boundaries is not None:
                raise SpecError(f"{self.label}: expected bin_boundaries or num_bins, found both")
            self.expect_size(num_bins=self.num_bins)
        if not 0 < self.epsilon < 1:
            raise SpecError(f"{self.label}: epsilon: expected a number between 0 and 1, found {self.epsilon}")
        if self.bin_boundaries is not None:
            self._set(list(self.bin_boundaries))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments; learned boundaries stand in the place of their number."""
        config = super().get_config()
        return config if self.bin_boundaries is None else config | {"num_bins": None}

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Learn the boundaries from an array, or a dataset of batches.

        One task of a run does it for all; see `data.distribution.once`.
        """
        if self.num_bins is None:
            raise SpecError(f"{self.label}: adapt: expected num_bins in the constructor, found none")
        settings = f"num_bins {self.num_bins}, epsilon {self.epsilon}, {batch_size}, {steps}"
        self._set(self._learned_by_one(settings, self._learned, data, batch_size, steps))

    def _learned(self, batches: Iterable[Array]) -> list[float]:
        summary = np.zeros((2, 0), np.float32)
        for batch in batches:
            added = _summary(as_float32(batch, self.label), self.epsilon)
            both = np.concatenate((added, summary), axis=1)
            summary = _compressed(both[:, np.argsort(both[0], kind="stable")], self.epsilon)
        if not summary.size:
            raise InputError(f"{self.label}: adapt: expected at least one example, found none")
        assert self.num_bins is not None
        boundaries: list[float] = _compressed(summary, 1.0 / self.num_bins)[0, :-1].tolist()
        return boundaries

    def _set(self, boundaries: list[float]) -> None:
        if any(low > high for low, high in pairwise(boundaries)):
            raise SpecError(
                f"{self.label}: bin_boundaries: expected them in ascending order, found {boundaries}"
            )
        self.bin_boundaries = boundaries
        self._boundaries = np.array(boundaries, np.float32)

    @property
    def depth(self) -> int:
        """Return the number of bins."""
        if self.bin_boundaries is None:
            raise SpecError(f"{self.label}: has no bin_boundaries; give them, or call adapt(data) first")
        return len(self.bin_boundaries) + 1

    def integers(self, x: Array) -> Array:
        """Return the numbers of the bins."""
        values = x if x.dtype.kind == "f" else as_float32(x, self.label)
        bins = self.depth and np.searchsorted(self._boundaries, values, side="right")
        return np.asarray(bins, np.int64)


def _summary(values: Array, epsilon: float) -> Array:
    ordered = np.sort(values.reshape(-1))
    increment = int(np.float32(ordered.size) / np.float32(1.0 / epsilon))
    step = max(increment, 1)
    kept = ordered[increment::step]
    return np.stack([kept, np.full_like(kept, step)])


def _compressed(summary: Array, epsilon: float) -> Array:
    """Return a summary of about 1 / epsilon values, interpolated by the cumulative weights."""
    if summary.shape[1] * epsilon < 1:
        return summary
    percents = epsilon + np.arange(0.0, 1.0, epsilon)
    cumulative = summary[1].cumsum()
    shares = cumulative / cumulative[-1]
    values = np.interp(percents, shares, summary[0])
    cumulative = np.interp(percents, shares, cumulative)
    weights = cumulative - np.concatenate((np.array([0]), cumulative[:-1]))
    return np.stack((values, weights)).astype(np.float32)
