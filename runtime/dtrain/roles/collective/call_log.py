"""The collective calls that replicas of one host make while they compute the parts of a step.

The rule *Calls within a step* (docs/design/collectives.md#calls-within-a-step): what a part gives to the
calls of a round stays here until the round is over, so that another replica can compute the part again.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple, Self

import msgspec
import numpy as np

from dtrain.collectives.board import LINE_WORDS, Column, count, counted
from dtrain.errors import InputError
from dtrain.types import Array
from dtrain.wire.one_host.shared_memory import GrowingMemory

PART_BYTES = 1 << 30
"""A part may give so much to the calls of one step; pages are taken only as they are needed."""
_ALIGNED_BYTES = 64
_HEAD_BYTES = 64


class GivenCall(NamedTuple):
    """One call of a part.

    Attributes:
        said: what the call is and where it stands in the program.
        arrays: what the part gives; where they were read they lie in the memory of all.
    """

    said: bytes
    arrays: Sequence[Array]


class CallLog:
    """The calls of every part of the newest round.

    One process writes the calls of a part: its owner, then its heir. Those of a part that another host
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
        self._given, self._ended = Column(words, 0), Column(words, parts)
        self._starts: dict[int, tuple[int, list[int]]] = {}

    @staticmethod
    def _head(parts: int) -> int:
        return 2 * parts * LINE_WORDS * 8

    @classmethod
    def make(cls, parts: int) -> Self:
        """Make new memory for the parts of a batch; raise a `SharedMemoryError` if that cannot be."""
        return cls(GrowingMemory.make(cls._head(parts) + parts * PART_BYTES), parts)

    @classmethod
    def received(cls, fd: int, parts: int) -> Self:
        """Map another process's memory; errors as of `GrowingMemory.received`."""
        return cls(GrowingMemory.received(fd), parts)

    def made(self, place: int, of_round: int) -> int:
        """Return how many calls the part of a place has made in a round."""
        return count(self._given[place], of_round)

    def end(self, place: int, of_round: int, examples: int) -> None:
        """Take note that the part of a place, which another host computes, is complete."""
        self._ended[place] = counted(of_round, 1 + bool(examples))

    def has_ended(self, place: int, of_round: int) -> bool:
        """Return whether the part is complete, at another host."""
        return count(self._ended[place], of_round) > 0

    def is_empty(self, place: int, of_round: int) -> bool:
        """Return whether the part is known to have no examples, at another host."""
        return count(self._ended[place], of_round) == 1

    def give(self, place: int, of_round: int, call: GivenCall) -> None:
        """Add the next call of the part.

        Raises:
            InputError: the calls of one step take too much memory.
            SharedMemoryError: the machine has not that much.
        """
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
        """Return a call of the part, one of those that it has made; the first is number 0."""
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
        """Return where a call lies, one that was made or the next one."""
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
    """Return the offset of each array in its call, and that of the next call."""
    sizes = [np.dtype(dtype).itemsize * prod(shape) for dtype, shape in kinds]
    first = _HEAD_BYTES + text_nbytes + -text_nbytes % _ALIGNED_BYTES
    return list(accumulate([nbytes + -nbytes % _ALIGNED_BYTES for nbytes in sizes], initial=first))
