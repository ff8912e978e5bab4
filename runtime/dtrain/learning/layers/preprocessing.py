"""Layers that prepare data: Rescaling, Normalization, StringLookup, IntegerLookup.

They have no weights. What `adapt` learns from data (means, a vocabulary) becomes part of the layer's config.
It is saved with the architecture, and is the same in every task that runs the same program.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from dtrain.errors import InputError, SpecError
from dtrain.learning.core.arrays import as_float32
from dtrain.learning.layers.base import Call, Layer
from dtrain.types import Array, Arrays, Shape

T = TypeVar("T", str, int)

OOV_MAX = 10**8
"""Integers for unknown tokens: an embedding of one number for each has 400 MB."""
_EPSILON = np.float32(1e-7)


@dataclass(eq=False)
class Rescaling(Layer):
    """``x * scale + offset``."""

    scale: float | Sequence[float]
    offset: float | Sequence[float] = 0.0

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the rescaled values."""
        return x * np.asarray(self.scale, np.float32) + np.asarray(self.offset, np.float32), None

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy * scale."""
        return dy * np.asarray(self.scale, np.float32)


@dataclass(eq=False)
class Normalization(Layer):
    """``(x - mean) / sqrt(variance)``, one mean for each place along `axis` (None: one for all).

    Mean and variance are given, or learned by `adapt`. With `invert` the layer does the reverse. Axes are
    counted with the batch axis as 0.
    """

    axis: int | Sequence[int] | None = -1
    mean: float | Sequence[Any] | None = None
    variance: float | Sequence[Any] | None = None
    invert: bool = False

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.variance is None):
            raise SpecError(f"{self.label}: mean and variance must be given together")

    def adapt(self, data: Any) -> None:
        """Learn mean and variance from all of `data` [examples, ...], or a dataset of batches of them."""
        array = np.asarray(as_float32(_whole(data), self.label), np.float64)
        if not array.size:
            raise InputError(f"{self.label}: adapt: expected at least one example, found none")
        kept = self._kept_axes(array.ndim)
        over = tuple(axis for axis in range(array.ndim) if axis not in kept)
        self.mean = array.mean(axis=over).tolist()
        self.variance = array.var(axis=over).tolist()

    def _kept_axes(self, rank: int) -> list[int]:
        if self.axis is None:
            return []
        return sorted(axis % rank for axis in ([self.axis] if isinstance(self.axis, int) else self.axis))

    def mean_and_deviation(self, rank: int) -> tuple[Array, Array]:
        """Return what is subtracted and what divides, for `rank` axes; a `SpecError` if neither is known."""
        if self.mean is None:
            raise SpecError(
                f"{self.label}: has neither mean and variance nor been adapted; call adapt(data) first"
            )
        mean = np.asarray(self.mean, np.float32)
        variance = np.asarray(self.variance, np.float32)
        if mean.ndim == len(kept := self._kept_axes(rank)):
            lengths = iter(mean.shape)
            shape = [next(lengths) if axis in kept else 1 for axis in range(rank)]
            mean = mean.reshape(shape)
            variance = variance.reshape(shape)
        return mean, np.maximum(np.sqrt(variance), _EPSILON)

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the normalized values."""
        mean, deviation = self.mean_and_deviation(x.ndim)
        return (x * deviation + mean if self.invert else (x - mean) / deviation), deviation

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return dy divided (or, inverted, multiplied) by the deviation."""
        return dy * cache if self.invert else dy / cache


@dataclass(eq=False)
class _Lookup(Layer):
    """Base of StringLookup and IntegerLookup: tokens to integers by a vocabulary.

    The integers are: 0 for the mask token (if there is one), then `num_oov_indices` for tokens that are out
    of vocabulary, then the vocabulary in order. `output_mode` is ``int``; or ``one_hot``, ``multi_hot`` or
    ``count``, in which the mask has no place and the last axis is as long as the vocabulary. `adapt` orders
    by frequency, and equals from high to low, as Keras does.

    Attributes:
        vocabulary: tokens; or the path of a UTF-8 text file with one token a line, which is read at once.

    Raises:
        SpecError: the file cannot be read, or a token is there twice.
    """

    any_dtype: ClassVar[bool] = True
    OUTPUT_MODES: ClassVar[tuple[str, ...]] = ("int", "one_hot", "multi_hot", "count")

    max_tokens: int | None = None
    num_oov_indices: int = 1
    mask_token: Any = None
    oov_token: Any = None
    vocabulary: Sequence[Any] | os.PathLike[str] | None = None
    invert: bool = False
    output_mode: str = "int"

    def __post_init__(self) -> None:
        self._known: list[Any] = []
        if self.output_mode not in self.OUTPUT_MODES:
            raise SpecError(
                f"{self.label}: output_mode: expected one of {self.OUTPUT_MODES}, found {self.output_mode!r}"
            )
        if not 0 <= self.num_oov_indices <= OOV_MAX:
            raise SpecError(
                f"{self.label}: num_oov_indices: expected 0 to {OOV_MAX}, found {self.num_oov_indices:.6g}"
            )
        if isinstance(self.vocabulary, str | os.PathLike):
            self._learn(self._tokens_in(Path(self.vocabulary)))
        elif self.vocabulary is not None:
            self._learn([self._token(each) for each in self.vocabulary])

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return an equal layer from the result of `get_config`, which holds the tokens themselves.

        Raises:
            SpecError: the vocabulary is a path; data must not make a layer read a file.
        """
        if isinstance(vocabulary := config.get("vocabulary"), str):
            raise SpecError(f"{cls.__name__}: vocabulary: expected tokens in a list, found {vocabulary!r}")
        return super().from_config(config)

    def adapt(self, data: Any) -> None:
        """Learn the vocabulary, the most frequent token first, from an array or a dataset of batches."""
        counts = Counter(self._token(each) for each in _whole(data).reshape(-1).tolist())
        special = {self.mask_token, self.oov_token}
        ranked = sorted(
            (token for token in counts if token not in special), key=lambda t: (counts[t], t), reverse=True
        )
        self._learn(ranked[: None if self.max_tokens is None else self.max_tokens - self._first])

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """Return the tokens by their integers."""
        special = [self.mask_token] * self._has_mask + [self.oov_token] * self.num_oov_indices
        return special * include_special_tokens + self._known

    def vocabulary_size(self) -> int:
        """Return the number of integers."""
        return self._first + len(self._known)

    @property
    def _has_mask(self) -> bool:
        return self.mask_token is not None and self.output_mode == "int"

    @property
    def _first(self) -> int:
        """Integer of the vocabulary's first token."""
        return self._has_mask + self.num_oov_indices

    def _learn(self, tokens: Sequence[Any]) -> None:
        special = [self.mask_token] * self._has_mask + [self.oov_token] * (self.num_oov_indices > 0)
        if self._begins_with_specials(tokens):  # a vocabulary from get_vocabulary
            tokens = tokens[self._first :]
        if len(set(tokens)) != len(tokens):
            raise SpecError(
                f"{self.label}: the vocabulary has a token twice: {Counter(tokens).most_common(1)[0][0]!r}"
            )
        if not set(special).isdisjoint(tokens):
            raise SpecError(f"{self.label}: vocabulary: expected all of {special} in front, or none of them")
        self.vocabulary = self._known = list(tokens)
        self._index = {token: self._first + index for index, token in enumerate(tokens)}

    def _begins_with_specials(self, tokens: Sequence[Any]) -> bool:
        """Return whether the special tokens stand in front, without a list of them: there may be millions."""
        if len(tokens) < self._first or (self._has_mask and tokens[0] != self.mask_token):
            return False
        return all(token == self.oov_token for token in tokens[self._has_mask : self._first])

    def _tokens_in(self, path: Path) -> list[Any]:
        """Return the tokens in a text file, one a line."""
        try:
            lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            expected = "expected tokens, or the path of a text file with one token a line"
            raise SpecError(f"{self.label}: vocabulary: cannot read {path}: {reason}; {expected}") from None
        tokens = []
        for number, line in enumerate(lines if lines != [""] else [], start=1):
            try:
                tokens.append(self._token_of(line))
            except ValueError:
                found = f"found {line!r} in line {number} of {path}"
                raise SpecError(f"{self.label}: vocabulary: expected integers, {found}") from None
        return tokens

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the same shape, or for the encodings one with the vocabulary as last axis."""
        if self.output_mode == "int":
            return input_shape
        replaced = input_shape[-1:] == (1,) if self.output_mode == "one_hot" else len(input_shape) > 0
        return (*(input_shape[:-1] if replaced else input_shape), self.vocabulary_size())

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the integers or encodings; inverted, the tokens."""
        if self.vocabulary is None:
            raise SpecError(f"{self.label}: has no vocabulary; give one, or call adapt(data) first")
        if self.invert:
            table = np.array(self.get_vocabulary())
            ids = np.asarray(x, np.int64)
            known = (ids >= 0) & (ids < len(table))
            return np.where(known, table[np.where(known, ids, 0)], self.oov_token), None
        flat = [self._lookup(self._token(each)) for each in x.reshape(-1).tolist()]
        ids = np.array(flat, np.int64).reshape(x.shape)
        return (ids if self.output_mode == "int" else self._encoded(ids)), None

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return None: tokens have no gradient."""
        return None

    def _lookup(self, token: Any) -> int:
        if token in self._index:
            return self._index[token]
        if token == self.mask_token and token is not None:
            return 0 if self._has_mask else -1
        if self.num_oov_indices == 0:
            raise InputError(f"{self.label}: expected a token of the vocabulary, found {token!r}")
        return self._has_mask + self._bucket(token)

    def _encoded(self, ids: Array) -> Array:
        """Return counts, or 0 and 1, over the last axis' tokens (one_hot: of length 1); -1 has no place."""
        size = self.vocabulary_size()
        one_hot: Array = (ids[..., np.newaxis] == np.arange(size)).astype(np.float32)
        if ids.ndim > 1 and (self.output_mode != "one_hot" or ids.shape[-1] == 1):
            one_hot = one_hot.sum(axis=-2)
        return one_hot.clip(0, 1) if self.output_mode == "multi_hot" else one_hot

    def _token(self, value: Any) -> Any:
        """Return `value` as a token of this layer's kind."""
        raise NotImplementedError

    def _token_of(self, line: str) -> Any:
        """Return the token that a line of a file holds."""
        return line

    def _bucket(self, token: Any) -> int:
        """Return the index among the integers for tokens out of vocabulary."""
        raise NotImplementedError


