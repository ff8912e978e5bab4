"""The description of a variable, which a model declares and a server holds.

A `VariableSpec` is plain data and travels: placement, partitioning, servers and checkpoints need no model.
"""

from math import prod

import msgspec

DTYPE_BYTES = {
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "bool": 1,
}

TABLE_BYTES = 1 << 18
"""A table smaller than this may travel whole: that costs no more than asking for its rows."""


class VariableSpec(msgspec.Struct, frozen=True):
    """One variable of a model, in the order in which the model creates it.

    Attributes:
        name: unique within the model, for example ``dense/kernel``.
        trainable: False for moving averages, lookup tables and the like, which no optimizer touches.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    trainable: bool = True
    sparse: bool = False

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * DTYPE_BYTES[self.dtype]
