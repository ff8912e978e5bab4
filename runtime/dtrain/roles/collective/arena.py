"""The arena: the memory that all replicas of a host map, and where each thing lies in it.

- the variables and the optimizer's slots on two sides, of which one has the newest version (the rule *Two
  sides*, `parameters.updater`); tables of which a step moves the listed rows alone are there once;
- a gradient for each part of a batch;
- the sums of the epochs that have not ended, with which a round begins, for two rounds in turn;
- where a step does not wait for every replica, the record of how the round stands;
- where there are several hosts, the mean over them;
- the rows of tables that gradients list, and new rows of tables that are there once. They lie in a second
  shared memory, whose pages are allocated when they are first written.

One process makes the arena and fills the variables and slots; the others receive its file descriptor. Only
the processes of one user can, and none of them can shrink it.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Self

import msgspec
import numpy as np

from dtrain.collectives.ledger import LINE_WORDS, Column, SharedWords
from dtrain.errors import PeerRefusedError, SpecError
from dtrain.learning import optimizers
from dtrain.parameters.placement import Group, Plan, ServerLayout, Shard
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.parameters.store import TwoSidedStore
from dtrain.parameters.table import VALUES
from dtrain.parameters.updater import BLOCK_ELEMENTS, Parts, Updater, pieces_in
from dtrain.roles.collective.shared_records import (
    GivenRows,
    NewRows,
    StandingRecord,
    bytes_in,
    nbytes_of,
    put_bytes,
)
from dtrain.state.fit_state import Open
from dtrain.types import Array
from dtrain.wire.one_host.shared_memory import GrowingMemory, SharedMemory

SUMS_BYTES = 64 * 1024
RECORD_BYTES = 256 * 1024
_ALIGNED_BYTES = 64


class ArenaShape(msgspec.Struct, frozen=True):
    """All that decides where things lie; the same in every replica.

    Attributes:
        optimizer: its serialized form, for the names of the slots.
        parts: how many gradients there is room for: N0, as many as a batch has parts; with backups for those
            that come too late, too.
        several_hosts: whether there is room for a mean over several hosts, and for the rows of all parts.
    """

    plan: Plan
    optimizer: dict[str, Any]
    parts: int
    sums_nbytes: int = SUMS_BYTES
    block_elements: int = BLOCK_ELEMENTS
    several_hosts: bool = False
    backups: bool = False

    def described(self) -> list[tuple[str, int]]:
        if self.plan.servers != 1 or self.parts < 1:
            raise SpecError(
                "replicas of one host: expected a plan for 1 server and at least 1 part; found "
                f"{self.plan.servers} and {self.parts}"
            )
        groups = self.layout.groups
        kinds = [(group.dtype, group.size) for group in groups]
        means = [(group.dtype, group.size) for group in groups if group.trainable]
        held = [part for side in self.sides for part in side for _ in self.names(part)]
        return [
            ("int64", LINE_WORDS),
            *((part.dtype, part.size) for part in held),
            *kinds * self.parts,
            ("float64", pieces_in(self.layout)),
            *[("uint8", RECORD_BYTES)] * 2,
            *(means if self.several_hosts else ()),
            # What makes a round has the sums of all its parts.
            *[("uint8", RECORD_BYTES + self.parts * self.sums_nbytes)] * (2 if self.backups else 0),
        ]

    @property
    def layout(self) -> ServerLayout:
        return self.plan.layout(0)

    @property
    def trained_tables(self) -> tuple[Shard, ...]:
        return tuple(table for table in self.layout.tables if table.trainable)

    @property
    def tables_once(self) -> tuple[Shard, ...]:
        """Trained tables of which a step moves the listed rows alone: new ones are written beside them."""
        rule = optimizers.from_config(self.optimizer)
        return self.trained_tables if rule.touches_listed_rows_only else ()

    @property
    def sides(self) -> tuple[Sequence[Group | Shard], Sequence[Group | Shard]]:
        """All groups and tables that have memory on the first side, and on the second one."""
        groups, tables = self.layout.groups, self.layout.tables
        twice = () if self.tables_once else self.trained_tables
        return (*groups, *tables), (*groups, *twice)

    def names(self, part: Group | Shard) -> tuple[str, ...]:
        """Return the names of the arrays that a group or table has."""
        return (VALUES, *self.slots) if part.trainable else (VALUES,)

    @property
    def values_nbytes(self) -> int:
        """The size of all variables."""
        return sum(shard.nbytes for shard in self.plan.shards)

    @property
    def row_places(self) -> int:
        return self.parts * (2 if self.several_hosts else 1)

    @property
    def rows_nbytes(self) -> int:
        given = nbytes_of(self.trained_tables, self.row_places)
        return given + sum(NewRows.nbytes(table, self.names(table)) for table in self.tables_once)

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(optimizers.from_config(self.optimizer).initial_slots(np.zeros(0)))

    def starts(self) -> list[int]:
        sizes = [np.dtype(dtype).itemsize * size for dtype, size in self.described()]
        return list(accumulate([nbytes + -nbytes % _ALIGNED_BYTES for nbytes in sizes], initial=0))


class Arena:
    """The memory, as arrays.

    Attributes:
        sides: the variables and slots of even versions, and of odd ones.
        squares: of each piece of the gradient, for a limit of its norm.
        means: by trained group, the mean over several hosts; none where there is one.
        rows: that gradients list, of each part as it was computed here; over several hosts, behind them, of
            each part as the sum of a step has brought it.
        fd: of the memory, in the process that has made it; to be sent to the others.
    """

    def __init__(
        self,
        shape: ArenaShape,
        data: Array,
        words: SharedWords,
        fd: int = -1,
        rows: GrowingMemory | None = None,
    ) -> None:
        self.shape = shape
        self.fd = fd
        self.rows_fd = rows.fd if isinstance(rows, GrowingMemory) else -1
        if isinstance(rows, GrowingMemory):
            memory, need = np.frombuffer(rows, np.uint8), rows.need
        else:
            memory, need = np.zeros(shape.rows_nbytes, np.uint8), _nothing_needed
        self.rows = GivenRows(shape.trained_tables, shape.row_places, memory, need)
        start = nbytes_of(shape.trained_tables, shape.row_places)
        self._new_rows: dict[str, NewRows] = {}
        for table in shape.tables_once:
            self._new_rows[table.name] = NewRows(table, shape.names(table), memory, start, need)
            start += NewRows.nbytes(table, shape.names(table))
        arrays = _cut(shape, data)
        next(arrays)
        first, second = (
            {part: {name: next(arrays).reshape(_form(part)) for name in shape.names(part)} for part in side}
            for side in shape.sides
        )
        self.sides: Sequence[Parts] = [[*first.values()], [*(first | second).values()]]

        def taken(described: Sequence[tuple[str, int]]) -> list[Array]:
            return [next(arrays) for _ in described]

        self.gradients = [ReplicaMemory(shape.plan, taken) for _ in range(shape.parts)]
        self.squares = next(arrays)
        self._tallies = [next(arrays), next(arrays)]
        groups = shape.layout.groups if shape.several_hosts else []
        self.means = {index: next(arrays) for index, group in enumerate(groups) if group.trainable}
        self.standing = StandingRecord(Column(words, 0, 1), list(arrays))

    @classmethod
    def make(cls, shape: ArenaShape) -> Self:
        """Make new memory of zeros. Raises a SharedMemoryError if the limits do not allow it."""
        memory = SharedMemory.make(shape.starts()[-1])
        rows = GrowingMemory.make(shape.rows_nbytes)
        return cls(shape, np.frombuffer(memory, np.uint8), _words(memory), memory.fd, rows)

    @classmethod
    def received(cls, fd: int, rows_fd: int, shape: ArenaShape) -> Self:
        """Map another process's arena to read and write it; the file descriptors are used up.

        Raises:
            PeerRefusedError: it is not memory of this user and this shape that cannot shrink.
            SharedMemoryError: there is no room to map it.
        """
        rows = GrowingMemory.received(rows_fd)
        memory = SharedMemory.received(fd, writable=True)
        expected = shape.starts()[-1], shape.rows_nbytes
        if (len(memory), len(rows)) != expected:
            raise PeerRefusedError(
                f"the arena of the replicas has {len(memory)} bytes and {len(rows)} for rows of tables; "
                f"expected {expected[0]} and {expected[1]}: do all replicas run the same program?"
            )
        return cls(shape, np.frombuffer(memory, np.uint8), _words(memory), rows=rows)

    def store(
        self, optimizer: dict[str, Any], origin: int = 0, max_steps: int | None = None, version: int = 0
    ) -> TwoSidedStore:
        """Return one process's view of the variables, which stands at `version`."""
        shape = self.shape
        updater = Updater(shape.layout, shape.block_elements, self.squares, self._new_rows)
        store = TwoSidedStore(shape.layout, optimizer, self.sides, origin, max_steps, updater)
        store.stand_at(version)
        return store

    def counted(self, part: int) -> list[Array]:
        """Return the gradient of `part`. Over several hosts, dense gradients are here only if the part was
        computed here: `means` has what is made of them.
        """
        behind = self.shape.parts if self.shape.several_hosts else 0
        return [*self.gradients[part].blocks[0], *self.rows.blocks(behind + part)]

    def arrays(self, version: int) -> list[Array]:
        """Return all arrays of values and slots at a version, flat, in one order for all hosts."""
        arrays = (array for part in self.sides[version % 2] for array in part.values())
        return [array.reshape(-1) for array in arrays if array.size]

    def put_tally(self, number: int, tally: Open) -> None:
        """Store the sums of epochs of round `number`, until the round after it is over."""
        put_bytes(self._tallies[number % 2], msgspec.msgpack.encode((number, tally)))

    def tally(self, number: int) -> Open | None:
        """Return the sums of epochs; None where those of another round are, or are being written."""
        try:
            found = msgspec.msgpack.decode(bytes_in(self._tallies[number % 2]), type=tuple[int, Open])
        except msgspec.DecodeError:
            return None
        return found[1] if found[0] == number else None


def _words(memory: SharedMemory) -> SharedWords:
    return memoryview(memory)[: LINE_WORDS * 8].cast("q")


def _nothing_needed(start: int, stop: int) -> None:
    """Do nothing: memory of one process takes pages by itself."""


def _form(part: Group | Shard) -> tuple[int, ...]:
    return part.shape if isinstance(part, Shard) else (part.size,)


def _cut(shape: ArenaShape, data: Array) -> Iterator[Array]:
    for (dtype, size), start in zip(shape.described(), shape.starts(), strict=False):
        yield data[start : start + np.dtype(dtype).itemsize * size].view(dtype)
