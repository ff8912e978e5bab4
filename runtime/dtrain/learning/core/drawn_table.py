"""Initial values of a table, drawn row by row on the server that holds the rows, so that none travel.

Rows are drawn in blocks of `BLOCK_ROWS`, each from a generator of its own: (seed, name, block). A row's
values thus depend neither on the other rows nor on how the table is cut.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.core import initializers
from dtrain.learning.core.configuration import from_data, to_data
from dtrain.types import Array
from dtrain.variables.lazy_table import LazyTable

BLOCK_ROWS = 256


class DrawnTable(LazyTable):
    """Rows that an initializer draws from a seed, float32."""

    def __init__(
        self, shape: tuple[int, ...], initializer: initializers.Initializer, seed: Sequence[int]
    ) -> None:
        """Describe a table; nothing is drawn yet. `initializer` must be `elementwise`."""
        super().__init__(shape, np.float32, self._draw)
        self._initializer = initializer
        self._seed = list(seed) if initializer.seed is None else [initializer.seed]

    @classmethod
    def of(
        cls, shape: tuple[int, ...], initializer: initializers.Initializer, seed: Sequence[int]
    ) -> "DrawnTable | None":
        """Return None unless the initializer is dtrain's own and draws rows independently."""
        elementwise = initializer.elementwise(shape)
        if elementwise is None or type(elementwise) not in initializers.CLASSES.values():
            return None
        return cls(shape, elementwise, seed)

    def describe(self) -> dict[str, Any]:
        return {"initializer": to_data(self._initializer), "seed": self._seed}

    @classmethod
    def described(cls, description: Mapping[str, Any], shape: tuple[int, ...]) -> "DrawnTable":
        """Undo `describe`; raise a `SpecError` for another description."""
        match dict(description):
            case {"initializer": data, "seed": list(seed)} if all(
                isinstance(word, int) and word >= 0 for word in seed
            ):
                table = cls.of(shape, from_data(data, "initializer", initializers.CLASSES), seed)
                if table is not None:
                    return table
        raise SpecError(
            f"expected an initializer that draws rows by themselves, and a seed; found {description!r:.200}"
        )

    def _draw(self, ids: Array) -> Array:
        if isinstance(self._initializer, initializers.Zeros | initializers.Ones | initializers.Constant):
            # constant, no generator needed
            return self._initializer.draw((len(ids), *self.shape[1:]), np.random.default_rng(0))
        rows = np.empty((len(ids), *self.shape[1:]), np.float32)
        blocks, firsts = np.unique(ids // BLOCK_ROWS, return_index=True)
        for block, first, end in zip(blocks.tolist(), firsts, [*firsts[1:], len(ids)], strict=True):
            drawn = self._initializer.draw(
                (BLOCK_ROWS, *self.shape[1:]), np.random.default_rng([*self._seed, block])
            )
            rows[first:end] = drawn[ids[first:end] - block * BLOCK_ROWS]
        return rows
