"""Collective calls among replicas of one host: between steps, and a log of those within a step.

The rule *Calls* (docs/design/collectives.md#calls):

1. Calls are counted; the n-th call of a replica meets the n-th of every other.
2. A call says what it is and where it stands in the program. Every replica reads that of all others before it
   uses an array, so that all of them find a call that differs.
3. Small arrays lie in one of two places by turns: a replica that is in call n + 1 has read those of call n,
   so one wait is enough, and each replica adds up all arrays itself.
4. Large arrays are added up slice by slice, one slice a replica, into a result that all map and none may
   write. It is used again when no replica has it any more.
5. A replica that ends before it has given its arrays ends the call of all others with an error that names it.

Sums are taken in the order of ranks.

The rule *Calls within a step* (docs/design/collectives.md#calls-within-a-step): what a part gives to the
calls of a round stays here until the round is over, so that another replica can compute the part again.
"""

import hashlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple, Self

import msgspec
import numpy as np

from dtrain.collectives.board import LINE_WORDS, Column, count, counted
from dtrain.collectives.step import share
from dtrain.errors import InputError, PeerLostError
from dtrain.parameters.updater import BLOCK_ELEMENTS
from dtrain.roles.collective.rules import Awaited, Waits
from dtrain.types import Array
from dtrain.wire.one_host.shared_memory import GrowingMemory, address
from dtrain.wire.one_host.synchronization import Doorbells

SMALL_BYTES = 32 * 1024
"""Up to this size every replica adds up all arrays itself."""
RESULTS = 8
"""The number of large results that may be in use at a time before they are copied."""
KNOWN = 256
"""The number of different calls that are kept ready."""
_TEXT_BYTES = 32 * 1024
_PLACE_BYTES = SMALL_BYTES + _TEXT_BYTES
_LARGE_BYTES = 4 << 30
_ALIGNED_BYTES = 64
Check = Callable[[Mapping[int, bytes]], None]


class _Given(msgspec.Struct, frozen=True, array_like=True):
    said: bytes
    kinds: list[tuple[str, tuple[int, ...]]]

    def starts(self) -> list[int]:
        sizes = [np.dtype(dtype).itemsize * prod(shape) for dtype, shape in self.kinds]
        return list(accumulate([nbytes + -nbytes % _ALIGNED_BYTES for nbytes in sizes], initial=0))


class _Known:
    """A call, its text and digest, and its arrays by rank and turn."""

    def __init__(self, given: _Given) -> None:
        self.given = given
        self.text = msgspec.msgpack.encode(given)
        self.bytes = np.frombuffer(self.text, np.uint8)
        self.digest = int.from_bytes(hashlib.blake2b(self.text, digest_size=8).digest(), "big") >> 1
        self.nbytes = given.starts()[-1]
        self.views: dict[tuple[int, int], list[Array]] = {}


class CallMemory:
    """The memory of the calls; it takes pages only as arrays need them.

    Attributes:
        called: by rank, the number of its newest call, whose arrays are there.
        done: by rank, the number of the newest call of which it needs no other replica's arrays.
        held: by rank and turn, the large results that it uses, as bits. Two turns, as of small arrays.
    """

    def __init__(self, memory: GrowingMemory, ranks: int) -> None:
        self._memory = memory
        self.ranks = ranks
        self.fd = memory.fd
        header = self._header(ranks)
        memory.need(0, header + 2 * ranks * _PLACE_BYTES)
        words = memoryview(memory)[:header].cast("q")
        self.called, self.done = Column(words, 0, ranks), Column(words, ranks, ranks)
        self.held, self.length, self.digest = (
            Column(words, 2 * ranks * each, 2 * ranks) for each in (1, 2, 3)
        )
        self._needed: dict[int, int] = {}

    @staticmethod
    def _header(ranks: int) -> int:
        return 8 * ranks * LINE_WORDS * 8

    @classmethod
    def _nbytes(cls, ranks: int) -> int:
        return cls._header(ranks) + 2 * ranks * _PLACE_BYTES + (ranks + RESULTS + 1) * _LARGE_BYTES

    @classmethod
    def make(cls, ranks: int) -> Self:
        return cls(GrowingMemory.make(cls._nbytes(ranks)), ranks)

    @classmethod
    def received(cls, fd: int, ranks: int) -> Self:
        return cls(GrowingMemory.received(fd), ranks)

    def small(self, rank: int, count: int) -> int:
        return self._header(self.ranks) + (2 * rank + count % 2) * _PLACE_BYTES

    def large(self, number: int) -> int:
        """Return the place of the large arrays of a rank; beyond the ranks, of a result."""
        return self._header(self.ranks) + 2 * self.ranks * _PLACE_BYTES + number * _LARGE_BYTES

    def need(self, start: int, nbytes: int) -> None:
        if nbytes > _LARGE_BYTES:
            raise InputError(f"arrays of {nbytes} bytes in one call; expected at most {_LARGE_BYTES}")
        if self._needed.get(start, 0) < nbytes:
            self._memory.need(start, start + nbytes)
            self._needed[start] = nbytes

    def bytes_at(self, start: int, nbytes: int) -> Array:
        """Return memory as bytes; the array is the base of every view of it."""
        return np.frombuffer(memoryview(self._memory)[start : start + nbytes], np.uint8)


