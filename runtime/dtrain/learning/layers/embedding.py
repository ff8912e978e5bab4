"""The embedding layer: a table of vectors, read by row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.core.constraints import ConstraintLike
from dtrain.learning.core.initializers import InitializerLike
from dtrain.learning.core.regularizers import RegularizerLike
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.layers.base import Call, Layer, Weight
from dtrain.types import Array, Arrays, Shape


@dataclass(eq=False)
class Embedding(Layer):
    """A table of vectors: row ``x`` of [input_dim, output_dim] for each whole number x.

    The gradient is `SparseRows`, one row for each id that occurs, unless the caller passes an array for the
    whole table.

    Shapes: [batch, ...] of whole numbers from 0 to input_dim - 1 becomes [batch, ..., output_dim].

    Differs from Keras: tables that are too large for a worker lie on the parameter
    servers (docs/guide/tables.md).

    Args:
        input_dim: rows of the table: one more than the largest number.
        output_dim: length of a vector.
        embeddings_initializer: first values of the table.
        embeddings_regularizer: penalty on the table; every row then has a gradient.
        activity_regularizer: penalty on the output, divided by the number of examples.
        embeddings_constraint: a limit of the table, kept after each update: a name or a `Constraint`.
        mask_zero: whether 0 stands for nothing: the output then has a mask.
        input_length: length of an example, where it is always the same.
    """

    any_dtype: ClassVar[bool] = True

    input_dim: int
    output_dim: int
    embeddings_initializer: InitializerLike = "uniform"
    embeddings_regularizer: RegularizerLike = None
    activity_regularizer: RegularizerLike = None
    embeddings_constraint: ConstraintLike = None
    mask_zero: bool = False
    input_length: int | None = None

    def __post_init__(self) -> None:
        self.expect_positive(input_dim=self.input_dim, output_dim=self.output_dim)

    @property
    def assumed_input_shape(self) -> Shape:
        """Return `input_length` integers in a row; see `tf.keras.layers.Embedding`."""
        return (self.input_length,)

    def declare(self, input_shape: Shape) -> Sequence[Weight]:
        """Return the table."""
        [table] = self._declared(embeddings=(self.input_dim, self.output_dim))
        return (replace(table, sparse=True),)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the shape with one more axis."""
        return (*input_shape, self.output_dim)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return where the input is not 0, with `mask_zero`."""
        return inputs != 0 if self.mask_zero else None

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return the rows."""
        if x.dtype.kind not in "fiub":
            raise InputError(f"{self.label}: expected integers, found dtype {x.dtype}")
        ids = x.astype(np.int64, copy=False)
        if ids.size and (ids.min() < 0 or ids.max() >= self.input_dim):
            found = ids.min() if ids.min() < 0 else ids.max()
            raise InputError(f"{self.label}: expected integers from 0 to {self.input_dim - 1}, found {found}")
        return weights["embeddings"][ids], ids

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Sum dy for each row; integers have no gradient."""
        rows = SparseRows(cache.reshape(-1), dy.reshape(-1, self.output_dim)).summed()
        if "embeddings" in gradients:
            gradients["embeddings"].fill(0)
            gradients["embeddings"][rows.ids] = rows.rows
        else:
            call.sparse_gradients["embeddings"] = rows
