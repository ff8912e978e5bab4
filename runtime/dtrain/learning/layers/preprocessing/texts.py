"""Texts to tokens by TensorFlow's rules: lower case and whitespace are those of ASCII."""

import string
from collections.abc import Sequence

import numpy as np

from dtrain.types import Array

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
    """Return the text in lower case, without punctuation, or both."""
    coded = text.encode()
    if how.startswith("lower"):
        coded = coded.lower()
    return (coded if how == "lower" else coded.translate(None, _PUNCTUATION)).decode()


def words(text: str) -> list[str]:
    """Return what stands between white space."""
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
    """Return rows of integers, given one after another, filled up to `width`, or to the longest's length."""
    longest = int(lengths.max(initial=0))
    found = np.full((len(lengths), longest), filler, np.int64)
    found[np.arange(longest) < lengths[:, np.newaxis]] = ids
    if width is None or width == longest:
        return found
    more = np.full((len(lengths), max(width - longest, 0)), filler, np.int64)
    return np.concatenate((found[:, :width], more), axis=1)
