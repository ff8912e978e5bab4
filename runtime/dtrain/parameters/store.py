"""The variables of a parameter server's shards in flat arrays, with the optimizer's slots beside them.

All dense shards of one dtype and trainability lie in one array (`parameters.placement.ServerLayout`), so an
update is one pass over one array however many variables there are, and a gradient is received in the form in
which it is applied. Sparse variables are tables (`parameters.table`), each by itself.

A change of the optimizer or of values holds from one version on: rule *Configuration changes*
(docs/design/protocol.md#configuration-changes).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any
from weakref import WeakMethod

import msgspec
import numpy as np
from msgspec.structs import replace

from dtrain.errors import InputError
from dtrain.learning import optimizers
from dtrain.parameters.compression import CompressedValues, Compression
from dtrain.parameters.placement import ServerLayout
from dtrain.parameters.table import VALUES, Table
from dtrain.parameters.updater import (
    BLOCK_ELEMENTS,
    Contributions,
    Parts,
    Run,
    Step,
    Updater,
    finalize,
    run_here,
)
from dtrain.parameters.versions import BufferAllocator, CopyOnWriteSnapshot, VersionedBuffers
from dtrain.types import Array, Blocks

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


class ShownVariables(dict[str, Array]):
    """Variables by name.

    Attributes:
        follower: a method of an object that keeps arrays of this store. When arrays are replaced, it is
            called with the new array for the identity of each old one.
    """

    follower: WeakMethod[Callable[[Mapping[int, Array]], None]] | None = None

    def show(self, arrays: Mapping[str, Array], replaced: Mapping[int, Array]) -> None:
        """Let these arrays stand in the place of those of the same names; `replacing` makes `replaced`."""
        self.update(arrays)
        follow = None if self.follower is None else self.follower()
        if follow is not None:
            follow(replaced)


def replacing(old: Mapping[str, Array], new: Mapping[str, Array]) -> dict[int, Array]:
    """Return what to hand to `ShownVariables.show` with `new` while it has `old`."""
    return {id(array): new[name] for name, array in old.items()}


class Store:
    """Variables and slots of one server, changed by one thread at a time.

    Attributes:
        assigned: the number of the newest order whose values are in force.
        parts: the arrays of each group, then of each table, by name; owned, and updated in place.
        updater: the blocks of the step that is begun.
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
        parts: Parts = (),
    ) -> None:
        """Take over initial values, `[group]`, flat; arrays that cannot be written are copied, others than
        the layout's raise an `InputError`. The optimizer began at `origin` and completes its work at
        `max_steps`. `parts` are arrays for values, slots and tables; by default new ones, of fresh slots.
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
        names = tuple(self.optimizer.initial_slots(np.zeros(0)))
        self.slot_names = names  # also where a server has nothing to train
        self._changes: list[Change] = []
        self.assigned = (0, 0)
        self._snapshots: list[CopyOnWriteSnapshot] = []
        self._dense: Parts = parts[: len(values)] or [self._fresh(each) for each in range(len(values))]
        own: Sequence[dict[str, Array] | None] = parts[len(values) :] or [None] * len(layout.tables)
        self.tables = [Table(shard, names, each) for shard, each in zip(layout.tables, own, strict=True)]
        self._trained_tables = [table for table in self.tables if table.shard.trainable]
        self.parts: Parts = [*self._dense, *(table.arrays for table in self.tables)]
        self._place = self.values
        self.updater = Updater(layout, BLOCK_ELEMENTS)

    def _fresh(self, group: int) -> dict[str, Array]:
        value = self.values[group]
        slots = self.optimizer.initial_slots(value) if self.groups[group].trainable else {}
        return {VALUES: value, **slots}

    @cached_property
    def variables(self) -> ShownVariables:
        """Every shard by name, as views of the newest values: dense ones in their order, then tables."""
        return ShownVariables(self._views(self.parts))

    def _views(self, parts: Parts, array: str = VALUES) -> dict[str, Array]:
        """Return all shards that have such an array, by name."""
        held = [each.get(array) for each in parts]
        views: dict[str, Array] = {}
        for group, flat in zip(self.groups, held, strict=False):
            views |= {} if flat is None else group.views(flat)
        shards = [shard for group in self.groups for shard in group.shards if shard.name in views]
        shards.sort(key=lambda shard: (shard.variable, shard.row_start))
        tables = zip(self.tables, held[len(self.groups) :], strict=True)
        dense = {shard.name: views[shard.name] for shard in shards}
        return {**dense, **{table.shard.name: rows for table, rows in tables if rows is not None}}

    def show_newest(self) -> None:
        """Let `variables` show the newest version, where that lies elsewhere than the one before."""
        self.variables.show(self._views(self.parts), {})

    @property
    def values(self) -> list[Array]:
        """The newest version: `[group]`, flat arrays of the layout's dtypes and sizes, owned by `allocator`.

        They are read-only for callers: a later version may overwrite them once they are not read.
        """
        return self._versions.newest

    def shown(self, version: int, whole: bool = False) -> list[Array]:
        """Return the newest values for replicas, compressed if so configured, unless `whole` or the last."""
        if self._compressed is None or whole or (self.max_steps is not None and version >= self.max_steps):
            return self._versions.newest
        return self._compressed.of(self._versions)

    def disconnected(self, reading: Sequence[Array]) -> None:
        self._versions.disconnected(reading)
        if self._compressed is not None:
            self._compressed.disconnected(reading)

    def fill(self, values: Mapping[str, Any], slots: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Set uncut variables by name, and their slots by slot and variable, by default to new ones.

        Those of tables may be anything that can be sliced by rows.
        """
        tables = {table.shard.name: table for table in self.tables}
        for slot, views in {VALUES: self.variables, **self.all_slots()}.items():
            for name, view in views.items():
                if slot == VALUES:
                    source = values[name]
                elif slots is not None:
                    source = slots[slot][name]
                else:
                    source = self.optimizer.initial_slots(values[name])[slot]
                if name in tables:
                    tables[name].fill(slot, source)
                else:
                    view[...] = source

    def restore_slots(self, names: Sequence[str], blocks: Sequence[Array]) -> None:
        """Take over a checkpoint's slots, `[trainable group]` for each name; read-only arrays are copied."""
        if set(names) != set(self.slot_names) or _mismatch(
            blocks, [self._kinds[index] for index in self.trainable] * len(names)
        ):
            raise InputError(
                f"expected the optimizer's slots {sorted(self.slot_names)}, one block for each trainable "
                f"group; found {sorted(names)} in {len(blocks)} blocks"
            )
        remaining = iter(blocks)
        for name in names:
            for index in self.trainable:
                block = next(remaining)
                if block.flags.writeable:
                    self._dense[index][name] = block
                else:
                    self._dense[index][name][...] = block

    @property
    def optimizer_config(self) -> dict[str, Any]:
        return optimizers.serialize(self.optimizer)

    def change(self, change: Change, reached: int) -> None:
        """Apply other numbers, or other values, from a version on; `reached` is the newest."""
        names = optimizers.from_config(change.optimizer).initial_slots(np.zeros(0))
        if set(names) != set(self.slot_names):
            raise InputError(
                "a change of the optimizer during training: expected the slots "
                f"{sorted(self.slot_names)}, found {sorted(names)}; change its numbers, not its kind"
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
            if change.values:
                self.assigned = change.number
                self._keep_dense()
                place = self._versions.next_place()
                for value, new in zip(place, change.values, strict=False):
                    value[...] = new
                self._publish(place)
                for table, rows in zip(self.tables, change.values[len(place) :], strict=True):
                    if rows.size:
                        table.assign(rows)

    def end_at(self, step: int, reached: int) -> None:
        self.max_steps = step
        if reached >= step:
            self._keep_dense()
            place = self._versions.next_place()
            for value, new in zip(self.values, place, strict=True):
                new[...] = value
            self._publish(place)
            for index in self.trainable:
                finalize(self.optimizer, self._dense[index])
            for table in self._trained_tables if self.optimizer.use_ema else ():
                table.keep(None)
                finalize(self.optimizer, table.arrays)

    def all_slots(self) -> dict[str, dict[str, Array]]:
        """Return every slot of every trainable shard, tables included: by slot, then by the shard's name."""
        return {slot: self._views(self.parts, slot) for slot in self.slot_names}

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
    def elements(self) -> int:
        """The number of elements of all variables."""
        return sum(arrays[VALUES].size for arrays in self.parts)

    @cached_property
    def nbytes(self) -> int:
        return sum(array.nbytes for arrays in self.parts for array in arrays.values())

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
        listed = zip(self._trained_tables, blocks[groups::2], blocks[groups + 1 :: 2], strict=True)
        for table, ids, rows in listed:
            reason = reason or table.mismatch(ids, rows)
        if reason:
            raise InputError(reason)
        return blocks

    def apply(self, gradients: Blocks, step: int, rate_scale: float = 1.0) -> None:
        """Make the version after `step` of one gradient; arguments are those of `Contributions`."""
        self.make(Contributions([gradients], 1, None, step, rate_scale))

    def make(self, given: Contributions, run: Run = run_here) -> None:
        """Make the next version; slots and tables change in place.

        Values are written beside the newest ones while these are read, else in their place.

        Args:
            run: calls a function with each block, in any order, in any thread.
        """
        self._place = self._versions.next_place()
        updater = self.begin(given)
        if updater.limited:
            run(updater.square, updater.pieces)
            updater.limit()
        run(updater.make, updater.blocks)
        self._publish(self._place)
        if self._changes:
            self._take_effect(given.version + 1)

    def begin(self, given: Contributions) -> Updater:
        """Cut the step after `given.version`; what a snapshot remembers stays as it was."""
        version = given.version
        ends = version + 1 == self.max_steps
        step = version - self.origin
        self.updater.begin(Step(given, self.optimizer, step, ends, self.parts, self._next(version)))
        if self._snapshots:
            self._keep_dense()
            listed_only = self.optimizer.touches_listed_rows_only
            for part, ids in self.updater.rows_listed.items():
                self.tables[part - len(self.groups)].keep(ids if listed_only else None)
        return self.updater

    def _next(self, version: int) -> Parts:
        """Return the arrays that the version after this one is written to."""
        if self._place is self._versions.newest:
            return self.parts
        dense = [{**arrays, VALUES: new} for arrays, new in zip(self._dense, self._place, strict=True)]
        return [*dense, *self.parts[len(dense) :]]

    def _publish(self, place: list[Array]) -> None:
        moves = place is not self._versions.newest
        self._versions.publish(place)
        for arrays, value in zip(self._dense, place, strict=True) if moves else ():
            arrays[VALUES] = value

    def mark(self) -> None:
        self._snapshots = [CopyOnWriteSnapshot(arrays) for arrays in self._dense]
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


class TwoSidedStore(Store):
    """A store in memory that several processes write, in which version n lies on side n modulo 2."""

    def __init__(
        self,
        layout: ServerLayout,
        optimizer: dict[str, Any],
        sides: Sequence[Parts],
        origin: int,
        max_steps: int | None,
        updater: Updater,
    ) -> None:
        """Stand at version 0, or another even one; `sides` may have the same arrays of a table."""
        values = [[arrays[VALUES] for arrays in side[: len(layout.groups)]] for side in sides]
        super().__init__(layout, optimizer, values[0], origin, max_steps, parts=sides[0])
        self.updater = updater
        self._sides = sides
        self._side = 0
        self._buffers = [VersionedBuffers(each, BufferAllocator()) for each in values]
        views = [self._views(side) for side in sides]
        self.variables = ShownVariables(views[0])
        self._shown = [(views[side], replacing(views[1 - side], views[side])) for side in (0, 1)]

    def stand_at(self, version: int) -> None:
        """Go to a version that has been made; `values` and `variables` then show it."""
        side = version % 2
        if side == self._side:
            return
        self._side = side
        self.parts = self._sides[side]
        self._versions = self._buffers[side]
        self._dense = self.parts[: len(self.groups)]
        for table, arrays in zip(self.tables, self.parts[len(self.groups) :], strict=True):
            table.arrays = arrays
        self.variables.show(*self._shown[side])

    def _next(self, version: int) -> Parts:
        return self._sides[(version + 1) % 2]

    def begin_beside(self, given: Contributions, side: int) -> Updater:
        """Cut the step after `given.version`, of values on a side that need not be the one shown."""
        ends = given.version + 1 == self.max_steps
        now, new = self._sides[side % 2], self._sides[(side + 1) % 2]
        self.updater.begin(Step(given, self.optimizer, given.version - self.origin, ends, now, new))
        return self.updater

    def assign_beside(self, values: Mapping[str, bytes], side: int, *, ends: bool) -> None:
        """Write the values of a side to the other one, but those that are given; then complete the last
        version, if it `ends` with that. To do so again does no harm.
        """
        now, new = self._sides[side % 2], self._sides[(side + 1) % 2]
        for old, arrays in zip(now, new, strict=True):
            for name, array in arrays.items():
                if array is not old[name]:
                    array[...] = old[name]
        views = self._shown[(side + 1) % 2][0]
        for name, body in values.items():
            views[name][...] = np.frombuffer(body, views[name].dtype).reshape(views[name].shape)
        trainable = [part.trainable for part in self.groups]
        trainable += [table.trainable for table in self.layout.tables]
        for arrays, trained in zip(new, trainable, strict=True) if ends else ():
            if trained:
                finalize(self.optimizer, arrays)


def _mismatch(blocks: Sequence[Array], expected: Sequence[tuple[np.dtype[Any], int]]) -> str | None:
    """Return why arrays are not flat arrays of these dtypes and sizes; None if they are."""
    found = [(block.dtype, block.size) for block in blocks]
    if found == expected:
        return None
    # names only here: numpy computes them at every access
    wanted, given = ([(dtype.name, size) for dtype, size in kinds] for kinds in (expected, found))
    return f"expected (dtype, elements) {wanted}, found {given}"
