"""TextVectorization: texts to the integers of their words, or counts of them.

Texts become tokens by TensorFlow's rules: lower case and whitespace are those of ASCII.
"""

import os
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.layers.base import Call
from dtrain.learning.layers.preprocessing.categories import encoded_shape
from dtrain.learning.layers.preprocessing.lookups import StringLookup, TokenCounts, refuse_path
from dtrain.learning.layers.preprocessing.numeric import PreparingLayer
from dtrain.types import Array, Arrays, Shape

STANDARDIZE = ("lower_and_strip_punctuation", "lower", "strip_punctuation")
_PUNCTUATION = string.punctuation.encode()


def as_texts(values: Array) -> Array:
    """Return an array of objects whose elements are str; bytes are read as UTF-8."""
    flat = [_text(each) for each in values.reshape(-1).tolist()]
    found = np.empty(len(flat), object)
    found[:] = flat
    return found.reshape(values.shape)


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def standardized(text: str, how: str) -> str:
    coded = text.encode()
    if how.startswith("lower"):
        coded = coded.lower()
    return (coded if how == "lower" else coded.translate(None, _PUNCTUATION)).decode()


def words(text: str) -> list[str]:
    joined = b" ".join(text.encode().split()).decode()
    return joined.split(" ") if joined else []


def ngrams(tokens: list[str], widths: Sequence[int]) -> list[str]:
    """Return so many neighbours joined by a space: all of the first width, then of the next."""
    return [
        " ".join(tokens[start : start + width])
        for width in widths
        for start in range(len(tokens) - width + 1)
    ]


def padded(ids: Array, lengths: Array, width: int | None, filler: int) -> Array:
    """Return rows of integers, filled up to `width`, or to the longest's length."""
    longest = int(lengths.max(initial=0))
    found = np.full((len(lengths), longest), filler, np.int64)
    found[np.arange(longest) < lengths[:, np.newaxis]] = ids
    if width is None or width == longest:
        return found
    more = np.full((len(lengths), max(width - longest, 0)), filler, np.int64)
    return np.concatenate((found[:, :width], more), axis=1)


TextFunction = Callable[[Array], Any]
_SPLIT = ("whitespace", "character")
_MODES = (None, "int", "multi_hot", "count", "tf_idf")


