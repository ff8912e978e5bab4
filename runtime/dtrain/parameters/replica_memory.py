"""A replica's memory: dense variables as flat blocks, and the servers of the rows of sparse ones.

Blocks of one dtype and trainability lie side by side in one buffer, server after server, and a block's
elements are in the order of its server's layout. So

- a server's values are received in place, or read where the server has them (`read_at`): the network's arrays
  are views of the blocks, nothing is gathered or copied;
- an operation on the whole gradient (a global norm, a sum over replicas) is one operation on one buffer.

Only a variable that lies on several servers cannot be a view of several blocks: it has an array of its own,
which `join` fills from the blocks and `split` writes back. Without a partitioner both do nothing.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.parameters.placement import Plan, Shard
from dtrain.types import Array, Arrays, Blocks

PLACES_KEPT = 4


class ReplicaMemory:
    """Memory of one value of every variable of a plan: weights, gradients, or a slot; zeros at first.

    Attributes:
        blocks: `[server][group]`, flat, of `group.dtype` and `group.size`: views of the buffers.
        variables: every whole dense variable by name, in its shape: views of the blocks in use (`read_at`),
            or arrays of their own if on several servers.
    """

    def __init__(
        self, plan: Plan, arrays: Callable[[Sequence[tuple[str, int]]], list[Array]] | None = None
    ) -> None:
        """Allocate; `arrays` makes an array of zeros of each (dtype, elements)."""
        self.plan = plan
        sizes: dict[tuple[str, bool], int] = {}
        for layout in plan.layouts:
            for group in layout.groups:
                kind = (group.dtype, group.trainable)
                sizes[kind] = sizes.get(kind, 0) + group.size
        described = [(dtype, size) for (dtype, _), size in sizes.items()]
        buffers = arrays(described) if arrays else [np.zeros(size, dtype) for dtype, size in described]
        self.buffers = dict(zip(sizes, buffers, strict=True))
        self.blocks = self._cut_blocks()
        self.variables = gather(plan, self.blocks)
        self._views = [layout.views(blocks) for layout, blocks in zip(plan.layouts, self.blocks, strict=True)]
        self._last: list[Sequence[Array] | None] = [None for _ in self.blocks]
        self._known: list[dict[int, tuple[dict[str, Array], dict[str, Array]]]] = [{} for _ in self.blocks]
        self._pieces = self._find_pieces()

    @property
    def splits(self) -> bool:
        return any(self._pieces)

    def _cut_blocks(self) -> list[list[Array]]:
        used = dict.fromkeys(self.buffers, 0)
        blocks: list[list[Array]] = []
        for layout in self.plan.layouts:
            blocks.append([])
            for group in layout.groups:
                kind = (group.dtype, group.trainable)
                blocks[-1].append(self.buffers[kind][used[kind] : used[kind] + group.size])
                used[kind] += group.size
        return blocks

    def _find_pieces(self) -> list[tuple[Array, int, str]]:
        return [
            (self.variables[variable.name][shard.row_start : shard.row_stop], shard.server, shard.name)
            for position, variable in enumerate(self.plan.variables)
            if not variable.sparse
            for shard in self.plan.shards_of(position)
            if shard.name != variable.name
        ]

    def read_at(self, server: int, blocks: Sequence[Array]) -> None:
        """Read a server's variables from these blocks, `[group]` and flat, from now on; they stay valid
        as long as the server does not reuse them. The views of its latest few places are cached.
        """
        if blocks is self._last[server]:
            return
        self._last[server] = blocks
        place: int = blocks[0].__array_interface__["data"][0]
        known = self._known[server]
        if place not in known:
            if len(known) == PLACES_KEPT:
                del known[next(iter(known))]
            views = self.plan.layout(server).views(blocks)
            known[place] = views, {name: view for name, view in views.items() if name in self.variables}
        if self._views[server] is not known[place][0]:
            self._views[server], whole = known[place]
            self.variables.update(whole)

    def join(self) -> None:
        """Copy the blocks in use to the arrays of split variables, after blocks were written."""
        for whole, server, name in self._pieces:
            whole[...] = self._views[server][name]

    def split(self) -> None:
        """Copy the arrays of split variables to the blocks in use, after variables were written."""
        for whole, server, name in self._pieces:
            self._views[server][name][...] = whole


def cut(plan: Plan, values: Arrays) -> list[list[Array]]:
    """Return whole dense variables as each server's flat arrays, `[server][group]`; unnamed ones are zero."""
    memory = ReplicaMemory(plan)
    for name, array in memory.variables.items():
        if name in values:
            array[...] = values[name]
    memory.split()
    return memory.blocks


def gather(plan: Plan, blocks: Sequence[Sequence[Array]]) -> dict[str, Array]:
    """Return whole dense variables by name from flat `[server][group]`; one in a single piece is a view."""
    views: dict[str, Array] = {}
    for layout, flats in zip(plan.layouts, blocks, strict=True):
        views |= layout.views(flats)
    result: dict[str, Array] = {}
    for position, variable in enumerate(plan.variables):
        if variable.sparse:
            continue
        pieces = [views[shard.name] for shard in plan.shards_of(position)]
        result[variable.name] = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return result


def any_non_finite(blocks: Iterable[Array]) -> bool:
    """Return whether a floating-point block holds NaN or infinity; `vdot` alone does not warn on overflow."""
    return any(
        block.dtype.kind == "f" and not math.isfinite(np.vdot(block, block)) and not np.isfinite(block).all()
        for block in blocks
    )


class ServedIds(msgspec.Struct, frozen=True):
    """The ids, of many, that lie in one table of one server.

    Attributes:
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
        def rows(shard: Shard, name: str) -> Array:
            part = values[name][shard.row_start : shard.row_stop] if name in values else ()
            return np.ascontiguousarray(part, shard.dtype).reshape(-1)

        return [[rows(shard, name) for _, shard, name in layout] for layout in self._layouts]


class Packing:
    """Blocks as they lie in memory, without compression.

    Attributes:
        offered: `[server][block]`, arrays into which a server's values are best received; here views of the
            replica's memory of weights, with compression arrays of this object's own.
        in_place: True if values that are received there need not be copied.
    """

    def __init__(self, weights: ReplicaMemory, gradients: ReplicaMemory) -> None:
        self._weights = weights
        self._gradients = gradients
        self.offered = weights.blocks
        self.in_place = not weights.splits

    def pack(self, rows: Sequence[Blocks]) -> Sequence[Blocks]:
        """Return `[server][block]`, the blocks of a push: views of the gradients in memory, then `rows`.

        They may not be written until the push is answered.
        """
        return (
            [[*dense, *more] for dense, more in zip(self._gradients.blocks, rows, strict=True)]
            if rows
            else self._gradients.blocks
        )

    def unpack(self, server: int, blocks: Blocks) -> Blocks:
        """Return a server's values as blocks of `ReplicaMemory`; those of another model as they came."""
        return blocks

    def row_dtypes(self, dtype: str) -> tuple[str, ...]:
        return (dtype,)

    def unpack_rows(self, rows: Array, dtype: str) -> Array:
        return rows