class Calls:
    """The calls of one replica.

    Attributes:
        members: the ranks that make the same calls, ascending; it changes only between calls, in all of them.
    """

    def __init__(
        self,
        memory: CallMemory,
        doorbells: Doorbells,
        rank: int,
        members: Sequence[int],
        check: Check,
        waits: Waits | None = None,
        *,
        count: int = 0,
    ) -> None:
        """Take part from the next call on.

        Args:
            check: raises the error for calls that do not agree: what each says of itself, by rank.
            count: how many calls the members have made before, of one that comes later.
        """
        self.members = members
        self.count = count
        self._memory = memory
        self._doorbells = doorbells
        self._rank = rank
        self._check = check
        self._waits = waits or Waits()
        self._calls: dict[tuple[bytes, tuple[tuple[str, tuple[int, ...]], ...]], _Known] = {}
        self._results: dict[int, weakref.ref[Array]] = {}
        self._large = self.count

    def places(self, kinds: Sequence[tuple[str, tuple[int, ...]]]) -> list[Array]:
        """Return arrays of these dtypes and shapes that the next call takes without a copy.

        They are to be written and given before any other call; small ones are copied all the same.
        """
        given = _Given(b"", [(np.dtype(dtype).str, shape) for dtype, shape in kinds])
        nbytes = given.starts()[-1]
        if nbytes <= SMALL_BYTES:
            return [np.empty(shape, dtype) for dtype, shape in given.kinds]
        self._await(self._memory.done, "end of the call before", self._large)
        place = self._memory.large(self._rank)
        self._memory.need(place, nbytes)
        return _views(self._memory.bytes_at(place, nbytes), given)

    def exchange(self, said: bytes, arrays: Sequence[Array]) -> list[list[Array]]:
        """Return the arrays of every member, in the order of ranks; shapes may differ.

        Args:
            said: what the call is and where it stands; all must agree by `check`.
            arrays: C-contiguous, of any dtype but object.

        Raises:
            PeerLostError: a member has ended without this call.
            WaitTimeoutError: a member did not make it in time.
        """
        given = self._give(self._known(said, arrays), arrays)
        found = [[np.array(array) for array in each] for each in given]
        self._memory.done[self._rank] = self.count
        self._doorbells.ring()
        return found

    def all_reduce(self, said: bytes, arrays: Sequence[Array], *, mean: bool = False) -> list[Array]:
        """Return the sum, or the mean, of arrays of one shape and dtype in all members.

        Arguments and errors are those of `exchange`. Large results cannot be written: all replicas read the
        same memory.
        """
        known = self._known(said, arrays)
        terms = self._give(known, arrays)
        own, nbytes = known.given, known.nbytes
        if nbytes <= SMALL_BYTES:
            sums = [np.empty(term.shape, term.dtype) for term in terms[0]]
            for position, out in enumerate(sums):
                added_up(out.reshape(-1), [each[position].reshape(-1) for each in terms], mean=mean)
            self._memory.done[self._rank] = self.count
            return sums
        held = 0
        for rank in self.members:
            held |= self._memory.held[2 * rank + self.count % 2]
        # The first result that no member uses, the same in all; RESULTS: there is none, it is copied.
        number = next(number for number in range(RESULTS + 1) if not held >> number & 1)
        place = self._memory.large(self._memory.ranks + number)
        self._memory.need(place, nbytes)
        root = self._memory.bytes_at(place, nbytes)
        sums = _views(root, own)
        slices, mine = len(self.members), list(self.members).index(self._rank)
        for position, out in enumerate(sums):
            part = share(out.size, slices, mine)
            flats = [each[position].reshape(-1) for each in terms]
            for start in range(part.start, part.stop, BLOCK_ELEMENTS):
                block = slice(start, min(start + BLOCK_ELEMENTS, part.stop))
                added_up(out.reshape(-1)[block], [flat[block] for flat in flats], mean=mean)
        self._memory.done[self._rank] = self.count
        self._doorbells.ring()
        self._await(self._memory.done, "sum of its slice")
        if number == RESULTS:
            return [np.array(each) for each in sums]
        root.flags.writeable = False
        self._results[number] = weakref.ref(root)
        return _views(root, own)

    # What a call is made of

    def _known(self, said: bytes, arrays: Sequence[Array]) -> _Known:
        kinds = tuple((each.dtype.str, each.shape) for each in arrays)
        known = self._calls.get((said, kinds))
        if known is None:
            known = _Known(_Given(said, list(kinds)))
            if len(known.text) > _TEXT_BYTES:
                raise InputError(f"a call of {len(arrays)} arrays; expected fewer: put them together")
            if len(self._calls) == KNOWN:
                del self._calls[next(iter(self._calls))]
            self._calls[said, kinds] = known
        return known

    def _give(self, known: _Known, arrays: Sequence[Array]) -> list[list[Array]]:
        """Write this replica's call; return the arrays of all members once all calls agree."""
        memory, rank = self._memory, self._rank
        if known.nbytes > SMALL_BYTES:
            self._await(memory.done, "end of the call before", self._large)
            self._large = self.count + 1
            memory.need(memory.large(rank), known.nbytes)
        self.count += 1
        turn = 2 * rank + self.count % 2
        for array, target in zip(arrays, self._arrays(rank, known), strict=True):
            if array is not target and address(array) != address(target):
                target[...] = array
        if memory.digest[turn] != known.digest:
            memory.bytes_at(memory.small(rank, self.count), len(known.text))[...] = known.bytes
            memory.length[turn] = len(known.text)
            memory.digest[turn] = known.digest
        memory.held[turn] = sum(1 << number for number, ref in self._results.items() if ref() is not None)
        memory.called[rank] = self.count
        self._doorbells.ring()
        self._await(memory.called, "call")
        parity = self.count % 2
        if all(memory.digest[2 * each + parity] == known.digest for each in self.members):
            return [self._arrays(each, known) for each in self.members]
        found = {each: _Known(self._read(each)) for each in self.members}
        self._check({each: call.given.said for each, call in found.items()})
        return [self._arrays(each, call) for each, call in found.items()]

    def _read(self, rank: int) -> _Given:
        length = self._memory.length[2 * rank + self.count % 2]
        text = self._memory.bytes_at(self._memory.small(rank, self.count), length)
        return msgspec.msgpack.decode(text.tobytes(), type=_Given)

    def _arrays(self, rank: int, known: _Known) -> list[Array]:
        key = rank, self.count % 2
        if (views := known.views.get(key)) is None:
            small = self._memory.small(rank, self.count) + _TEXT_BYTES
            place = small if known.nbytes <= SMALL_BYTES else self._memory.large(rank)
            views = known.views[key] = _views(self._memory.bytes_at(place, known.nbytes), known.given)
        return views

    def _await(self, column: Column, what: str, count: int | None = None) -> None:
        count = self.count if count is None else count
        since_s: float | None = None
        while late := [rank for rank in self.members if column[rank] < count]:
            gone = [rank for rank in late if rank in self._doorbells.dead]
            if gone and column[gone[0]] < count:
                raise PeerLostError(
                    f"{self._waits.name_of(gone[0])} has ended in the midst of collective calls: its {what} "
                    f"(number {count}) will not come"
                )
            since_s = self._waits.clock.now() if since_s is None else since_s
            self._waits.wait(self._doorbells, since_s, Awaited(self._waits.name_of, late, f"{what} {count}"))
        if since_s is not None:
            self._waits.waiting(None)


