"""Keras's initializers of weights, by object, name or data.

An initializer is called with a shape and a generator and returns a float32 array. One with a `seed` of its
own ignores the generator, so every variable that uses it begins alike, as in Keras. Fans are counted as in
Keras: the last two axes are in and out, those before are the receptive field.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, ClassVar, TypeAlias

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.core.configuration import Configurable, from_data, snake_case, to_data
from dtrain.types import Array

# The standard deviation of a unit normal cut off at two; Keras divides by it to keep the variance.
_TRUNCATED_STDDEV = 0.87962566103423978


class Initializer(Configurable):
    """Base class: override `draw`, and `seed` if the values are random."""

    seed: int | None = None

    def __init__(self) -> None:
        """Take no arguments; see `Configurable.__new__`."""

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        return self.draw(shape, rng if self.seed is None else np.random.default_rng(self.seed))

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Return a float32 array of `shape`; all random numbers come from `rng`."""
        raise NotImplementedError

    def elementwise(self, shape: tuple[int, ...]) -> "Initializer | None":
        """Return an equal initializer that draws each element alike and independently, or None."""
        return None


class _ByElement(Initializer):
    """An initializer that draws every element alike and independently, whatever the shape."""

    def elementwise(self, shape: tuple[int, ...]) -> Initializer:
        return self


InitializerLike: TypeAlias = str | Initializer | type[Initializer] | Mapping[str, Any] | None


@dataclass(frozen=True)
class Zeros(_ByElement):
    """All 0."""

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Return zeros."""
        return np.zeros(shape, np.float32)


@dataclass(frozen=True)
class Ones(_ByElement):
    """All 1."""

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Return ones."""
        return np.ones(shape, np.float32)


@dataclass(frozen=True)
class Constant(Initializer):
    """All `value`, which may be a list that broadcasts to the shape.

    Args:
        value: a number, or a list that broadcasts to the shape.
    """

    value: Any = 0

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Return the value, broadcast."""
        return np.broadcast_to(np.asarray(self.value, np.float32), shape).copy()

    def elementwise(self, shape: tuple[int, ...]) -> Initializer | None:
        """Return this initializer, unless the value is a list."""
        return self if np.ndim(self.value) == 0 else None


@dataclass(frozen=True)
class RandomUniform(_ByElement):
    """Uniform in [minval, maxval).

    Args:
        minval: the smallest value.
        maxval: the end, which is not reached.
        seed: a number from which this one draws, in place of the model's seed: variables that use it begin
            alike; None: the model's.
    """

    minval: float = -0.05
    maxval: float = 0.05
    seed: int | None = None

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Return uniform numbers."""
        return _affine(rng.random(shape, np.float32), self.maxval - self.minval, self.minval)


@dataclass(frozen=True)
class RandomNormal(_ByElement):
    """Normal with `mean` and `stddev`.

    Args:
        mean: the mean.
        stddev: the standard deviation.
        seed: a number from which this one draws, in place of the model's seed: variables that use it begin
            alike; None: the model's.
    """

    mean: float = 0.0
    stddev: float = 0.05
    seed: int | None = None

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Return normal numbers."""
        return _affine(rng.standard_normal(shape, np.float32), self.stddev, self.mean)


@dataclass(frozen=True)
class TruncatedNormal(_ByElement):
    """Normal; values beyond two standard deviations are drawn again.

    Args:
        mean: the mean.
        stddev: the standard deviation, before values are cut off.
        seed: a number from which this one draws, in place of the model's seed: variables that use it begin
            alike; None: the model's.
    """

    mean: float = 0.0
    stddev: float = 0.05
    seed: int | None = None

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Return truncated normal numbers."""
        return _affine(_truncated_normal(shape, rng), self.stddev, self.mean)


@dataclass(frozen=True)
class VarianceScaling(Initializer):
    """Variance ``scale / n``; n is `fan_in`, `fan_out` or their average (`fan_avg`).

    `distribution` is ``truncated_normal`` (also called ``normal``), ``untruncated_normal`` or ``uniform``.

    Args:
        scale: the variance times n.
        mode: ``fan_in``, ``fan_out`` or ``fan_avg``: what n is.
        distribution: ``truncated_normal``, ``untruncated_normal`` or ``uniform``.
        seed: a number from which this one draws, in place of the model's seed: variables that use it begin
            alike; None: the model's.
    """

    scale: float = 1.0
    mode: str = "fan_in"
    distribution: str = "truncated_normal"
    seed: int | None = None

    MODES: ClassVar[tuple[str, ...]] = ("fan_in", "fan_out", "fan_avg")
    DISTRIBUTIONS: ClassVar[tuple[str, ...]] = ("normal", "truncated_normal", "untruncated_normal", "uniform")

    def __post_init__(self) -> None:
        if self.mode not in self.MODES or self.distribution not in self.DISTRIBUTIONS:
            raise SpecError(
                f"VarianceScaling: expected mode in {self.MODES} and distribution in {self.DISTRIBUTIONS}, "
                f"found {self.mode!r} and {self.distribution!r}"
            )

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Return numbers of the wanted variance."""
        return self.elementwise(shape).draw(shape, rng)

    def elementwise(self, shape: tuple[int, ...]) -> Initializer:
        """Return the distribution with the fans of `shape`."""
        fan_in, fan_out = _fans(shape)
        n = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance = self.scale / max(1.0, n)
        if self.distribution == "uniform":
            limit = sqrt(3 * variance)
            return RandomUniform(-limit, limit, self.seed)
        if self.distribution == "untruncated_normal":
            return RandomNormal(0.0, sqrt(variance), self.seed)
        return TruncatedNormal(0.0, sqrt(variance) / _TRUNCATED_STDDEV, self.seed)


class _Scaled(VarianceScaling):
    """A `VarianceScaling` with a name of its own, whose only argument is the seed."""

    PRESET: ClassVar[tuple[float, str, str]]

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(*self.PRESET, seed=seed)


class GlorotUniform(_Scaled):
    """Uniform in ±sqrt(6 / (fan_in + fan_out)): Keras's default for kernels."""

    PRESET = (1.0, "fan_avg", "uniform")


