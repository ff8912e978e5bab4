"""Records in the memory of all replicas of a host: how a round stands, and rows of tables.

It is written to two places in turn, and a word names the valid one: a reader finds either the old record or
the new one, never a mixture.

There is room for every row of a table, of which pages are taken only as rows are written: what a batch
touches decides how much memory it costs. The rule is that of the rest of a gradient: its part's owner or
successor writes it before the word `ready`, and nobody changes it before the round is over.

Over several hosts there are as many places again, for the rows of all parts of a step: the replica that
speaks for a host writes them before it says that it has the mean, and they stay until the step is applied.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import msgspec
import numpy as np

from dtrain.collectives.all_reduce import ElementRange
from dtrain.collectives.ledger import Column
from dtrain.errors import InputError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages.rounds import HostStanding
from dtrain.parameters.placement import Shard
from dtrain.parameters.table import are_rows
from dtrain.types import Array

_LENGTH_BYTES = 8
_encoder = msgspec.msgpack.Encoder()


def put_bytes(place: Array, told: bytes) -> None:
    """Write bytes behind their length. Raises an InputError if they are too long."""
    if _LENGTH_BYTES + len(told) > place.size:
        raise InputError(
            f"what the replicas of a host keep of a step and of sums of metrics takes {len(told)} bytes; "
            f"expected at most {place.size - _LENGTH_BYTES}: use metrics with smaller states"
        )
    whole = len(told).to_bytes(_LENGTH_BYTES, "little") + told
    place[: len(whole)] = np.frombuffer(whole, np.uint8)


def bytes_in(place: Array) -> bytes:
    length = int.from_bytes(place[:_LENGTH_BYTES].tobytes(), "little")
    return place[_LENGTH_BYTES : _LENGTH_BYTES + length].tobytes()


class StandingRecord:
    """How a round of a training with backups stands, as one process reads and writes it.

    Attributes:
        places: two, for bytes.
    """

    def __init__(self, words: Column, places: Sequence[Array]) -> None:
        self._words = words
        self._decoder = msgspec.msgpack.Decoder(HostStanding)
        self.places = places

    def read(self) -> HostStanding | None:
        """Return the newest one; None: there is none."""
        while (number := self._words[0]) > 0:
            told = bytes_in(self.places[number % 2])
            if self._words[0] == number:
                return self._decoder.decode(told)
        return None

    def write(self, record: HostStanding) -> None:
        """Write a new one, as the member that leads. Raises an InputError if it is too long."""
        number = self._words[0] + 1
        put_bytes(self.places[number % 2], _encoder.encode(record))
        self._words[0] = number


_PAGE_BYTES = 4096
ID_BYTES = 8


def nbytes_of(tables: Sequence[Shard], places: int) -> int:
    """Return the size of so many places of a part's rows; one page at least."""
    return max(_PAGE_BYTES, places * sum(sum(_sizes(table)) for table in tables))


def _sizes(table: Shard) -> tuple[int, int]:
    """Return the bytes of the count and ids, and those of the rows, in whole pages."""
    return _in_pages((1 + table.rows) * ID_BYTES), _in_pages(table.nbytes)


def _in_pages(nbytes: int) -> int:
    return nbytes + -nbytes % _PAGE_BYTES


