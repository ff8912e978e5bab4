"""The arrays of a table as they were at one moment, while training goes on: copy on write, row by row. Rule 11.

Nothing is copied when the image is made. A row that is about to change is copied once, unless it has been read already; where
all rows change, those that have not been read are copied at once. Rows are read once, array after array, first row first; the
block that was read last may be read again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass
class _Part:
    """One array.

    Attributes:
        position: rows before it are not asked for again.
        ids, rows: what has changed since, as it was.
        kept: for each row, whether it stands there.
        whole: all rows from `whole_start` on, where all have changed.
    """

    array: Array
    position: int = 0
    ids: list[Array] = field(default_factory=list)
    rows: list[Array] = field(default_factory=list)
    kept: Array | None = None
    whole: Array | None = None
    whole_start: int = 0

    def keep(self, ids: Array) -> None:
        if self.whole is not None or self.position >= len(self.array):
            return
        if self.kept is None:
            self.kept = np.zeros(len(self.array), bool)
        new = ids[(ids >= self.position) & ~self.kept[ids]]
        self.kept[new] = True
        self.ids.append(new)
        self.rows.append(self.array[new])

    def keep_all(self) -> None:
        if self.whole is None and self.position < len(self.array):
            self.whole, self.whole_start = self.block(self.position, len(self.array)), self.position
            self._forget()

    def block(self, start: int, stop: int) -> Array:
        if self.whole is not None:
            return self.whole[start - self.whole_start : stop - self.whole_start]
        block = self.array[start:stop].copy()
        if self.ids:
            ids, rows = np.concatenate(self.ids), np.concatenate(self.rows)
            ahead = ids >= start
            self.ids, self.rows = [ids[ahead]], [rows[ahead]]
            here = self.ids[0] < stop
            block[self.ids[0][here] - start] = self.rows[0][here]
        return block

    def done(self) -> None:
        self.position, self.whole = len(self.array), None
        self._forget()

    def _forget(self) -> None:
        self.ids, self.rows, self.kept = [], [], None


class Image:
    """Arrays of as many rows each, as they were when this was made."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._parts = {name: _Part(array) for name, array in arrays.items()}

    def keep(self, ids: Array) -> None:
        """These rows, each once, are about to change."""
        for part in self._parts.values():
            part.keep(ids)

    def keep_all(self) -> None:
        """Every row is about to change."""
        for part in self._parts.values():
            part.keep_all()

    def read(self, name: str, start: int, stop: int) -> Array:
        """Rows of one array as they were. What lies before them, and the arrays before this one, cannot be read again.

        Raises:
            KeyError: there is no such array.
        """
        part = self._parts[name]
        for before in self._parts.values():
            if before is part:
                break
            before.done()
        part.position = start
        return part.block(start, stop)
