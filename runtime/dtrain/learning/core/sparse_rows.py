"""The gradient of a table of which only some rows were read (TensorFlow's IndexedSlices)."""

from dataclasses import dataclass

import numpy as np

from dtrain.errors import InputError
from dtrain.types import Array


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Gradients of the rows `ids` of a table; rows of an id that occurs several times add up.

    Attributes:
        ids: integers, shape [k].
        rows: shape [k, ...row shape of the table].
    """

    ids: Array
    rows: Array

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.rows):
            raise InputError(f"SparseRows: expected {len(self.ids)} rows, one an id, found {len(self.rows)}")

    def summed(self) -> "SparseRows":
        """Return the same gradient with ascending ids, each of which occurs once."""
        ids, inverse = np.unique(self.ids, return_inverse=True)
        if len(ids) == len(self.ids):
            order = np.argsort(self.ids)
            return SparseRows(ids, self.rows[order])
        rows = np.zeros((len(ids), *self.rows.shape[1:]), self.rows.dtype)
        np.add.at(rows, inverse.reshape(-1), self.rows)
        return SparseRows(ids, rows)

    def plus(self, other: "SparseRows") -> "SparseRows":
        """Return the sum of two gradients of one table, with ascending ids, each of which occurs once."""
        return SparseRows(
            np.concatenate([self.ids, other.ids]), np.concatenate([self.rows, other.rows])
        ).summed()

    def dense(self, shape: tuple[int, ...]) -> Array:
        """Return the same gradient as an array of the table's `shape`."""
        full = np.zeros(shape, self.rows.dtype)
        np.add.at(full, self.ids, self.rows)
        return full