class GivenRows:
    """The memory of rows, as one process uses it; `tables` are in the order of their lists."""

    def __init__(
        self, tables: Sequence[Shard], places: int, memory: Array, need: Callable[[int, int], None]
    ) -> None:
        """Lay out memory of rows for `places` parts; `need` allocates pages of bytes before a write."""
        self.tables = tables
        self._need = need
        sizes = [size for _ in range(places) for table in tables for size in _sizes(table)]
        self._starts = list(accumulate(sizes, initial=0))
        arrays = [memory[start : start + size] for start, size in zip(self._starts, sizes, strict=False)]
        self._ids = [array.view(np.int64) for array in arrays[::2]]
        dtypes = [table.dtype for _ in range(places) for table in tables]
        self._rows = [array.view(dtype) for array, dtype in zip(arrays[1::2], dtypes, strict=True)]

    def put(self, part: int, rows: Mapping[str, SparseRows]) -> None:
        """Write the rows of a part's gradient. Raises an InputError if a table lists what no gradient may, a
        SharedMemoryError if there is no memory.
        """
        for number, table in enumerate(self.tables):
            given = rows.get(table.name)
            if given is None:
                self.set_length(part, number, 0)
            elif not are_rows(given.ids, table.rows):
                raise InputError(
                    f"the gradient of {table.name}: expected ascending row numbers from 0 to "
                    f"{table.rows - 1}, each once, found others; see SparseRows.summed"
                )
            else:
                self._write(part, number, given.ids, given.rows)

    def _write(self, place: int, number: int, ids: Array, rows: Array) -> None:
        whole = ElementRange(0, len(ids))
        if len(ids):
            self.room_for_ids(place, number, whole)[...] = ids
            self.room_for_rows(place, number, whole)[...] = rows.reshape(-1)
        self.set_length(place, number, len(ids))

    def copy(self, source: int, target: int) -> None:
        for number, (ids, rows) in enumerate(self.lists(source)):
            self._write(target, number, ids, rows)

    # One list, piece by piece

    def room_for_ids(self, place: int, number: int, span: ElementRange) -> Array:
        """Return the memory of some ids of a table's list, and take its pages; see `need`."""
        at = place * len(self.tables) + number
        first = self._starts[2 * at] + ID_BYTES
        self._need(first + span.start * ID_BYTES, first + span.stop * ID_BYTES)
        return self._ids[at][1 + span.start : 1 + span.stop]

    def room_for_rows(self, place: int, number: int, span: ElementRange) -> Array:
        at, table = place * len(self.tables) + number, self.tables[number]
        first = self._starts[2 * at + 1]
        self._need(first + span.start * table.row_nbytes, first + span.stop * table.row_nbytes)
        return self._rows[at][span.start * table.width : span.stop * table.width]

    def set_length(self, place: int, number: int, length: int) -> None:
        """Say how many rows are listed of a table; it may raise SharedMemoryError."""
        at = place * len(self.tables) + number
        self._need(self._starts[2 * at], self._starts[2 * at] + ID_BYTES)
        self._ids[at][0] = length

    # What is there

    def lists(self, place: int) -> list[tuple[Array, Array]]:
        """Return ids and rows (flat) of each table, which are listed at a place."""
        lists = []
        for number, table in enumerate(self.tables, place * len(self.tables)):
            ids = self._ids[number]
            count = int(ids[0])
            lists.append((ids[1 : 1 + count], self._rows[number][: count * table.width]))
        return lists

    def blocks(self, place: int) -> list[Array]:
        return [block for ids, rows in self.lists(place) for block in (ids, rows)]


class NewRows:
    """Memory for new rows of one table, beside it."""

    def __init__(
        self, table: Shard, names: Sequence[str], memory: Array, start: int, need: Callable[[int, int], None]
    ) -> None:
        """Lay it over `memory` from `start` on; `need` is as of `GivenRows`."""
        size = _in_pages(table.nbytes)
        self._starts = [start + number * size for number in range(len(names))]
        self._arrays = {
            name: memory[at : at + table.nbytes].view(table.dtype).reshape(table.rows, table.width)
            for name, at in zip(names, self._starts, strict=True)
        }
        self._row_nbytes = table.row_nbytes
        self._need = need

    @staticmethod
    def nbytes(table: Shard, names: Sequence[str]) -> int:
        return len(names) * _in_pages(table.nbytes)

    def __call__(self, first: int, last: int) -> dict[str, Array]:
        """Return the memory of so many new rows, by name, and take its pages."""
        for start in self._starts:
            self._need(start + first * self._row_nbytes, start + last * self._row_nbytes)
        return {name: array[first:last] for name, array in self._arrays.items()}
