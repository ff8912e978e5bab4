"""Words in shared memory that the replicas of a host read, and the leader's record that outlives it.

The rule *Words*:

1. A word has one writer at a time: the process whose part or slice it is about, then its successor, who
writes
   only after the end of that process is certain.
2. A word only grows, or is written before another word that says that it counts.
3. A word is eight aligned bytes, so that a reader sees it as it was before a write or after it.

Words outlive the process that wrote them, so all survivors read the same.

The rule *The ledger* (docs/design/collectives.md#the-ledger):

1. One process writes at a time: the leader.
2. Entries of one call come together or not at all: they stand behind all others before one word counts them.
3. A half that is full is left: everything that counts is written into the other half, and the word then names
   that one. A reader that was slower reads again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, overload

import msgspec

from dtrain.errors import InputError
from dtrain.types import Array

LINE_WORDS = 8
"""Words of 8 bytes in a cache line of 64 bytes; only the first word of each line is used."""
_COUNT_BITS = 24


class SharedWords(Protocol):
    """Signed 64-bit numbers, `LINE_WORDS` to a line."""

    @overload
    def __getitem__(self, place: int, /) -> int: ...

    @overload
    def __getitem__(self, place: slice, /) -> Iterable[int]: ...

    def __setitem__(self, place: int, number: int, /) -> None:
        """Write a word atomically."""


class Column:
    """The words of one meaning, one for each part, slice or rank."""

    __slots__ = ("_all", "_first", "_words")

    def __init__(self, words: SharedWords, first: int, count: int) -> None:
        self._words = words
        self._first = first
        self._all = slice(first * LINE_WORDS, (first + count) * LINE_WORDS, LINE_WORDS)

    def read(self) -> list[int]:
        """Return a copy of all words, which others may write meanwhile."""
        return list(self._words[self._all])

    def __getitem__(self, number: int) -> int:
        return self._words[(self._first + number) * LINE_WORDS]

    def __setitem__(self, number: int, value: int) -> None:
        self._words[(self._first + number) * LINE_WORDS] = value


def count(word: int, number: int) -> int:
    """Return what a word counts that `counted` made: nothing if it is of another round."""
    of_round, counted = divmod(word, 1 << _COUNT_BITS)
    return counted if of_round == number else 0


def counted(number: int, many: int) -> int:
    return (number << _COUNT_BITS) + many


_END_BITS = 44
"""A half has less than 16 TiB."""
_LENGTH_BYTES = 8
HEAD_BYTES = LINE_WORDS * 8
"""Of the word."""

Batch = list[tuple[str, bytes]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Batch).decode


class Ledger:
    """One process's view, which several of its threads may use.

    Attributes:
        entries: the newest of each name, as of the last `read` or `write`.
    """

    def __init__(
        self,
        data: Array,
        words: SharedWords,
        need: Callable[[int, int], None],
        guard: AbstractContextManager[object] | None = None,
    ) -> None:
        """Lay it over memory of zeros, or over one that others use.

        Args:
            need: called before bytes of `data` are written that may not be there yet: from, to.
            guard: lets one thread of this process in at a time; None: one thread alone uses it.
        """
        self._data = data
        self._words = words
        self._need = need
        self.nbytes = len(data)
        self._half_bytes = (len(data) - HEAD_BYTES) // 2
        self._guard = guard or nullcontext()
        self._read = 0
        self.entries: dict[str, bytes] = {}

    def write(self, entries: Mapping[str, bytes]) -> None:
        """Write entries, all or none; an empty one ends its name. InputError: there is no room."""
        with self._guard:
            self.read()
            self.entries = _laid_over(self.entries, entries.items())
            half, end = divmod(self._read, 1 << _END_BITS)
            batch = _encode(list(entries.items()))
            if end + _LENGTH_BYTES + len(batch) > self._half_bytes:
                half, end = half + 1, 0
                batch = _encode(list(self.entries.items()))
                if _LENGTH_BYTES + len(batch) > self._half_bytes:
                    largest = max(self.entries, key=lambda name: len(self.entries[name]))
                    raise InputError(
                        f"the leader keeps {len(batch)} bytes for the next one, {largest!r} most of them; "
                        f"expected at most {self._half_bytes}: use callbacks that keep less"
                    )
            start = self._start(half) + end
            stop = start + _LENGTH_BYTES + len(batch)
            self._need(start, stop)
            self._data[start:stop] = memoryview(len(batch).to_bytes(_LENGTH_BYTES, "little") + batch)
            self._read = (half << _END_BITS) + end + stop - start
            self._words[0] = self._read

    def read(self) -> dict[str, bytes]:
        """Return the entries that have changed since the last call, by name; an empty one has ended."""
        with self._guard:
            known = self.entries
            while (word := self._words[0]) != self._read:
                half, end = divmod(word, 1 << _END_BITS)
                known_half, known_end = divmod(self._read, 1 << _END_BITS)
                begin = known_end if half == known_half else 0
                start = self._start(half)
                copy = self._data[start + begin : start + end].tobytes()
                if self._words[0] >> _END_BITS != half:
                    continue  # what was copied may have been written over
                found = [entry for batch in _batches(copy) for entry in batch]
                self.entries = _laid_over({} if begin == 0 else self.entries, found)
                self._read = word
            if self.entries is known:
                return {}
            return {
                name: self.entries.get(name, b"")
                for name in {**known, **self.entries}
                if known.get(name) != self.entries.get(name)
            }

    def _start(self, half: int) -> int:
        return HEAD_BYTES + half % 2 * self._half_bytes


def _laid_over(entries: Mapping[str, bytes], newer: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    return {name: body for name, body in {**entries, **dict(newer)}.items() if body}


def _batches(data: bytes) -> Sequence[Batch]:
    found: list[Batch] = []
    place = 0
    while place < len(data):
        stop = place + _LENGTH_BYTES + int.from_bytes(data[place : place + _LENGTH_BYTES], "little")
        found.append(_decode(data[place + _LENGTH_BYTES : stop]))
        place = stop
    return found
