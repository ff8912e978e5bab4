"""The description of a variable, which a model declares and a server holds.

A `VariableSpec` is plain data and travels: placement, partitioning, servers and checkpoints need no model.
"""

from math import prod

import msgspec

DTYPE_BYTES = {
    **{f"float{8 * nbytes}": nbytes for nbytes in (2, 4, 8)},
    **{f"{kind}{8 * nbytes}": nbytes for kind in ("int", "uint") for nbytes in (1, 2, 4, 8)},
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
