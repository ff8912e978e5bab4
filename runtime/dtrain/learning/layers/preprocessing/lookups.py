"""Layers that give tokens their integers by a vocabulary.

It is given, read from a file or learned from data.
"""

import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from dtrain.errors import InputError, SpecError
from dtrain.formats.bounded_reading import open_regular
from dtrain.learning.layers.preprocessing.categories import CategoryLayer
from dtrain.learning.layers.preprocessing.hashes import ByteStrings, fingerprints
from dtrain.learning.layers.preprocessing.numeric import OUTPUTS_MAX
from dtrain.types import Array


class TokenCounts:
    """How often tokens were seen, and in how many documents."""

    def __init__(self) -> None:
        self.tokens: Counter[Any] = Counter()
        self._documents: Counter[Any] = Counter()
        self._number = 0

    def add_documents(self, documents: Iterable[list[Any]]) -> None:
        for document in documents:
            self.tokens.update(document)
            self._documents.update(set(document))
            self._number += 1

    def ranked(self, most: int | None, but: set[Any]) -> list[Any]:
        """Return the most frequent tokens but some; equals go from high to low, as in Keras."""
        tokens = self.tokens
        return sorted(tokens.keys() - but, key=lambda token: (tokens[token], token), reverse=True)[:most]

    def rarities(self, tokens: Iterable[Any], specials: int) -> list[float]:
        """Return each token's inverse document frequency; before them their mean for special ones."""
        within = np.array([self._documents[each] for each in tokens], np.float32)
        found = np.log(np.float32(1) + np.float32(self._number) / (np.float32(1) + within))
        return [float(found.mean())] * specials + found.tolist() if len(found) else [0.0] * specials


def tokens_in(path: Path, where: str) -> list[str]:
    """Return the lines of a UTF-8 text file; a `SpecError` names the file and this host."""
    try:
        with open(open_regular(path), encoding="utf-8-sig") as file:
            lines = file.read().removesuffix("\n").split("\n")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        expected = "expected tokens, or the path of a text file with one token a line"
        raise SpecError(
            f"{where}: vocabulary: cannot read {path} on host {platform.node()}: {reason}; {expected}"
        ) from None
    return lines if lines != [""] else []


WEIGHTED_OOV_MAX = 10**4
"""Integers for unknown tokens that may each have a weight."""
_MASKED = -2
_UNKNOWN = -1


