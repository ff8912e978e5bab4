"""Labels and sequences as arrays, and batches by number: the part of `dt.utils` that is about data."""

import collections.abc
from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.types import Array


class Sequence:
    """Base of objects that give batches by number, as `tf.keras.utils.Sequence`: data of `fit`, `evaluate`
    and `predict`.

    A subclass has `__len__`, the number of batches, and `__getitem__`, which returns the batch of a number
    from 0 on: ``x``, ``(x, y)`` or ``(x, y, sample_weight)``. In a cluster each replica takes its batches by
    number, so every task's object must give the same.
    """

    def on_epoch_end(self) -> None:
        """Be told that an epoch of `fit` has ended, in a process that trains alone."""


def to_categorical(y: Any, num_classes: int | None = None, dtype: str = "float32") -> Array:
    """Return class numbers as one-hot vectors [..., num_classes]; raise an `InputError` for others.

    Args:
        y: whole numbers from 0 on, of any shape.
        num_classes: length of a vector; None: one more than the largest number.
        dtype: numpy's name of the result's dtype.
    """
    classes = np.array(y, np.int64)
    if classes.ndim > 1 and classes.shape[-1] == 1:
        classes = classes[..., 0]
    count = num_classes or int(classes.max(initial=-1)) + 1
    if classes.size and not (classes.min() >= 0 and classes.max() < count):
        raise InputError(
            f"to_categorical: expected class numbers in [0, {count}), found {classes.min()} to "
            f"{classes.max()}"
        )
    return np.eye(count, dtype=dtype)[classes]


def pad_sequences(
    sequences: collections.abc.Sequence[Any],
    maxlen: int | None = None,
    dtype: str = "int32",
    padding: str = "pre",
    truncating: str = "pre",
    value: float = 0.0,
) -> Array:
    """Return sequences of different lengths as one array: short ones are filled with `value`, long ones cut.

    Args:
        sequences: lists of numbers.
        maxlen: the length; the longest sequence's by default.
        dtype: numpy's name of the result's dtype.
        padding, truncating: ``pre`` or ``post``: at which end.
        value: fills up short ones.

    Raises:
        InputError: padding or truncating is neither.
    """
    if not {padding, truncating} <= {"pre", "post"}:
        raise InputError(
            f"pad_sequences: expected padding and truncating of pre or post, found {padding!r} and "
            f"{truncating!r}"
        )
    length = max(map(len, sequences), default=0) if maxlen is None else maxlen
    shape = next((np.shape(each)[1:] for each in sequences if len(each)), ())
    padded = np.full((len(sequences), length, *shape), value, dtype)
    for row, each in zip(padded, sequences, strict=True):
        kept = np.asarray(each)[max(0, len(each) - length) if truncating == "pre" else 0 :][:length]
        start = length - len(kept) if padding == "pre" else 0
        if len(kept):  # an empty list has no shape of its own
            row[start : start + len(kept)] = kept
    return padded


def normalize(x: Any, axis: int = -1, order: int = 2) -> Array:
    """Return vectors divided by their norms; those of norm 0 stay.

    Args:
        x: numbers.
        axis: the axis along which a vector lies.
        order: of the norm: 2 is the length.
    """
    norms = np.atleast_1d(np.linalg.norm(x, order, axis))
    norms[norms == 0] = 1
    return np.asarray(x / np.expand_dims(norms, axis))