class GlorotNormal(_Scaled):
    """Truncated normal with variance 2 / (fan_in + fan_out)."""

    PRESET = (1.0, "fan_avg", "truncated_normal")


class HeUniform(_Scaled):
    """Uniform in ±sqrt(6 / fan_in)."""

    PRESET = (2.0, "fan_in", "uniform")


class HeNormal(_Scaled):
    """Truncated normal with variance 2 / fan_in."""

    PRESET = (2.0, "fan_in", "truncated_normal")


class LecunUniform(_Scaled):
    """Uniform in ±sqrt(3 / fan_in)."""

    PRESET = (1.0, "fan_in", "uniform")


class LecunNormal(_Scaled):
    """Truncated normal with variance 1 / fan_in."""

    PRESET = (1.0, "fan_in", "truncated_normal")


@dataclass(frozen=True)
class Orthogonal(Initializer):
    """`gain` times a random orthogonal matrix; more than two axes are flattened into rows.

    Args:
        gain: a factor.
        seed: a number from which this one draws, in place of the model's seed: variables that use it begin
            alike; None: the model's.
    """

    gain: float = 1.0
    seed: int | None = None

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Return the Q of a QR decomposition of normal numbers, its signs made unique."""
        if len(shape) < 2:
            raise SpecError(f"Orthogonal: expected a shape of at least two axes, found {shape}")
        rows = prod(shape[:-1])
        columns = shape[-1]
        q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
        q *= np.sign(np.diag(r))
        return np.asarray(self.gain * (q.T if rows < columns else q), np.float32).reshape(shape)


@dataclass(frozen=True)
class Identity(Initializer):
    """`gain` times the identity matrix.

    Args:
        gain: a factor.
    """

    gain: float = 1.0

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Return the (rectangular) identity."""
        if len(shape) != 2:
            raise SpecError(f"Identity: expected a shape of two axes, found {shape}")
        return np.float32(self.gain) * np.eye(*shape, dtype=np.float32)


CLASSES: dict[str, type[Initializer]] = {
    cls.__name__: cls
    for cls in (
        *(Zeros, Ones, Constant, RandomUniform, RandomNormal, TruncatedNormal, VarianceScaling),
        *(GlorotUniform, GlorotNormal, HeUniform, HeNormal, LecunUniform, LecunNormal, Orthogonal, Identity),
    )
}
_BY_NAME = {snake_case(name): cls for name, cls in CLASSES.items()} | CLASSES
_BY_NAME |= {"uniform": RandomUniform, "normal": RandomNormal, "zero": Zeros, "one": Ones}

globals().update({snake_case(name): cls for name, cls in CLASSES.items()})
"""Keras's other names of the classes."""

__all__ = ["Initializer", "deserialize", "get", "serialize", *CLASSES]


def get(identifier: InitializerLike) -> Initializer:
    """Return the initializer for an object, a name (``glorot_uniform``, ``GlorotUniform``) or data.

    Args:
        identifier: an `Initializer`, a name, or ``{"class_name", "config"}``; None is Keras's default.
    """
    if identifier is None:
        return GlorotUniform()
    if isinstance(identifier, type):  # as Keras takes `initializers.zeros`
        return identifier()
    return from_data(identifier, "initializer", _BY_NAME if isinstance(identifier, str) else CLASSES)


deserialize = get
serialize = to_data


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) < 2:
        return (shape[0], shape[0]) if shape else (1, 1)
    receptive_field = prod(shape[:-2])
    return receptive_field * shape[-2], receptive_field * shape[-1]


def _truncated_normal(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    values = rng.standard_normal(prod(shape), np.float32)
    while (beyond := np.flatnonzero(np.abs(values) > 2)).size:
        values[beyond] = rng.standard_normal(beyond.size, np.float32)
    return values.reshape(shape)


def _affine(values: Array, scale: float, offset: float) -> Array:
    values *= np.float32(scale)
    values += np.float32(offset)
    return values
