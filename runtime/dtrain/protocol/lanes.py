"""Lanes of batches: which replica is expected to compute which number, so that it can read ahead.

In asynchronous training replicas ask for batches at any time. If they were dealt in the order of asking, no
replica would know its next one before it asks. The rule *Lanes* (docs/design/protocol.md#lanes):

1. Number k is in lane k mod L, and lane l belongs to the replica of rank l mod T. L is the number T of
   replicas, and so that of the pipelines of a function, unless a resume has other replicas.
2. A replica is dealt the next number of its own lanes. Numbers of other lanes that are passed over wait for
   their replicas.
3. No replica is more than LEAD rounds ahead of the lowest number that waits: then it helps, first with
   numbers that their own replica has not begun to read (the first RESERVED of it), or whose replica is lost.
4. Numbers that wait are dealt before the last step, or the step at which the leader holds training: when no
   more steps than these are left, no new number is begun.

So each number is dealt once, and other replicas take over the numbers of a lost or slow one.
"""

import heapq
from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

LEAD = 16
RESERVED = 2
NONE_WAITS = -1


def owner_of(number: int, lanes: int, replicas: int) -> int:
    """Return the rank that a number is expected to be dealt to."""
    return number % lanes % replicas


def owned_from(first: int, rank: int, lanes: int, replicas: int) -> Iterator[int]:
    """Yield, without end, the numbers from `first` on that are expected to be dealt to a rank; none where it
    has no lane, as more replicas than lanes leave some.
    """
    own = [lane for lane in range(lanes) if lane % replicas == rank % replicas]
    turn = first // lanes
    while own:
        for lane in own:
            if turn * lanes + lane >= first:
                yield turn * lanes + lane
        turn += 1


@dataclass
class Lanes:
    """The numbers that wait for their replicas.

    Attributes:
        lanes: L.
        replicas: T.
        waiting: how many numbers wait.
    """

    lanes: int
    replicas: int
    waiting: int = 0
    _of: dict[int, deque[int]] = field(default_factory=dict)
    _lowest: list[int] = field(default_factory=list)

    def first_waiting(self) -> int:
        """Return the lowest number that waits; NONE_WAITS if there is none."""
        while self._lowest and self._lowest[0] not in self._of[self._owner(self._lowest[0])]:
            heapq.heappop(self._lowest)
        return self._lowest[0] if self._lowest else NONE_WAITS

    def all_waiting(self) -> list[int]:
        """Return the numbers that wait, ascending."""
        return sorted(number for queue in self._of.values() for number in queue)

    def choose(self, rank: int, following: int, live: Container[int], left: int | None) -> tuple[int, int]:
        """Return the number to deal to a rank, and the first one that was never dealt or passed over then.

        Args:
            rank: of the replica that asks.
            following: the first number that was never dealt or passed over.
            live: the ranks that are not lost.
            left: how many numbers may still be dealt, with this one; None for any number.
        """
        own = self._of.get(rank % self.replicas)
        if own:
            return self._take(own[0]), following
        number = next(owned_from(following, rank % self.replicas, self.lanes, self.replicas))
        lowest = self.first_waiting()
        near = number - (following if lowest == NONE_WAITS else lowest) < LEAD * self.lanes
        if near and (left is None or self.waiting + number - following < left):
            for passed_over in range(following, number):
                self._of.setdefault(self._owner(passed_over), deque()).append(passed_over)
                heapq.heappush(self._lowest, passed_over)
            self.waiting += number - following
            return number, number + 1
        if lowest == NONE_WAITS:
            return following, following + 1
        return self._take(self._to_help_with(lowest, live)), following

    def _to_help_with(self, lowest: int, live: Container[int]) -> int:
        """Return the lowest waiting number that no live replica reads, else the lowest of all."""
        free = []
        for owner, queue in self._of.items():
            place = RESERVED if owner in live else 0
            if len(queue) > place:
                free.append(queue[place])
        return min(free, default=lowest)

    def _take(self, number: int) -> int:
        self._of[self._owner(number)].remove(number)
        self.waiting -= 1
        return number

    def _owner(self, number: int) -> int:
        return owner_of(number, self.lanes, self.replicas)
