"""Who computes which batch, so that an epoch misses no example and sees none twice while nobody fails.

    1. Batch k of the stream belongs to lane k mod T, and lane r to the replica of rank r. While all keep step everybody works on
       its own lane: who computes what is then the same in every run.
    2. A replica that is more than `slack` batches ahead of another lane, or at the end of its own, takes that lane's next one:
       what a slow or lost replica does not get to is done by the others. One that has joined has no lane of its own and takes
       the oldest batch.
    3. A batch that was given to a replica that is lost before its push arrived is given to whoever asks next.
    4. A batch is done when its gradient was judged: applied, refused, or stale; where stale ones are to be retried, it is
       given to the same replica again.

So with failures only batches are computed twice whose first gradient had not been applied when its replica was lost. Every
server keeps one; what ps:0's says is done.
"""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

Dealt = tuple[tuple[int, ...], tuple[int, ...]]
"""What a checkpoint keeps: the next batch of every lane; the batches before those that are still to be done."""


@dataclass
class BatchDealer:
    """Deals the batches of one call of `fit`.

    Attributes:
        lanes: the next batch of each; T of them.
        slack: how far, in batches, a replica may be ahead before it helps others.
        end: how many batches there are if none is refused or stale.
        due: batches that came back.
        given: batches that are neither done nor due, with the rank that has them.
        current: by rank, the batch that it is to push next.
        lost: ranks that nobody counts on.
    """

    lanes: list[int]
    slack: int
    end: int
    due: list[int] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)
    current: dict[int, int] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    _by_age: list[tuple[int, int]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._by_age = sorted((batch, lane) for lane, batch in enumerate(self.lanes))

    @classmethod
    def of(cls, replicas: int, quota: int, end: int, dealt: Dealt) -> "BatchDealer":
        """Begin, or go on where a checkpoint stands, with any number of replicas.

        Args:
            replicas: T.
            quota: how many contributions of one replica a version may take.
            end: see above.
            dealt: ``((), ())`` at the beginning.
        """
        lanes, due = list(dealt[0]), list(dealt[1])
        if len(lanes) != replicas:
            start = max(lanes, default=0)
            due += [batch for lane in lanes for batch in range(lane, start, len(lanes))]
            lanes = [start + (rank - start) % replicas for rank in range(replicas)]
        heapq.heapify(due)
        return cls(lanes, (quota + 1) * replicas, end, due)

    def give(self, rank: int) -> int:
        """The batch that a replica is to compute next; the same one until its push has arrived.

        One that is lost may compute the oldest batch if it is alive after all; others will do so too.
        """
        if rank in self.lost:
            return min([*self.due[:1], self._oldest()[0]])
        if rank not in self.current:
            batch = heapq.heappop(self.due) if self.due else self._next(rank)
            self.current[rank], self.given[batch] = batch, rank
        return self.current[rank]

    def _next(self, rank: int) -> int:
        oldest, lane = self._oldest()
        own = self.lanes[rank] if rank < len(self.lanes) else None
        helps = own is None or own > oldest + self.slack or own >= self.end > oldest
        if not helps:
            lane = rank
        batch = self.lanes[lane]
        self.lanes[lane] += len(self.lanes)
        heapq.heappush(self._by_age, (self.lanes[lane], lane))
        return batch

    def _oldest(self) -> tuple[int, int]:
        """Return the oldest of the lanes' next batches, and its lane.

        The heap holds that of every lane; what else is in it was given before, and is dropped when it comes first.
        """
        while self._by_age[0][0] != self.lanes[self._by_age[0][1]]:
            heapq.heappop(self._by_age)
        return self._by_age[0]

    def pushed(self, rank: int, batch: int) -> None:
        """A gradient of the batch has arrived: the replica may be given the next one."""
        if self.current.get(rank) == batch:
            del self.current[rank]

    def done(self, batch: int) -> None:
        """Its gradient was judged for good."""
        self.given.pop(batch, None)

    def repeat(self, batch: int) -> None:
        """Its gradient came too late: the same replica is to compute it again, or another one if it has the next already."""
        if batch in self.given and self.current.setdefault(self.given[batch], batch) != batch:
            self.give_back(batch)

    def lose(self, ranks: Collection[int]) -> None:
        """These replicas are lost, all others are not: what the lost ones have not pushed comes back."""
        self.lost = set(ranks)
        for rank in self.lost & self.current.keys():
            self.give_back(self.current.pop(rank))

    def give_back(self, batch: int) -> None:
        """Whoever had it will not do it."""
        if self.given.pop(batch, None) is not None:
            heapq.heappush(self.due, batch)

    def export(self) -> Dealt:
        """For a checkpoint: whatever is under way counts as not done."""
        return tuple(self.lanes), tuple(sorted([*self.due, *self.given]))


NOTHING_DEALT: Dealt = ((), ())


def dealt_from(data: Sequence[Sequence[int]]) -> Dealt:
    """What a checkpoint's manifest holds, as it was exported."""
    lanes, due = data
    return tuple(lanes), tuple(due)
