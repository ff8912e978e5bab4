"""The update of one slice, block by block, so that an heir can go on at any point.

The rule *Put aside* (docs/design/collectives.md#put-aside):

1. Before a block is changed, it is put aside whole and the word `saved` counts it; when it is changed,
   `done` counts it.
2. An heir begins at the first block that is not done. If that one was put aside, it may be half changed and
   is restored first; if not, it is as it was, and what lies aside may be half written.
3. What the word says lies aside is not written again before the block is done: an heir that has restored a
   block does not put it aside once more, for it may die in the midst of that.
"""

from collections.abc import Sequence

from dtrain.collectives.block_update import BlockUpdate
from dtrain.collectives.board import Board, count, counted
from dtrain.collectives.row_update import AnyBlock


def work(board: Board, of_round: int, number: int, blocks: Sequence[AnyBlock], memory: BlockUpdate) -> None:
    """Update the blocks of slice `number` that this round has not updated. The caller then says `fin`."""
    saved, done = board.saved, board.done
    first = count(done[number], of_round)
    lies_aside = count(saved[number], of_round)
    if lies_aside == first + 1:
        memory.restore(number, blocks[first])
    for place in range(first, len(blocks)):
        block = blocks[place]
        if place >= lies_aside:
            memory.put_aside(number, block)
            saved[number] = counted(of_round, place + 1)
        memory.update(block)
        done[number] = counted(of_round, place + 1)
