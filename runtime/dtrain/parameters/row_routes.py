"""Which server has which rows of the sparse variables of a plan: how ids are dealt out, and gradients of
rows. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.parameters.placement import Plan, Shard

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of many ids: those that lie in one table of one server.

    Attributes:
        table: its number in the server's layout.
        where: of the many.
        ids: counted from the shard's first row.
    """

    server: int
    table: int
    where: slice
    ids: Array


class RowRoutes:
    """The ways to the rows of a plan's sparse variables. Ids are int64, ascend, and occur once."""

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

    def pieces(self, name: str, ids: Array) -> list[Piece]:
        """The ids of one variable by the tables that have them; tables that have none are left out."""
        found = []
        for server, number, shard in self._tables[name]:
            first, last = np.searchsorted(ids, (shard.row_start, shard.row_stop)).tolist()
            if first < last:
                found.append(Piece(server, number, slice(first, last), ids[first:last] - shard.row_start))
        return found

    def blocks(self, gradients: Mapping[str, SparseRows]) -> list[list[Array]]:
        """For each server, the blocks of a push: ids and flat rows of each trainable table; of none where a
        gradient is missing.
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
        """For each server, all rows of each of its tables, flat; none of a variable that is not named."""

        def rows(shard: Shard, name: str) -> Array:
            part = values[name][shard.row_start : shard.row_stop] if name in values else ()
            return np.ascontiguousarray(part, shard.dtype).reshape(-1)

        return [[rows(shard, name) for _, shard, name in layout] for layout in self._layouts]