class VocabularyLayer(CategoryLayer):
    """Base of StringLookup and IntegerLookup: tokens to integers by a vocabulary.

    The integers are: 0 for the mask token (if there is one), then `num_oov_indices` for tokens that are out
    of vocabulary, then the vocabulary in order. In other output modes than ``int`` the mask has no place.
    ``tf_idf`` is ``count`` times how rare each token is among the documents of `adapt`, or `idf_weights`.
    `adapt` orders by frequency, and equals from high to low, as Keras does.

    Attributes:
        vocabulary: tokens; or the path of a UTF-8 text file with one token a line, which is read at once.

    Raises:
        SpecError: the file cannot be read, or a token is there twice.
    """

    OUTPUT_MODES: ClassVar[tuple[str, ...]] = ("int", "one_hot", "multi_hot", "count", "tf_idf")

    max_tokens: int | None
    num_oov_indices: int
    mask_token: Any
    oov_token: Any
    vocabulary: Sequence[Any] | os.PathLike[str] | None
    idf_weights: Sequence[float] | None
    invert: bool
    pad_to_max_tokens: bool

    def __post_init__(self) -> None:
        self._known: list[Any] = []
        self.check_encoding()
        most = WEIGHTED_OOV_MAX if self.output_mode == "tf_idf" else OUTPUTS_MAX
        if not 0 <= self.num_oov_indices <= most:
            raise SpecError(
                f"{self.label}: num_oov_indices: expected 0 to {most}, found {self.num_oov_indices:.6g}"
            )
        if self.max_tokens is not None:
            self.expect_size(max_tokens=self.max_tokens)
        elif self.pad_to_max_tokens:
            raise SpecError(f"{self.label}: pad_to_max_tokens: expected max_tokens beside it, found none")
        if self.invert and self.output_mode != "int":
            raise SpecError(f"{self.label}: invert: expected output_mode 'int', found {self.output_mode!r}")
        if self.idf_weights is not None and (self.vocabulary is None or self.output_mode != "tf_idf"):
            raise SpecError(
                f"{self.label}: idf_weights: expected a vocabulary and output_mode 'tf_idf' beside them"
            )
        if self.vocabulary is not None:
            self.set_vocabulary(self.vocabulary, self.idf_weights)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return an equal layer from the result of `get_config`, which holds the tokens themselves.

        Raises:
            SpecError: the vocabulary is a path; data must not make a layer read a file.
        """
        refuse_path(cls.__name__, config)
        return super().from_config(config)

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Learn the vocabulary, the most frequent token first, from an array or a dataset of batches.

        One task of a run does it for all; see `data.distribution.once`.
        """
        settings = f"{self.max_tokens} {self.num_oov_indices} {self.mask_token!r} {self.output_mode}"
        self.take_learned(self._learned_by_one(settings, self._learned, data, batch_size, steps))

    def _learned(self, batches: Iterable[Array]) -> list[Any]:
        counts = TokenCounts()
        for batch in batches:
            self.count(counts, batch)
        return self.learned_from(counts)

    def count(self, counts: TokenCounts, batch: Array) -> None:
        """Count the tokens of a batch; its rows are documents, and one without rows is a single one."""
        if self.output_mode != "tf_idf":
            counts.tokens.update(self._token(each) for each in batch.reshape(-1).tolist())
            return
        rows = batch.reshape(len(batch) if batch.ndim > 1 else 1, -1)
        counts.add_documents([self._token(each) for each in row] for row in rows.tolist())

    def learned_from(self, counts: TokenCounts) -> list[Any]:
        """Return the vocabulary, and in mode ``tf_idf`` the weights, that follow from counts."""
        most = None if self.max_tokens is None else max(self.max_tokens - self._first, 0)
        tokens = counts.ranked(most, {self.mask_token, self.oov_token})
        return [tokens, counts.rarities(tokens, self._first) if self.output_mode == "tf_idf" else None]

    def take_learned(self, learned: list[Any]) -> None:
        """Take over what `learned_from` has returned, here or in another task."""
        tokens, weights = learned
        self._learn(tokens if weights is None else [*self._specials, *tokens], weights)

    def set_vocabulary(
        self, vocabulary: Sequence[Any] | os.PathLike[str], idf_weights: Sequence[float] | None = None
    ) -> None:
        """Take tokens, or those of a file; in mode ``tf_idf`` with a weight for each."""
        if isinstance(vocabulary, str | os.PathLike):
            tokens = self._tokens_in(Path(vocabulary))
        else:
            tokens = [self._token(each) for each in np.asarray(vocabulary, object).reshape(-1).tolist()]
        self._learn(tokens, None if idf_weights is None else [float(each) for each in idf_weights])

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """Return the tokens by their integers."""
        return self._specials * include_special_tokens + self._known

    def vocabulary_size(self) -> int:
        """Return the number of integers."""
        return self._first + len(self._known)

    @property
    def depth(self) -> int:
        """Return the length of encodings: of the vocabulary, or `max_tokens`."""
        return self.max_tokens if self.pad_to_max_tokens and self.max_tokens else self.vocabulary_size()

    @property
    def _has_mask(self) -> bool:
        return self.mask_token is not None and self.output_mode == "int"

    @property
    def _first(self) -> int:
        return self._has_mask + self.num_oov_indices

    @property
    def _specials(self) -> list[Any]:
        return [self.mask_token] * self._has_mask + [self.oov_token] * self.num_oov_indices

    def _learn(self, tokens: Sequence[Any], weights: Sequence[float] | None) -> None:
        given = len(tokens)
        has_specials = self._begins_with_specials(tokens)
        if has_specials:  # a vocabulary from get_vocabulary
            tokens = tokens[self._first :]
        if len(set(tokens)) != len(tokens):
            raise SpecError(
                f"{self.label}: the vocabulary has a token twice: {Counter(tokens).most_common(1)[0][0]!r}"
            )
        special = [self.mask_token] * self._has_mask + [self.oov_token] * (self.num_oov_indices > 0)
        if not set(special).isdisjoint(tokens):
            raise SpecError(f"{self.label}: vocabulary: expected all of {special} in front, or none of them")
        if self.max_tokens is not None and (size := self._first + len(tokens)) > self.max_tokens:
            raise SpecError(
                f"{self.label}: vocabulary: expected at most max_tokens {self.max_tokens}, found {size}"
            )
        if self.output_mode == "tf_idf":
            weights = self._weights(weights, given, has_specials)
        self.vocabulary = self._known = list(tokens)
        self._index = {token: self._first + index for index, token in enumerate(tokens)}
        if self.mask_token is not None:
            self._index[self.mask_token] = 0 if self._has_mask else _MASKED
        if weights is not None:
            self.vocabulary, self.idf_weights = self.get_vocabulary(), weights

    def _weights(self, weights: Sequence[float] | None, tokens: int, has_specials: bool) -> Sequence[float]:
        if weights is None or len(weights) != tokens:
            found = "none" if weights is None else len(weights)
            raise SpecError(
                f"{self.label}: idf_weights: expected one for each of the {tokens} tokens in output_mode "
                f"'tf_idf', found {found}"
            )
        if has_specials or not weights:
            return weights
        return [float(np.mean(weights))] * self._first + list(weights)

    def _begins_with_specials(self, tokens: Sequence[Any]) -> bool:
        """Copy no tokens: there may be millions."""
        if len(tokens) < self._first or (self._has_mask and tokens[0] != self.mask_token):
            return False
        return all(token == self.oov_token for token in tokens[self._has_mask : self._first])

    def _tokens_in(self, path: Path) -> list[Any]:
        tokens = []
        for number, line in enumerate(tokens_in(path, self.label), start=1):
            try:
                tokens.append(self._token_of(line))
            except ValueError:
                found = f"found {line!r} in line {number} of {path}"
                raise SpecError(f"{self.label}: vocabulary: expected integers, {found}") from None
        return tokens

    def integers(self, x: Array) -> Array:
        """Return the integers of tokens; inverted, the tokens of integers."""
        if self.vocabulary is None:
            raise SpecError(f"{self.label}: has no vocabulary; give one, or call adapt(data) first")
        if self.invert:
            table = np.array(self.get_vocabulary())
            ids = self.whole_numbers(x)
            known = (ids >= 0) & (ids < len(table))
            return np.where(known, table[np.where(known, ids, 0)], self.oov_token)
        return self.ids_of(self._tokens(x)).reshape(x.shape)

    def ids_of(self, tokens: list[Any]) -> Array:
        """Return the integers of a list of tokens."""
        get = self._index.get
        ids = np.fromiter((get(token, _UNKNOWN) for token in tokens), np.int64, len(tokens))
        unknown = np.flatnonzero(ids == _UNKNOWN)
        if len(unknown):
            if self.num_oov_indices == 0:
                token = tokens[unknown[0]]
                raise InputError(f"{self.label}: expected a token of the vocabulary, found {token!r}")
            ids[unknown] = self._has_mask + self._buckets([tokens[place] for place in unknown])
        return ids

    def encoded(self, integers: Array, weights: Array | None = None) -> Array:
        """Return integers as `output_mode` says."""
        found = super().encoded(integers, weights)
        return found * self.rarities if self.output_mode == "tf_idf" else found

    @property
    def rarities(self) -> Array:
        """Return the weight of each integer in mode ``tf_idf``."""
        found = np.zeros(self.depth, np.float32)
        assert self.idf_weights is not None
        found[: len(self.idf_weights)] = self.idf_weights
        return found

    def _tokens(self, x: Array) -> list[Any]:
        return [self._token(each) for each in x.reshape(-1).tolist()]

    def _token(self, value: Any) -> Any:
        raise NotImplementedError

    def _token_of(self, line: str) -> Any:
        return line

    def _buckets(self, tokens: list[Any]) -> Array:
        raise NotImplementedError


