"""The arrays of a server that the leader reads for a checkpoint, and their order. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dtrain.messages import SnapshotRows
from dtrain.parameters.placement import ServerLayout, Shard
from dtrain.parameters.table import VALUES
from dtrain.variables import DTYPE_BYTES
from dtrain.variables.lazy_table import BLOCK_BYTES, row_blocks


@dataclass(frozen=True)
class SavedArray:
    """Values, or one slot, of a group or table, as in `SnapshotRows`: of `shards` one after another."""

    part: int
    name: str
    shards: tuple[Shard, ...]
    shape: tuple[int, ...]

    def questions(self, nbytes: int = BLOCK_BYTES) -> Iterator[SnapshotRows]:
        """Yield the questions for all of it, in blocks of about `nbytes`."""
        for start, stop in row_blocks(self.shape, DTYPE_BYTES[self.shards[0].dtype], nbytes):
            yield SnapshotRows(part=self.part, array=self.name, start=start, stop=stop)


def saved_arrays(layout: ServerLayout, slots: Sequence[str]) -> Iterator[SavedArray]:
    """Everything that a server holds."""
    groups = [(group.shards, (group.size,)) for group in layout.groups]
    tables = [((table,), table.shape) for table in layout.tables]
    for part, (shards, shape) in enumerate([*groups, *tables]):
        for name in (VALUES, *(slots if shards[0].trainable else ())):
            yield SavedArray(part, name, shards, shape)
