"""The servers of the rows of sparse variables: ids and gradients of rows, divided among their tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.parameters.placement import Plan, Shard
from dtrain.types import Array


@dataclass(frozen=True, slots=True)
class ServedIds:
    """The ids, of many, that lie in one table of one server.

    Attributes:
        table: its number in the server's layout.
        where: the places of these ids among the many.
        ids: int64, ascending, counted from the shard's first row; a new array.
    """

    server: int
    table: int
    where: slice
    ids: Array


class RowRoutes:
    """The division of a plan's sparse variables. Ids are int64, ascend, and occur once."""

    def __init__(self, plan: Plan) -> None:
        self._tables: dict[str, list[tuple[int, int, Shard]]] = {}
        self._layouts = [
            [
                (number, shard, plan.variables[shard.variable].name)
                for number, shard in enumerate(layout.tables)
            ]
            for layout in plan.layouts
        ]
        for server, layout in enumerate(self._layouts):
            for number, shard, name in layout:
                self._tables.setdefault(name, []).append((server, number, shard))

    def pieces(self, name: str, ids: Array) -> list[ServedIds]:
        """Return the ids of one variable by the tables that have them, without tables that have none."""
        found = []
        for server, number, shard in self._tables[name]:
            first, last = np.searchsorted(ids, (shard.row_start, shard.row_stop)).tolist()
            if first < last:
                found.append(ServedIds(server, number, slice(first, last), ids[first:last] - shard.row_start))
        return found

    def blocks(self, gradients: Mapping[str, SparseRows]) -> list[list[Array]]:
        """Return `[server][block]`: for each trainable table ids (int64 [k]) and rows (flat, k * row size).

        Ids count from the shard's first row; k is 0 if a gradient is missing. Rows are views if contiguous.
        """
        blocks: list[list[Array]] = []
        for layout in self._layouts:
            blocks.append([])
            for _, shard, name in layout:
                if not shard.trainable:
                    continue
                gradient = gradients.get(name) or SparseRows(
                    np.empty(0, np.int64), np.empty((0, *shard.shape[1:]), shard.dtype)
                )
                first, last = np.searchsorted(gradient.ids, (shard.row_start, shard.row_stop))
                rows = np.ascontiguousarray(gradient.rows[first:last], shard.dtype).reshape(-1)
                blocks[-1] += [gradient.ids[first:last] - shard.row_start, rows]
        return blocks

    def whole(self, values: Mapping[str, Any]) -> list[list[Array]]:
        """Return `[server][table]`: all rows, flat; an empty array for a variable that is not named."""

        def rows(shard: Shard, name: str) -> Array:
            part = values[name][shard.row_start : shard.row_stop] if name in values else ()
            return np.ascontiguousarray(part, shard.dtype).reshape(-1)

        return [[rows(shard, name) for _, shard, name in layout] for layout in self._layouts]
