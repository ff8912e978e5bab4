"""The memory of a replica: all dense variables once, as what travels (flat blocks) and as what a network
reads (arrays by name).

Blocks of one dtype and trainability lie side by side in one buffer, server after server, and a block's
elements are in the order of its server's layout. So

    * what a server sends is received in place, or read where the server has it (`read_at`): the network's
      arrays are views of the blocks, nothing is gathered or copied;
    * what goes over the whole gradient (a global norm, a sum over replicas) is one operation on one buffer.

Only a variable that lies on several servers cannot be a view of several blocks: it has an array of its own,
which `join` fills from the blocks and `split` writes back. Without a partitioner both do nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.parameters.placement import Plan

Array = np.ndarray[Any, Any]

PLACES_KEPT = 4


class ReplicaMemory:
    """Room for one value of every variable of a plan: weights, gradients, or a slot. Zeros at first.

    Attributes:
        buffers: by (dtype, trainable), all servers' blocks of that kind as one contiguous array.
        blocks: for each server, one flat array for each group of its layout.
        variables: every whole dense variable, by name.
    """

    def __init__(
        self, plan: Plan, arrays: Callable[[Sequence[tuple[str, int]]], list[Array]] | None = None
    ) -> None:
        """Make room; `arrays` makes an array of zeros of each (dtype, elements)."""
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
        """Whether a variable lies on several servers."""
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
        """(rows of the whole, server, name) of each shard of variables in several pieces."""
        return [
            (self.variables[variable.name][shard.row_start : shard.row_stop], shard.server, shard.name)
            for position, variable in enumerate(self.plan.variables)
            if not variable.sparse
            for shard in self.plan.shards_of(position)
            if shard.name != variable.name
        ]

    def read_at(self, server: int, blocks: Sequence[Array]) -> None:
        """From now on a server's variables are read from these blocks, which need not be this memory's own.

        A server writes its versions to few places in turn: the views of those last seen are kept. Blocks of
        another model's sizes are left alone: its server will refuse what is made of them.
        """
        if blocks is self._last[server]:
            return
        self._last[server] = blocks
        place: int = blocks[0].__array_interface__["data"][0]
        known = self._known[server]
        if place not in known:
            if [(block.dtype, block.size) for block in blocks] != [
                (block.dtype, block.size) for block in self.blocks[server]
            ]:
                return
            if len(known) == PLACES_KEPT:
                del known[next(iter(known))]
            views = self.plan.layout(server).views(blocks)
            known[place] = views, {name: view for name, view in views.items() if name in self.variables}
        if self._views[server] is not known[place][0]:
            self._views[server], whole = known[place]
            self.variables.update(whole)

    def join(self) -> None:
        """After blocks were written: bring the arrays of split variables up to date."""
        for whole, server, name in self._pieces:
            whole[...] = self._views[server][name]

    def split(self) -> None:
        """After variables were written: bring the blocks of split variables up to date."""
        for whole, server, name in self._pieces:
            self._views[server][name][...] = whole


def cut(plan: Plan, values: Mapping[str, Array]) -> list[list[Array]]:
    """Whole dense variables, by name, as each server's flat arrays; a variable that is not named is zero
    there.
    """
    memory = ReplicaMemory(plan)
    for name, array in memory.variables.items():
        if name in values:
            array[...] = values[name]
    memory.split()
    return memory.blocks


def gather(plan: Plan, blocks: Sequence[Sequence[Array]]) -> dict[str, Array]:
    """Whole dense variables by name, from each server's flat arrays: a view where one is in one piece, else a
    new array.
    """
    views = _shard_views(plan, blocks)
    result: dict[str, Array] = {}
    for position, variable in enumerate(plan.variables):
        if variable.sparse:
            continue
        pieces = [views[shard.name] for shard in plan.shards_of(position)]
        result[variable.name] = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return result


def _shard_views(plan: Plan, blocks: Sequence[Sequence[Array]]) -> dict[str, Array]:
    views: dict[str, Array] = {}
    for layout, flats in zip(plan.layouts, blocks, strict=True):
        views |= layout.views(flats)
    return views
