"""The memory of a replica: all variables once, as what travels (flat blocks) and as what a network reads (arrays by name).

Blocks of one dtype and trainability lie side by side in one buffer, server after server, and a block's elements are in the order
of its server's layout. So

    * what a server sends is received in place: the network's arrays are views of the blocks, nothing is gathered or copied;
    * what goes over the whole gradient (a global norm, a sum over replicas) is one operation on one buffer.

Only a variable that lies on several servers cannot be a view of several blocks: it has an array of its own, which `join` fills from
the blocks and `split` writes back. Without a partitioner both do nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.protocol.placement import Plan

Array = np.ndarray[Any, Any]


class ReplicaMemory:
    """Room for one value of every variable of a plan: weights, gradients, or a slot. Zeros at first.

    Attributes:
        buffers: by (dtype, trainable), all servers' blocks of that kind as one contiguous array.
        blocks: for each server, one flat array for each group of its layout.
        variables: every whole variable, by name.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        sizes: dict[tuple[str, bool], int] = {}
        for layout in plan.layouts:
            for group in layout.groups:
                kind = (group.dtype, group.trainable)
                sizes[kind] = sizes.get(kind, 0) + group.size
        self.buffers = {kind: np.zeros(size, kind[0]) for kind, size in sizes.items()}
        self.blocks = self._cut_blocks()
        self.variables = gather(plan, self.blocks)
        self._copies = self._find_copies()

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

    def _find_copies(self) -> list[tuple[Array, Array]]:
        """(rows of the whole, their place in a block) for each shard of a variable in several pieces."""
        views = _shard_views(self.plan, self.blocks)
        return [
            (self.variables[variable.name][shard.row_start : shard.row_stop], views[shard.name])
            for position, variable in enumerate(self.plan.variables)
            for shard in self.plan.shards_of(position)
            if shard.name != variable.name
        ]

    def join(self) -> None:
        """After blocks were written: bring the arrays of split variables up to date."""
        for whole, part in self._copies:
            whole[...] = part

    def split(self) -> None:
        """After variables were written: bring the blocks of split variables up to date."""
        for whole, part in self._copies:
            part[...] = whole


def cut(plan: Plan, values: Mapping[str, Array]) -> list[list[Array]]:
    """Whole variables, by name, as each server's flat arrays; a variable that is not named is zero there."""
    memory = ReplicaMemory(plan)
    for name, value in values.items():
        memory.variables[name][...] = value
    memory.split()
    return memory.blocks


def gather(plan: Plan, blocks: Sequence[Sequence[Array]]) -> dict[str, Array]:
    """Whole variables by name, from each server's flat arrays: a view where a variable is in one piece, else a new array."""
    views = _shard_views(plan, blocks)
    result: dict[str, Array] = {}
    for position, variable in enumerate(plan.variables):
        pieces = [views[shard.name] for shard in plan.shards_of(position)]
        result[variable.name] = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return result


def _shard_views(plan: Plan, blocks: Sequence[Sequence[Array]]) -> dict[str, Array]:
    views: dict[str, Array] = {}
    for layout, flats in zip(plan.layouts, blocks, strict=True):
        views |= layout.views(flats)
    return views
