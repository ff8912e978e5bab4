"""The order of `interleave` as arithmetic: which element of which stream stands at a place.

Streams sit in slots, which take turns: the one in a slot gives up to `block` elements in each turn. One that
gives fewer has ended, and the next stream that was not begun takes its slot at the slot's next turn.
"""

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

PHASES_KEPT = 1024


class _Phase(NamedTuple):
    """Rounds in which the same streams give the same numbers of elements.

    Attributes:
        first_round: in which it begins.
        streams: those that give any, in the order of their slots.
        ends: after how many elements of a round each has given its own.
    """

    first_round: int
    streams: list[int]
    ends: list[int]


class Turns:
    """The places of the elements of streams of known lengths.

    Attributes:
        total: how many elements there are.
    """

    def __init__(self, lengths: Sequence[int], cycle: int, block: int) -> None:
        """Begin.

        Args:
            lengths: of the streams, in the order in which they are begun.
            cycle: how many slots there are.
            block: how many elements a stream gives in a turn.
        """
        self._block = block
        self._lengths = lengths
        self.total = sum(lengths)
        self._ends = np.cumsum(np.array([*lengths, 0], np.int64)) if cycle == 1 else None
        if self._ends is not None:
            return
        # Each stream: its slot, and the rounds of its first and last turn.
        free = [(0, slot) for slot in range(min(cycle, len(lengths)))]
        self._turns: list[tuple[int, int, int]] = []
        for length in lengths:
            first, slot = heapq.heappop(free)
            last = first + length // block
            self._turns.append((slot, first, last))
            heapq.heappush(free, (last + 1, slot))
        rounds = {bound for _, first, last in self._turns for bound in (first, last, last + 1)}
        self._bounds = sorted(rounds)
        self._starts = self._starts_of_phases()
        self._phase = lru_cache(PHASES_KEPT)(self._made_phase)

    def at(self, place: int) -> tuple[int, int]:
        """Return the number of the stream whose element stands at a place, and the element's number in it."""
        if self._ends is not None:
            stream = int(np.searchsorted(self._ends, place, "right"))
            return stream, place - int(self._ends[stream]) + self._lengths[stream]
        number = bisect_right(self._starts, place) - 1
        phase = self._phase(number)
        past, rest = divmod(place - self._starts[number], phase.ends[-1])
        turn = bisect_right(phase.ends, rest)
        stream = phase.streams[turn]
        within = rest - (phase.ends[turn - 1] if turn else 0)
        return stream, (phase.first_round + past - self._turns[stream][1]) * self._block + within

    def _given(self, stream: int, in_round: int) -> int:
        """Return how many elements a stream gives in a round of its turns."""
        return self._block if in_round < self._turns[stream][2] else self._lengths[stream] % self._block

    def _starts_of_phases(self) -> list[int]:
        """Return the place of the first element of each phase."""
        changes = dict.fromkeys(self._bounds, 0)
        for (_, first, last), length in zip(self._turns, self._lengths, strict=True):
            changes[first] += self._block
            changes[last] += length % self._block - self._block
            changes[last + 1] -= length % self._block
        starts, a_round = [0], 0
        for bound, after in zip(self._bounds, self._bounds[1:], strict=False):
            a_round += changes[bound]
            starts.append(starts[-1] + a_round * (after - bound))
        return starts

    def _made_phase(self, number: int) -> _Phase:
        first = self._bounds[number]
        present = sorted(
            (slot, stream)
            for stream, (slot, begins, last) in enumerate(self._turns)
            if begins <= first <= last
        )
        given = [(stream, count) for _, stream in present if (count := self._given(stream, first))]
        ends = np.cumsum([count for _, count in given]).tolist()
        return _Phase(first, [stream for stream, _ in given], ends)