def _views(data: Array, given: _Given) -> list[Array]:
    return [
        data[start : start + np.dtype(dtype).itemsize * prod(shape)].view(dtype).reshape(shape)
        for start, (dtype, shape) in zip(given.starts(), given.kinds, strict=False)
    ]


def added_up(out: Array, terms: Sequence[Array], *, mean: bool = False) -> None:
    """Write the sum of terms, in their order, or its mean."""
    if len(terms) > 1:
        np.add(terms[0], terms[1], out=out)
    else:
        out[...] = terms[0]
    for term in terms[2:]:
        np.add(out, term, out=out)
    if mean:
        np.divide(out, out.dtype.type(len(terms)), out=out, casting="unsafe")


PART_BYTES = 1 << 30
"""A part may give so much to the calls of one step; pages are taken only as they are needed."""
_HEAD_BYTES = 64


class GivenCall(NamedTuple):
    """One call of a part; arrays that were read lie in the memory of all."""

    said: bytes
    arrays: Sequence[Array]


class CallLog:
    """The calls of every part of the newest round.

    One process writes the calls of a part: its owner, then its successor. Those of a part that another host
    computes the replica writes that speaks for this host. A call counts once the word of the part says so.

    Attributes:
        fd: of the memory, to be sent to the others.
    """

    def __init__(self, memory: GrowingMemory, parts: int) -> None:
        self.fd = memory.fd
        self._memory = memory
        head = self._first = self._head(parts)
        memory.need(0, head)
        words = memoryview(memory)[:head].cast("q")
        self._given, self._ended = Column(words, 0, parts), Column(words, parts, parts)
        self._starts: dict[int, tuple[int, list[int]]] = {}

    @staticmethod
    def _head(parts: int) -> int:
        return 2 * parts * LINE_WORDS * 8

    @classmethod
    def make(cls, parts: int) -> Self:
        return cls(GrowingMemory.make(cls._head(parts) + parts * PART_BYTES), parts)

    @classmethod
    def received(cls, fd: int, parts: int) -> Self:
        return cls(GrowingMemory.received(fd), parts)

    def made(self, place: int, of_round: int) -> int:
        return count(self._given[place], of_round)

    def end(self, place: int, of_round: int, examples: int) -> None:
        self._ended[place] = counted(of_round, 1 + bool(examples))

    def has_ended(self, place: int, of_round: int) -> bool:
        return count(self._ended[place], of_round) > 0

    def is_empty(self, place: int, of_round: int) -> bool:
        return count(self._ended[place], of_round) == 1

    def give(self, place: int, of_round: int, call: GivenCall) -> None:
        """Add the next call of the part. Raises an InputError or SharedMemoryError if there is no room."""
        number = self.made(place, of_round)
        start = self._start(place, of_round, number)
        kinds = [(each.dtype.str, each.shape) for each in call.arrays]
        text = msgspec.msgpack.encode((call.said, kinds))
        offsets = _offsets(kinds, len(text))
        if start + offsets[-1] > self._first + (place + 1) * PART_BYTES:
            raise InputError(
                f"the collective calls of a part within one step take more than {PART_BYTES} bytes; expected "
                "fewer or smaller arrays"
            )
        self._memory.need(start, start + offsets[-1])
        self._bytes(start, 8).view(np.int64)[0] = len(text)
        self._bytes(start + _HEAD_BYTES, len(text))[...] = np.frombuffer(text, np.uint8)
        for array, offset in zip(call.arrays, offsets, strict=False):
            place_of = self._bytes(start + offset, array.nbytes)
            place_of.view(array.dtype).reshape(array.shape)[...] = array
        self._given[place] = counted(of_round, number + 1)

    def read(self, place: int, of_round: int, number: int) -> GivenCall:
        start = self._start(place, of_round, number)
        text, kinds = self._described(start)
        return GivenCall(
            text,
            [
                self._bytes(start + offset, np.dtype(dtype).itemsize * prod(shape)).view(dtype).reshape(shape)
                for offset, (dtype, shape) in zip(self._offsets_at(start), kinds, strict=False)
            ],
        )

    def _start(self, place: int, of_round: int, number: int) -> int:
        known = self._starts.get(place)
        if known is None or known[0] != of_round:
            known = self._starts[place] = of_round, [self._first + place * PART_BYTES]
        starts = known[1]
        while len(starts) <= number:
            starts.append(starts[-1] + self._offsets_at(starts[-1])[-1])
        return starts[number]

    def _described(self, start: int) -> tuple[bytes, list[tuple[str, tuple[int, ...]]]]:
        length = int(self._bytes(start, 8).view(np.int64)[0])
        text = self._bytes(start + _HEAD_BYTES, length).tobytes()
        return msgspec.msgpack.decode(text, type=tuple[bytes, list[tuple[str, tuple[int, ...]]]])

    def _offsets_at(self, start: int) -> list[int]:
        length = int(self._bytes(start, 8).view(np.int64)[0])
        return _offsets(self._described(start)[1], length)

    def _bytes(self, start: int, nbytes: int) -> Array:
        return np.frombuffer(memoryview(self._memory)[start : start + nbytes], np.uint8)


def _offsets(kinds: Sequence[tuple[str, tuple[int, ...]]], text_nbytes: int) -> list[int]:
    sizes = [np.dtype(dtype).itemsize * prod(shape) for dtype, shape in kinds]
    first = _HEAD_BYTES + text_nbytes + -text_nbytes % _ALIGNED_BYTES
    return list(accumulate([nbytes + -nbytes % _ALIGNED_BYTES for nbytes in sizes], initial=first))
