"""The arena: the memory that all replicas of a host map, and where each thing lies in it.

- the board: the words by which replicas agree (`collectives.board`);
- the variables and the optimizer's slots, of which there is one copy;
- a gradient and the sums of loss and metrics for each part of a batch;
- a place for each slice, where one block lies aside;
- the sums of the epochs that have not ended, with which a round begins, for two rounds in turn;
- where a step does not wait for every replica, the record of how training stands;
- where there are several hosts, the mean over them, what this host has promised to the others, and where each
  replica takes streams;
- in a memory of its own, which takes pages only as they are written, the rows of tables that gradients list.

One process makes the arena and fills the variables and slots; the others receive its file descriptor. Only
the processes of one user can, and none of them can shrink it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Self

import msgspec
import numpy as np

from dtrain.collectives.between_hosts.follower import Vote
from dtrain.collectives.blocks import BLOCK_ELEMENTS, TableInGroup, sizes_without, tables_in
from dtrain.collectives.board import LINE_WORDS, Board, SharedWords, bits, lines
from dtrain.collectives.update import BlockUpdate, nbytes_aside, pieces_in
from dtrain.config.training_section import RANKS_MAX
from dtrain.errors import InputError, PeerRefusedError, SpecError
from dtrain.learning import optimizers
from dtrain.messages import Sums
from dtrain.parameters import placement
from dtrain.parameters.placement import Plan
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.parameters.store import Store
from dtrain.roles.collective.shared_records import (
    FitRecord,
    GivenRows,
    VoteRecord,
    bytes_in,
    nbytes_of,
    put_bytes,
)
from dtrain.state.fit_state import Open
from dtrain.types import Array
from dtrain.wire.one_host.shared_memory import GrowingMemory, SharedMemory

SUMS_BYTES = 64 * 1024
RECORD_BYTES = 256 * 1024
ADDRESS_BYTES = 512
_ALIGNED_BYTES = 64


class ArenaShape(msgspec.Struct, frozen=True):
    """All that decides where things lie; the same in every replica.

    Attributes:
        optimizer: its serialized form, for the names of the slots.
        parts: how many gradients there is room for: N0, as many as a batch has parts; with backups for those
            that come too late, too.
        ranks: how many replicas may ever be members, at most 62.
        several_hosts: whether there is room for a mean over several hosts, and for the rows of all parts.
    """

    plan: Plan
    optimizer: dict[str, Any]
    parts: int
    ranks: int
    sums_nbytes: int = SUMS_BYTES
    block_elements: int = BLOCK_ELEMENTS
    several_hosts: bool = False
    backups: bool = False

    def described(self) -> list[tuple[str, int]]:
        if self.plan.servers != 1 or not 1 <= self.ranks <= RANKS_MAX or self.parts < 1:
            raise SpecError(
                f"replicas of one host: expected a plan for 1 server, 1 to {RANKS_MAX} replicas and at least "
                f"1 part; found {self.plan.servers}, {self.ranks} and {self.parts}"
            )
        groups = self.plan.layout(0).groups
        kinds = [(group.dtype, group.size) for group in groups]
        trained = [(group.dtype, group.size) for group in groups if group.trainable]
        slots = len(self.slots)
        aside = nbytes_aside([group.dtype for group in groups], slots, self.elements)
        board = [("int64", lines(self.ranks, self.parts) * LINE_WORDS)]
        gradients = [(group.dtype, group.size) for group in self.gradient_plan.layout(0).groups] * self.parts
        sums = [("uint8", self.sums_nbytes)] * self.parts
        squares = [("float64", pieces_in(groups))]
        sizes = sizes_without(groups, self.tables)
        means = [(group.dtype, size) for group, size in zip(groups, sizes, strict=True) if group.trainable]
        # A vote has the sums of all parts of two steps.
        record_bytes = RECORD_BYTES + (2 * self.parts * self.sums_nbytes if self.several_hosts else 0)
        return [
            *board,
            *kinds,
            *trained * slots,
            *gradients,
            *[("uint8", aside)] * self.ranks,
            *sums,
            *squares,
            *[("uint8", RECORD_BYTES)] * 2,
            *(means if self.several_hosts else ()),
            *[("uint8", ADDRESS_BYTES)] * (self.ranks if self.several_hosts else 0),
            *[("uint8", record_bytes)] * (2 if self.backups or self.several_hosts else 0),
        ]

    @property
    def tables(self) -> tuple[TableInGroup, ...]:
        return tables_in(self.plan.layout(0).groups, self.plan.by_rows)

    @property
    def trained_tables(self) -> tuple[TableInGroup, ...]:
        return tuple(table for table in self.tables if table.trainable)

    @property
    def rows_nbytes(self) -> int:
        return nbytes_of(self.trained_tables, self.parts * (2 if self.several_hosts else 1))

    @property
    def elements(self) -> int:
        return max([self.block_elements, *(table.width for table in self.tables)])

    @property
    def gradient_plan(self) -> Plan:
        names = {table.name for table in self.tables}
        if not names:
            return self.plan
        return placement.plan([each for each in self.plan.variables if each.name not in names], 1)

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(optimizers.from_config(self.optimizer).initial_slots(np.zeros(0)))

    def starts(self) -> list[int]:
        sizes = [np.dtype(dtype).itemsize * size for dtype, size in self.described()]
        return list(accumulate([nbytes + -nbytes % _ALIGNED_BYTES for nbytes in sizes], initial=0))


class Arena:
    """The memory, as arrays.

    Attributes:
        slots: by name `[trainable group]`, flat.
        squares: of each piece of the gradient, for a limit of its norm.
        means: by trained group up to its tables, the mean over several hosts; none where there is one.
        tables: of which gradients list rows.
        rows: those rows, of each part as it was computed here; over several hosts, behind them, of each part
            as the sum of a step has brought it.
        fd: of the memory, in the process that has made it; to be sent to the others.
    """

    def __init__(
        self,
        shape: ArenaShape,
        data: Array,
        words: SharedWords,
        fd: int = -1,
        rows: GrowingMemory | Array | None = None,
    ) -> None:
        self.shape = shape
        self.fd = fd
        self.rows_fd = rows.fd if isinstance(rows, GrowingMemory) else -1
        self.tables = shape.tables
        tables, row_places = shape.trained_tables, shape.parts * (2 if shape.several_hosts else 1)
        if isinstance(rows, GrowingMemory):
            self.rows = GivenRows(tables, row_places, np.frombuffer(rows, np.uint8), rows.need)
        else:
            own = np.zeros(shape.rows_nbytes, np.uint8) if rows is None else rows
            self.rows = GivenRows(tables, row_places, own, lambda start, stop: None)
        arrays = _cut(shape, data)
        next(arrays)
        self.board = Board(words, shape.ranks, shape.parts)

        def taken(described: Sequence[tuple[str, int]]) -> list[Array]:
            return [next(arrays) for _ in described]

        self.values = ReplicaMemory(shape.plan, taken)
        trained = [group for group in shape.plan.layout(0).groups if group.trainable]
        self.slots: Mapping[str, list[Array]] = {
            name: [next(arrays) for _ in trained] for name in shape.slots
        }
        gradient_plan = shape.gradient_plan
        self.gradients = [ReplicaMemory(gradient_plan, taken) for _ in range(shape.parts)]
        self.aside = [next(arrays) for _ in range(shape.ranks)]
        self._sums = [next(arrays) for _ in range(shape.parts)]
        self.squares = next(arrays)
        self._tallies = [next(arrays), next(arrays)]
        groups = shape.plan.layout(0).groups if shape.several_hosts else []
        self.means = {index: next(arrays) for index, group in enumerate(groups) if group.trainable}
        self._addresses = [next(arrays) for _ in range(shape.ranks if shape.several_hosts else 0)]
        places = list(arrays)
        self.record = FitRecord(self.board.record, places)
        self.vote = VoteRecord(self.board.record, places)

    @classmethod
    def make(cls, shape: ArenaShape) -> Self:
        """Make new memory of zeros. Raises a SharedMemoryError if the limits do not allow it."""
        memory = SharedMemory.make(shape.starts()[-1])
        rows = GrowingMemory.make(shape.rows_nbytes)
        return cls(shape, np.frombuffer(memory, np.uint8), _words(memory, shape), memory.fd, rows)

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
        return cls(shape, np.frombuffer(memory, np.uint8), _words(memory, shape), rows=rows)

    def store(self, optimizer: dict[str, Any], origin: int = 0, max_steps: int | None = None) -> Store:
        layout = self.shape.plan.layout(0)
        return Store(layout, optimizer, self.values.blocks[0], origin, max_steps, slots=self.slots)

    def block_update(self, store: Store) -> BlockUpdate:
        return BlockUpdate(store, self.aside, self.squares, self.shape.elements, self.tables)

    def dense(self, part: int) -> list[Array]:
        memory = self.gradients[part]
        if not self.tables:
            return memory.blocks[0]
        groups = self.shape.plan.layout(0).groups
        kinds = [(group.dtype, group.trainable) for group in groups]
        return [memory.buffers.get(kind, np.empty(0, kind[0])) for kind in kinds]

    def given(self, part: int) -> list[Array]:
        """Return the gradient of a part that was computed here."""
        return [*self.dense(part), *self.rows.blocks(part)]

    def counted(self, part: int) -> list[Array]:
        """Return the gradient of `part`. Over several hosts, dense gradients are here only if the part was
        computed here: `means` has what is made of them.
        """
        behind = self.shape.parts if self.shape.several_hosts else 0
        return [*self.dense(part), *self.rows.blocks(behind + part)]

    def fill(
        self, values: Mapping[str, Array], slots: Mapping[str, Mapping[str, Array]] | None = None
    ) -> None:
        """Set variables by name, and slots by slot and variable; without slots, to new ones."""
        for name, array in self.values.variables.items():
            array[...] = values[name]
        optimizer = optimizers.from_config(self.shape.optimizer)
        groups = [group for group in self.shape.plan.layout(0).groups if group.trainable]
        for position, group in enumerate(groups):
            block = self.values.buffers[group.dtype, True]
            for name, fresh in optimizer.initial_slots(block).items():
                flat = self.slots[name][position]
                flat[...] = fresh
                for shard, offset in zip(group.shards, group.offsets, strict=True):
                    if slots is not None:
                        flat[offset : offset + shard.size] = slots[name][shard.name].reshape(-1)

    def begin(
        self,
        members: Sequence[int],
        version: int = 0,
        tally: Open = (),
        *,
        number: int = 1,
        batches: int = 0,
    ) -> None:
        """Begin the first round at this host."""
        self.put_tally(number, tally)
        self.board.versions[number % 2] = version
        self.board.members[number % 2] = bits(members)
        self.board.batches[number % 2] = batches
        self.board.summed[0] = number - 1

    def vote_first(self, vote: Vote) -> None:
        self.vote.write(vote)
        for seat in vote.successors:
            self.put_address(seat.rank, seat.address)

    def put_address(self, rank: int, address: str) -> None:
        told = address.encode()
        self._addresses[rank][:] = np.frombuffer(told.ljust(ADDRESS_BYTES, b"\0"), np.uint8)

    def address(self, rank: int) -> str:
        return self._addresses[rank].tobytes().rstrip(b"\0").decode(errors="replace")

    def put_sums(self, part: int, sums: Sums | None) -> int:
        """Store the sums of a part; return their length. Raises an InputError if they are too long."""
        if sums is None:
            return 0
        told = msgspec.msgpack.encode(sums)
        if len(told) > self.shape.sums_nbytes:
            raise InputError(
                f"the states of the metrics take {len(told)} bytes; expected at most {self.shape.sums_nbytes}"
            )
        self._sums[part][: len(told)] = np.frombuffer(told, np.uint8)
        return len(told)

    def sums(self, part: int, nbytes: int) -> Sums | None:
        return msgspec.msgpack.decode(self._sums[part][:nbytes].tobytes(), type=Sums) if nbytes else None

    def put_tally(self, number: int, tally: Open) -> None:
        """Store the sums of epochs of round `number`, until the round after it is over."""
        put_bytes(self._tallies[number % 2], msgspec.msgpack.encode(tally))

    def tally(self, number: int) -> Open:
        return msgspec.msgpack.decode(bytes_in(self._tallies[number % 2]), type=Open)


def _words(memory: SharedMemory, shape: ArenaShape) -> SharedWords:
    nbytes = lines(shape.ranks, shape.parts) * LINE_WORDS * 8
    return memoryview(memory)[:nbytes].cast("q")


def _cut(shape: ArenaShape, data: Array) -> Iterator[Array]:
    for (dtype, size), start in zip(shape.described(), shape.starts(), strict=False):
        yield data[start : start + np.dtype(dtype).itemsize * size].view(dtype)
