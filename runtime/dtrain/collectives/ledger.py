"""The leader's record in shared memory, which outlives it: entries by name, of which the newest counts.

The rule *The ledger* (docs/design/collectives.md#the-ledger):

1. One process writes at a time: the leader.
2. Entries of one call come together or not at all: they stand behind all others before one word counts them.
3. A half that is full is left: everything that counts is written into the other half, and the word then names
   that one. A reader that was slower reads again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from dtrain.collectives.board import LINE_WORDS, Words
from dtrain.errors import InputError
from dtrain.types import Array

_END_BITS = 44
"""A half has less than 16 TiB."""
_LENGTH_BYTES = 8
HEAD_BYTES = LINE_WORDS * 8
"""Of the word."""

Batch = list[tuple[str, bytes]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Batch).decode


class Ledger:
    """One process's view.

    Attributes:
        entries: the newest of each name, as of the last `read` or `write`.
        nbytes: of the memory, and so more than entries ever have.
    """

    def __init__(self, data: Array, words: Words, need: Callable[[int, int], None]) -> None:
        """Lay it over memory of zeros, or over one that others use.

        Args:
            data: bytes, of which the first `HEAD_BYTES` are the word's.
            words: those bytes as words.
            need: called before bytes of `data` are written that may not be there yet: from, to.
        """
        self._data = data
        self._words = words
        self._need = need
        self.nbytes = len(data)
        self._half_bytes = (len(data) - HEAD_BYTES) // 2
        self._read = 0
        self.entries: dict[str, bytes] = {}

    def write(self, entries: Mapping[str, bytes]) -> None:
        """Write entries, all or none; an empty one ends its name.

        Raises:
            InputError: there is no room.
        """
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