@dataclass(eq=False)
class TextVectorization(PreparingLayer):
    """One text an example, to the integers of its tokens, filled up with 0, or to counts over a vocabulary.

    A text is standardized, split into tokens, and these joined to `ngrams` (an integer: of up to so many). 0
    is padding, 1 an unknown token. Lower case and whitespace are those of ASCII, as in Keras.

    Differs from Keras: `sparse` and `ragged` are refused; tokens of `output_mode` None are filled up with
    ``""``; a layer with functions for `standardize` or `split` cannot be saved.

    Attributes:
        max_tokens: the largest size of the vocabulary, padding and the unknown token included; None: no
            limit.
        standardize: ``lower_and_strip_punctuation``, ``lower``, ``strip_punctuation``, None, or a function of
            an array of texts.
        split: ``whitespace``, ``character``, None (an example is a list of tokens), or a function of an array
            of texts that returns a list of tokens for each.
        ngrams: an integer: tokens are joined to n-grams of up to so many; or the wanted lengths; None: single
            tokens.
        output_mode: ``int``, ``multi_hot``, ``count``, ``tf_idf``; None: the tokens, filled up with ``""``.
        output_sequence_length: the length to which examples are cut and filled, in mode ``int``; None: that
            of the longest in the batch.
        pad_to_max_tokens: whether encodings are `max_tokens` long, also where the vocabulary is shorter.
        vocabulary: tokens, or the path of a text file with one a line.
        idf_weights: for ``tf_idf``, a weight for each token of a given vocabulary.
        sparse: False alone: arrays are dense.
        ragged: False alone: arrays have one length.
        encoding: ``utf-8`` alone.
    """

    any_dtype: ClassVar[bool] = True

    max_tokens: int | None = None
    standardize: str | TextFunction | None = "lower_and_strip_punctuation"
    split: str | TextFunction | None = "whitespace"
    ngrams: int | Sequence[int] | None = None
    output_mode: str | None = "int"
    output_sequence_length: int | None = None
    pad_to_max_tokens: bool = False
    vocabulary: Sequence[str] | os.PathLike[str] | None = None
    idf_weights: Sequence[float] | None = None
    sparse: bool = False
    ragged: bool = False
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        self._check("standardize", self.standardize, STANDARDIZE)
        self._check("split", self.split, _SPLIT)
        self._expect_one_of("output_mode", _MODES)
        if self.ragged:
            raise SpecError(f"{self.label}: ragged: expected False, found True; arrays here are dense")
        if self.output_sequence_length is not None:
            self.expect_positive(output_sequence_length=self.output_sequence_length)
            if self.output_mode != "int":
                raise SpecError(
                    f"{self.label}: output_sequence_length: expected output_mode 'int', found "
                    f"{self.output_mode!r}"
                )
        self._widths = self._ngram_widths()
        self._lookup = StringLookup(
            max_tokens=self.max_tokens,
            mask_token="",
            vocabulary=self.vocabulary,
            idf_weights=self.idf_weights,
            encoding=self.encoding,
            output_mode=self.output_mode or "int",
            sparse=self.sparse,
            pad_to_max_tokens=self.pad_to_max_tokens,
            name=self.name or self.base_name,
        )
        self._take_over()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return an equal layer from the result of `get_config`, which holds the tokens themselves."""
        refuse_path(cls.__name__, config)
        return super().from_config(config)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments; a `SpecError` if a function is among them."""
        for name in ("standardize", "split"):
            if callable(found := getattr(self, name)):
                raise SpecError(
                    f"{self.label}: {name}: a function cannot be written as data, found {found!r}; save the "
                    "model without this layer, and call it in Dataset.map"
                )
        return super().get_config()

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Learn the vocabulary, the most frequent token first, from texts or a dataset of batches of them.

        One task of a run does it for all; see `data.distribution.once`.
        """
        settings = f"{self.max_tokens} {self.standardize} {self.split} {self.ngrams} {self.output_mode}"
        learned = self._learned_by_one(settings, self._learned, data, batch_size, steps)
        self._lookup.take_learned(learned)
        self._take_over()

    def _learned(self, batches: Iterable[Array]) -> list[Any]:
        counts = TokenCounts()
        for batch in batches:
            texts = self.as_input(batch)
            tokens = self._tokens(texts.reshape(-1) if self.split else texts)
            if self.output_mode == "tf_idf":
                counts.add_documents(tokens)
            else:
                counts.tokens.update(chain.from_iterable(tokens))
        return self._lookup.learned_from(counts)

    def set_vocabulary(
        self, vocabulary: Sequence[str] | os.PathLike[str], idf_weights: Sequence[float] | None = None
    ) -> None:
        """Take tokens, or those of a file; in mode ``tf_idf`` with a weight for each."""
        self._lookup.set_vocabulary(vocabulary, idf_weights)
        self._take_over()

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[str]:
        """Return the tokens by their integers."""
        return self._lookup.get_vocabulary(include_special_tokens)

    def vocabulary_size(self) -> int:
        """Return the number of integers."""
        return self._lookup.vocabulary_size()

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the number of tokens (None if it varies), or the length of the vocabulary."""
        if self.output_mode in ("int", None):
            whole = self.split is None and self._widths is None and self.output_sequence_length is None
            return input_shape if whole else (self.output_sequence_length,)
        return encoded_shape((None,), str(self.output_mode), lambda: self._lookup.depth)

    def at_once(self, inputs: Array, training: bool | None) -> Array:
        """Return the output for texts; one text gives what one example of a batch has."""
        if inputs.ndim == (1 if self.split is None else 0):
            found: Array = self.forward({}, inputs[np.newaxis], Call())[0][0]
            return found
        return super().at_once(inputs, training)

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the integers or counts of a batch of texts."""
        rows = self._tokens(x)
        if self.output_mode is None:
            width = max(map(len, rows), default=0)
            tokens = np.full((len(rows), width), "", object)
            for place, row in enumerate(rows):
                tokens[place, : len(row)] = row
            return tokens, None
        if self._lookup.vocabulary is None:
            raise SpecError(f"{self.label}: has no vocabulary; give one, or call adapt(data) first")
        ids = self._lookup.ids_of(list(chain.from_iterable(rows)))
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        if self.output_mode == "int":
            return padded(ids, lengths, self.output_sequence_length, 0), None
        return self._lookup.encoded(padded(ids, lengths, None, -1)), None

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return None: texts have no gradient."""
        return None

    def _take_over(self) -> None:
        """Show what the lookup has learned among this layer's arguments, so that it is saved with them."""
        self.vocabulary, self.idf_weights = self._lookup.vocabulary, self._lookup.idf_weights

    def _check(self, name: str, found: Any, known: tuple[str, ...]) -> None:
        if found is not None and not callable(found) and found not in known:
            raise SpecError(
                f"{self.label}: {name}: expected one of {known}, None or a function, found {found!r}"
            )

    def _ngram_widths(self) -> Sequence[int] | None:
        if self.ngrams is None:
            return None
        if isinstance(self.ngrams, Sequence):
            for width in self.ngrams:
                self.expect_positive(ngrams=width)
            return self.ngrams
        self.expect_positive(ngrams=self.ngrams)
        return range(1, self.ngrams + 1)

    def _tokens(self, x: Array) -> list[list[str]]:
        if self.split is not None and x.ndim > 1:
            self.expect(x.shape[1:] == (1,), "one text an example", x.shape[1:])
            x = x[:, 0]
        self.expect(x.dtype.kind in "OSU", "texts", f"dtype {x.dtype}")
        texts = as_texts(x)
        if callable(self.standardize):
            texts = as_texts(np.asarray(self.standardize(texts), object))
        rows = self._rows(texts)
        return rows if self._widths is None else [ngrams(row, self._widths) for row in rows]

    def _rows(self, texts: Array) -> list[list[str]]:
        own = None if callable(self.standardize) else self.standardize
        flat = (
            [standardized(text, own) for text in texts.reshape(-1).tolist()]
            if own
            else texts.reshape(-1).tolist()
        )
        if callable(self.split):
            return [
                as_texts(np.array(list(row), object)).tolist() for row in self.split(np.array(flat, object))
            ]
        if self.split == "whitespace":
            return [words(text) for text in flat]
        if self.split == "character":
            return [list(text) for text in flat]
        length = len(flat) // max(len(texts), 1)
        return [flat[start : start + length] for start in range(0, len(flat), length or 1)]
