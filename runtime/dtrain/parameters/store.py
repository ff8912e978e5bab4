"""The variables of a parameter server's shards in flat arrays, with the optimizer's slots beside them.

All dense shards of one dtype and trainability lie in one array (`parameters.placement.ServerLayout`), so an
update is one pass over one array however many variables there are, and a gradient is received in the form in
which it is applied. Sparse variables are tables (`parameters.table`), each by itself.

A change of the optimizer or of values holds from one version on: rule *Configuration changes*
(docs/design/protocol.md#configuration-changes).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from dtrain.errors import InputError
from dtrain.learning import optimizers
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.parameters.compression import CompressedValues, Compression
from dtrain.parameters.placement import ServerLayout
from dtrain.parameters.table import VALUES, Table
from dtrain.parameters.versions import BufferAllocator, CopyOnWriteSnapshot, VersionedBuffers
from dtrain.types import Array

Values = Sequence[np.ndarray[Any, Any]]


class Change(msgspec.Struct, frozen=True):
    """An order of the leader, as far as it concerns a server's memory.

    Attributes:
        version: the first one for which it holds.
        optimizer: the rule, with the numbers from then on.
        values: `[group or table]`, each flat in its own dtype: all elements of each group, then all rows of
            each table, or an empty array for a table that keeps its rows. Empty: all values stay. The store
            owns the arrays.
        number: of the order that the values came with.
    """

    version: int
    optimizer: dict[str, Any]
    values: Values = ()
    number: tuple[int, int] = (0, 0)


def laid_over(values: Values, earlier: Values) -> Values:
    """Return the values of an order on top of those of the one before it, whose arrays fill empty ones."""
    if not (values and earlier):
        return values or earlier
    return [new if new.size else old for new, old in zip(values, earlier, strict=True)]


class Store:
    """Variables and slots of one server, changed by one thread at a time.

    Attributes:
        slots: by slot name `[trainable group]`, flat arrays of the group's size, owned and updated in place.
        assigned: the number of the newest order whose values are in force.
    """

    def __init__(
        self,
        layout: ServerLayout,
        optimizer: dict[str, Any],
        values: Sequence[Array],
        origin: int = 0,
        max_steps: int | None = None,
        allocator: BufferAllocator | None = None,
        compression: Compression | None = None,
        slots: Mapping[str, Sequence[Array]] | None = None,
    ) -> None:
        """Take over initial values, `[group]`, flat; arrays that cannot be written are copied, others than
        the layout's raise an `InputError`. The optimizer began at `origin` and completes its work at
        `max_steps`. Slots, by name `[trainable group]`, are new ones by default.
        """
        self.layout = layout
        self.origin = origin
        self.max_steps = max_steps
        self.groups = layout.groups
        self._kinds = [(np.dtype(group.dtype), group.size) for group in self.groups]
        self.trainable = [index for index, group in enumerate(self.groups) if group.trainable]
        self.optimizer = optimizers.from_config(optimizer)
        if reason := _mismatch(values, self._kinds):
            raise InputError(reason)
        allocator = allocator or BufferAllocator()
        self._versions = VersionedBuffers(values, allocator)
        self._compression = compression
        self._compressed = None if compression is None else CompressedValues(compression, layout, allocator)
        names = self.optimizer.initial_slots(np.zeros(0))  # names also where a server has nothing to train
        if slots is None:
            fresh = [self.optimizer.initial_slots(self.values[index]) for index in self.trainable]
            slots = {name: [each[name] for each in fresh] for name in names}
        self.slots = {name: list(slots[name]) for name in names}
        self._changes: list[Change] = []
        self.assigned = (0, 0)
        self._snapshots: list[CopyOnWriteSnapshot] = []
        self.tables = [Table(shard, self.optimizer) for shard in layout.tables]
        self._trained_tables = [table for table in self.tables if table.shard.trainable]

    @property
    def values(self) -> list[Array]:
        """The newest version: `[group]`, flat arrays of the layout's dtypes and sizes, owned by `allocator`.

        They are read-only for callers: a later version may overwrite them once they are not read.
        """
        return self._versions.newest

    def shown(self, version: int, whole: bool = False) -> list[Array]:
        """Return the newest values for replicas, compressed if so configured, unless `whole` or the last."""
        if self._compressed is None or whole or (self.max_steps is not None and version >= self.max_steps):
            return self.values
        return self._compressed.of(self._versions)

    def disconnected(self, reading: Sequence[Array]) -> None:
        self._versions.disconnected(reading)
        if self._compressed is not None:
            self._compressed.disconnected(reading)

    def restore_slots(self, names: Sequence[str], blocks: Sequence[Array]) -> None:
        """Take over a checkpoint's slots, `[trainable group]` for each name; read-only arrays are copied."""
        if set(names) != set(self.slots) or _mismatch(
            blocks, [self._kinds[index] for index in self.trainable] * len(names)
        ):
            raise InputError(
                f"expected the optimizer's slots {sorted(self.slots)}, one block for each trainable group; "
                f"found {sorted(names)} in {len(blocks)} blocks"
            )
        remaining = iter(blocks)
        for name in names:
            for position in range(len(self.trainable)):
                block = next(remaining)
                if block.flags.writeable:
                    self.slots[name][position] = block
                else:
                    self.slots[name][position][...] = block

    @property
    def optimizer_config(self) -> dict[str, Any]:
        return optimizers.serialize(self.optimizer)

    def change(self, change: Change, reached: int) -> None:
        """Apply other numbers, or other values, from a version on; `reached` is the newest."""
        names = optimizers.from_config(change.optimizer).initial_slots(np.zeros(0))
        if set(names) != set(self.slots):
            raise InputError(
                f"a change of the optimizer during training: expected the slots {sorted(self.slots)}, found "
                f"{sorted(names)}; change its numbers, not its kind"
            )
        if change.values and (reason := self._change_mismatch(change.values)):
            raise InputError(reason)
        # An order repeats everything but the values of the one before, so it replaces those that would
        # come later.
        for earlier in self._changes:
            if earlier.version == change.version and earlier.values:
                number = change.number if change.values else earlier.number
                change = replace(change, values=laid_over(change.values, earlier.values), number=number)
        self._changes = [earlier for earlier in self._changes if earlier.version < change.version] + [change]
        self._take_effect(reached)

    @property
    def heard_assigned(self) -> tuple[int, int]:
        return max([self.assigned, *(change.number for change in self._changes if change.values)])

    def _take_effect(self, version: int) -> None:
        while self._changes and self._changes[0].version <= version:
            change = self._changes.pop(0)
            self.optimizer = optimizers.from_config(change.optimizer)
            for table in self.tables:
                table.optimizer = self.optimizer
            if change.values:
                self.assigned = change.number
                self._keep_dense()
                place = self._versions.next_place()
                for value, new in zip(place, change.values, strict=False):
                    value[...] = new
                self._versions.publish(place)
                for table, rows in zip(self.tables, change.values[len(place) :], strict=True):
                    if rows.size:
                        table.assign(rows)

    def end_at(self, step: int, reached: int) -> None:
        self.max_steps = step
        if reached >= step:
            self._keep_dense()
            values = self.values
            place = self._versions.next_place()
            for value, new in zip(values, place, strict=True):
                new[...] = value
            for position, index in enumerate(self.trainable):
                self.optimizer.finalize(place[index], self._slots_of(position))
            for table in self._trained_tables:
                table.finalize()
            self._versions.publish(place)

    def slot_views(self, slot: str) -> dict[str, Array]:
        views: dict[str, Array] = {}
        for index, flat in zip(self.trainable, self.slots[slot], strict=True):
            views |= self.groups[index].views(flat)
        return views

    def all_slots(self) -> dict[str, dict[str, Array]]:
        """Return every slot of every trainable shard, tables included: by slot, then by the shard's name."""
        tables = {
            slot: {table.shard.name: table.slots[slot] for table in self._trained_tables}
            for slot in self.slots
        }
        return {slot: {**self.slot_views(slot), **tables[slot]} for slot in self.slots}

    def _change_mismatch(self, blocks: Sequence[Array]) -> str | None:
        groups = blocks[: len(self.groups)]
        rows = blocks[len(self.groups) :]
        sizes = [(table.values.dtype, table.values.size) for table in self.tables]
        fits = [
            block.size == 0 or (block.dtype, block.size) == size
            for block, size in zip(rows, sizes, strict=False)
        ]
        if len(rows) != len(sizes) or not all(fits):
            return (
                f"expected rows of {len(sizes)} tables: all or none; found blocks of "
                f"{[block.size for block in rows]} elements"
            )
        return _mismatch(groups, self._kinds)

    @cached_property
    def nbytes(self) -> int:
        arrays = [*self.values, *(array for arrays in self.slots.values() for array in arrays)]
        return sum(array.nbytes for array in arrays) + sum(table.nbytes for table in self.tables)

    def table(self, number: int) -> Table:
        if not 0 <= number < len(self.tables):
            raise InputError(f"expected the number of a table below {len(self.tables)}, found {number}")
        return self.tables[number]

    @property
    def trained_tables(self) -> dict[int, Array]:
        return {number: table.values for number, table in enumerate(self.tables) if table.shard.trainable}

    def look_up(self, tables: Sequence[int], ids: Sequence[Array]) -> list[Array]:
        return [self.table(table).look_up(listed) for table, listed in zip(tables, ids, strict=True)]

    def compressed_rows(self, tables: Sequence[int], rows: Sequence[Array]) -> list[Array]:
        compression = self._compression
        shards = [self.tables[table].shard for table in tables]
        if compression is None:
            return list(rows)
        return [
            compression.half.narrow(each) if compression.applies_to(shard) else each
            for shard, each in zip(shards, rows, strict=True)
        ]

    def received(self, blocks: Sequence[Array]) -> Sequence[Array]:
        """Return a push's blocks (groups; ids and rows of trainable tables), or raise an `InputError`."""
        blocks = blocks if self._compression is None else self._compression.restore_push(self.layout, blocks)
        groups = len(self.groups)
        tables = len(self._trained_tables)
        if len(blocks) != groups + 2 * tables:
            raise InputError(
                f"expected {groups} blocks and 2 for each of {tables} tables, found {len(blocks)}"
            )
        reason = _mismatch(blocks[:groups], self._kinds)
        for table, ids, rows in self._listed(blocks):
            reason = reason or table.mismatch(ids, rows)
        if reason:
            raise InputError(reason)
        return blocks

    def apply(self, gradients: Sequence[Array], step: int, rate_scale: float = 1.0) -> None:
        """Apply one optimizer update: gradients of trainable groups, new values of others, rows of tables.

        The next version is written beside the newest one while that one is read, else in its place; slots and
        tables in theirs.

        Args:
            gradients: flat, in the order of the groups; then row numbers and rows of each trainable table.
            step: the version that is updated.
            rate_scale: factor on the learning rate (staleness).
        """
        dense = gradients[: len(self.groups)]
        rows = {
            table.shard.name: table.gradient(ids, values) for table, ids, values in self._listed(gradients)
        }
        if rows or not self.optimizer.elementwise:
            dense = self._clip(dense, rows)
        self._keep_dense()
        position = 0
        place = self._versions.next_place()
        for index, (value, new, gradient) in enumerate(zip(self.values, place, dense, strict=True)):
            if self.groups[index].trainable:
                slots = self._slots_of(position)
                self.optimizer.update(
                    value, gradient, slots, step - self.origin, rate_scale=rate_scale, out=new
                )
                if step + 1 == self.max_steps:
                    self.optimizer.finalize(new, slots)
                position += 1
            else:
                new[...] = gradient
        for table in self._trained_tables:
            table.update(rows[table.shard.name], step - self.origin, rate_scale)
            if step + 1 == self.max_steps:
                table.finalize()
        self._versions.publish(place)
        self._take_effect(step + 1)

    def _slots_of(self, position: int) -> dict[str, Array]:
        """Return the slots of the trainable group with this number, by name."""
        return {name: arrays[position] for name, arrays in self.slots.items()}

    def _listed(self, blocks: Sequence[Array]) -> Iterable[tuple[Table, Array, Array]]:
        tables = self._trained_tables
        first = len(self.groups)
        return zip(tables, blocks[first::2], blocks[first + 1 :: 2], strict=True) if tables else ()

    def _clip(self, gradients: Sequence[Array], rows: dict[str, SparseRows]) -> Sequence[Array]:
        """Limit gradients as whole variables: dense ones in place where they can be written, rows in `rows`.

        Element-wise limits of dense ones are part of the update itself.
        """
        if self.optimizer.elementwise:
            rows.update(
                (name, clipped)
                for name, clipped in self.optimizer.clip(rows).items()
                if isinstance(clipped, SparseRows)
            )
            return gradients
        gradients = [gradient if gradient.flags.writeable else np.array(gradient) for gradient in gradients]
        trained = {shard.name for index in self.trainable for shard in self.groups[index].shards}
        views = {name: view for name, view in self.layout.views(gradients).items() if name in trained}
        for name, clipped in self.optimizer.clip({**views, **rows}).items():
            if isinstance(clipped, SparseRows):
                rows[name] = clipped
            else:
                views[name][...] = clipped
        return gradients

    def mark(self) -> None:
        slots = {index: self._slots_of(position) for position, index in enumerate(self.trainable)}
        self._snapshots = [
            CopyOnWriteSnapshot({VALUES: value, **slots.get(index, {})})
            for index, value in enumerate(self.values)
        ]
        self._snapshots += [table.mark() for table in self.tables]

    def read_snapshot(self, part: int, name: str, start: int, stop: int) -> Array:
        """Return rows of one array at the last `mark`, flat; arguments are those of `SnapshotRows`."""
        if not 0 <= part < len(self._snapshots):
            raise InputError(f"there is no snapshot of part {part}; there are {len(self._snapshots)}")
        return self._snapshots[part].read(name, start, stop).reshape(-1)

    def forget_snapshots(self) -> None:
        self._snapshots = []
        for table in self.tables:
            table.snapshot = None

    def keep_snapshots(self) -> None:
        for snapshot in self._snapshots:
            snapshot.keep_all()

    def _keep_dense(self) -> None:
        for snapshot in self._snapshots[: len(self.groups)]:
            snapshot.keep_all()


def _mismatch(blocks: Sequence[Array], expected: Sequence[tuple[np.dtype[Any], int]]) -> str | None:
    """Return why arrays are not flat arrays of these dtypes and sizes; None if they are."""
    found = [(block.dtype, block.size) for block in blocks]
    if found == expected:
        return None
    # names only here: numpy computes them at every access
    wanted, given = ([(dtype.name, size) for dtype, size in kinds] for kinds in (expected, found))
    return f"expected (dtype, elements) {wanted}, found {given}"