def refuse_path(name: str, config: Mapping[str, Any]) -> None:
    """Raise a `SpecError` if a layer's config names a file of tokens: data must not make it read one."""
    if isinstance(vocabulary := config.get("vocabulary"), str):
        raise SpecError(f"{name}: vocabulary: expected tokens in a list, found {vocabulary!r}")


@dataclass(eq=False)
class IntegerLookup(VocabularyLayer):
    """Integers to integers; of several `num_oov_indices` an unknown one gets that of its remainder.

    Differs from Keras: `adapt` of a layer with a given vocabulary learns another one, and encodings are at
    most 10^8 long.

    Args:
        max_tokens: the largest size of the vocabulary, special tokens included; None: no limit.
        num_oov_indices: how many integers stand for unknown tokens.
        mask_token: the token that stands for nothing and becomes 0; None: there is none.
        oov_token: what an unknown integer becomes with `invert`.
        vocabulary: tokens; or the path of a UTF-8 text file with one token a line, which is read at once.
        vocabulary_dtype: ``int64`` or ``int32``: of the tokens.
        idf_weights: for ``tf_idf``, a weight for each token of a given vocabulary.
        invert: whether integers become tokens.
        output_mode: ``int``, ``one_hot``, ``multi_hot``, ``count`` or ``tf_idf``.
        sparse: False alone: arrays are dense.
        pad_to_max_tokens: whether encodings are `max_tokens` long, also where the vocabulary is shorter.
    """

    max_tokens: int | None = None
    num_oov_indices: int = 1
    mask_token: Any = None
    oov_token: Any = -1
    vocabulary: Sequence[Any] | os.PathLike[str] | None = None
    vocabulary_dtype: str = "int64"
    idf_weights: Sequence[float] | None = None
    invert: bool = False
    output_mode: str = "int"
    sparse: bool = False
    pad_to_max_tokens: bool = False

    def __post_init__(self) -> None:
        if self.vocabulary_dtype not in ("int64", "int32"):
            raise SpecError(
                f"{self.label}: vocabulary_dtype: expected 'int64' or 'int32', found "
                f"{self.vocabulary_dtype!r}"
            )
        super().__post_init__()

    def _tokens(self, x: Array) -> list[Any]:
        return self.whole_numbers(x).reshape(-1).tolist()

    def _token(self, value: Any) -> int:
        if value != int(value):
            raise InputError(f"{self.label}: expected integers, found {value!r}")
        return int(value)

    def _token_of(self, line: str) -> int:
        return int(line)

    def _buckets(self, tokens: list[Any]) -> Array:
        return np.array(tokens, np.int64) % self.num_oov_indices