@dataclass(eq=False)
class StringLookup(_Lookup):
    """Strings to integers. See `IntegerLookup` for integers."""

    oov_token: Any = "[UNK]"

    def __post_init__(self) -> None:
        if self.num_oov_indices > 1:
            raise SpecError(
                f"{self.label}: num_oov_indices: expected 0 or 1 for strings, found {self.num_oov_indices}"
            )
        super().__post_init__()

    def _token(self, value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)

    def _bucket(self, token: Any) -> int:
        return 0


@dataclass(eq=False)
class IntegerLookup(_Lookup):
    """Integers to integers; of several `num_oov_indices` an unknown one gets that of its remainder."""

    oov_token: Any = -1

    def _token(self, value: Any) -> int:
        if value != int(value):
            raise InputError(f"{self.label}: expected integers, found {value!r}")
        return int(value)

    def _token_of(self, line: str) -> int:
        return int(line)

    def _bucket(self, token: Any) -> int:
        return int(token) % self.num_oov_indices


def _whole(data: Any) -> Array:
    """Return an array as it is, the batches of a dataset as one array."""
    if isinstance(data, Iterable) and not isinstance(data, np.ndarray | list | tuple):
        return np.concatenate([np.asarray(batch) for batch in data] or [np.zeros(0, np.float32)])
    return np.asarray(data)