@dataclass(eq=False)
class StringLookup(VocabularyLayer):
    """Strings to integers; of several `num_oov_indices` an unknown one gets that of its FarmHash64.

    See `IntegerLookup` for integers.

    Differs from Keras: `adapt` of a layer with a given vocabulary learns another one, and encodings are at
    most 10^8 long.

    Args:
        max_tokens: the largest size of the vocabulary, special tokens included; None: no limit.
        num_oov_indices: how many integers stand for unknown tokens.
        mask_token: the token that stands for nothing and becomes 0; None: there is none.
        oov_token: what an unknown integer becomes with `invert`.
        vocabulary: tokens; or the path of a UTF-8 text file with one token a line, which is read at once.
        idf_weights: for ``tf_idf``, a weight for each token of a given vocabulary.
        encoding: ``utf-8`` alone.
        invert: whether integers become tokens.
        output_mode: ``int``, ``one_hot``, ``multi_hot``, ``count`` or ``tf_idf``.
        sparse: False alone: arrays are dense.
        pad_to_max_tokens: whether encodings are `max_tokens` long, also where the vocabulary is shorter.
    """

    max_tokens: int | None = None
    num_oov_indices: int = 1
    mask_token: Any = None
    oov_token: Any = "[UNK]"
    vocabulary: Sequence[Any] | os.PathLike[str] | None = None
    idf_weights: Sequence[float] | None = None
    encoding: str = "utf-8"
    invert: bool = False
    output_mode: str = "int"
    sparse: bool = False
    pad_to_max_tokens: bool = False

    def __post_init__(self) -> None:
        if self.encoding.lower() not in ("utf-8", "utf8"):
            raise SpecError(f"{self.label}: encoding: expected 'utf-8', found {self.encoding!r}")
        super().__post_init__()

    def _tokens(self, x: Array) -> list[Any]:
        return [each if type(each) is str else self._token(each) for each in x.reshape(-1).tolist()]

    def _token(self, value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)

    def _buckets(self, tokens: list[Any]) -> Array:
        if self.num_oov_indices == 1:
            return np.zeros(len(tokens), np.int64)
        hashes = fingerprints(ByteStrings.of_list([token.encode() for token in tokens]))
        return (hashes % np.uint64(self.num_oov_indices)).astype(np.int64)
