"""The dealing of the parts of batches to replicas: who computes which part, and lanes.

The rule *One batch a step* (docs/design/protocol.md#one-batch-a-step), ps:0's part; it keeps the only dealer
of a run:

1. Batch k of the stream is cut into `parts` parts (N0): part p of it has the number k * N0 + p. In
   asynchronous training N0 is 1, so that a part is a batch.
2. A part is dealt to one replica at a time, in the order of the numbers, or by lanes. A replica that asks
   again before it has pushed is given the same part.
3. With `whole` (synchronous training without backups) only parts of one batch are dealt, until the next one
   is begun; a replica of rank r is given the part that is r mod N0 of it, unless another replica has that
   one.
4. A part that is not settled when its replica is lost is dealt again, before any new one.
5. A part is settled when its gradient was judged: applied, refused, or stale and not to be repeated. One
   without examples is settled with its batch.

Source: the cut is `tf.data`'s rebatching.

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
from collections import defaultdict, deque
from collections.abc import Container, Iterator

import msgspec

from dtrain.state.batch_cut import BatchCut, Dealt

LEAD = 16
RESERVED = 2
NONE_WAITS = -1


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


class Lanes(msgspec.Struct):
    """The numbers that wait for their replicas.

    Attributes:
        lanes: L.
        replicas: T.
    """

    lanes: int
    replicas: int
    waiting: int = 0
    _of: dict[int, deque[int]] = msgspec.field(default_factory=dict)
    _lowest: list[int] = msgspec.field(default_factory=list)

    def first_waiting(self) -> int:
        """Return the lowest number that waits; NONE_WAITS if there is none."""
        while self._lowest and self._lowest[0] not in self._of[self._owner(self._lowest[0])]:
            heapq.heappop(self._lowest)
        return self._lowest[0] if self._lowest else NONE_WAITS

    def all_waiting(self) -> list[int]:
        return sorted(number for queue in self._of.values() for number in queue)

    def choose(self, rank: int, following: int, live: Container[int], left: int | None) -> tuple[int, int]:
        """Return the number to deal to a rank, and the first one that was never dealt or passed over then. At
        most `left` may still be dealt, with this one; None: any number.
        """
        own = self._of.get(rank % self.replicas)
        if own:
            return self._remove(own[0]), following
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
        return self._remove(self._to_help_with(lowest, live)), following

    def _to_help_with(self, lowest: int, live: Container[int]) -> int:
        """Return the lowest waiting number that no live replica reads, else the lowest of all."""
        free = []
        for owner, queue in self._of.items():
            place = RESERVED if owner in live else 0
            if len(queue) > place:
                free.append(queue[place])
        return min(free, default=lowest)

    def _remove(self, number: int) -> int:
        self._of[self._owner(number)].remove(number)
        self.waiting -= 1
        return number

    def _owner(self, number: int) -> int:
        return number % self.lanes % self.replicas


NO_PART = -1
NO_RANK = -1


class PartDealer(msgspec.Struct):
    """Deals the parts of one call of `fit`.

    Attributes:
        next: the first number that was never dealt, nor passed over by `lanes`.
        due: parts before it that may be dealt: those of lost replicas, and of a checkpoint.
        given: the rank that has each part that is dealt, or held, and not settled; NO_RANK for those that are
            held.
        current: by rank, the part that the replica is to push next.
        parts_of: by rank, the parts of `given` that it has.
        batch: the one that is dealt (`whole`).
        lanes: which replica is to compute which part; None: they are dealt in the order of their numbers.
    """

    parts: int
    whole: bool = False
    next: int = 0
    due: set[int] = msgspec.field(default_factory=set)
    given: dict[int, int] = msgspec.field(default_factory=dict)
    current: dict[int, int] = msgspec.field(default_factory=dict)
    parts_of: defaultdict[int, set[int]] = msgspec.field(default_factory=lambda: defaultdict(set))
    batch: int = -1
    even: bool = False
    rest: tuple[int, ...] = ()
    lanes: Lanes | None = None
    _queue: list[int] = msgspec.field(default_factory=list)

    @classmethod
    def of(cls, dealt: Dealt, *, whole: bool, lanes: Lanes | None = None) -> "PartDealer":
        """Begin, or go on from a checkpoint's state; with `whole` call `begin_batch` then."""
        parts, following, due, even, rest = dealt
        queue = [] if whole else sorted(due)
        return cls(parts, whole, following, set(due), even=even, rest=rest, lanes=lanes, _queue=queue)

    @property
    def cut(self) -> BatchCut:
        return BatchCut(self.parts, self.even, self.rest)

    def begin_batch(self) -> list[int]:
        """Settle the rest of the batch and begin the next one (`whole`); return its parts to compute."""
        self.end_batch()
        if not self.due:
            self.batch = self.next // self.parts  # a run with backups may have dealt some parts of it
            left = range(self.next, (self.batch + 1) * self.parts)
            self.next = left.stop
            self.due = set(left)
            return list(left)
        self.batch = min(self.due) // self.parts
        return sorted(part for part in self.due if part // self.parts == self.batch)

    def end_batch(self) -> None:
        """Settle the rest of the batch (`whole`), as where the last step has been made."""
        self.given.clear()
        self.current.clear()
        self.parts_of.clear()
        self.due = {part for part in self.due if part // self.parts != self.batch}

    @property
    def settled_below(self) -> int:
        waits = NONE_WAITS if self.lanes is None else self.lanes.first_waiting()
        return min([*self.due, *self.given, *([] if waits == NONE_WAITS else [waits])], default=self.next)

    def give(
        self, rank: int, live: Container[int] = (), *, fresh: bool = True, left: int | None = None
    ) -> int:
        """Return the part that a replica is to compute next; NO_PART if there is none for it now. With
        `whole` the part of its number is reserved for each of the ranks in `live`, as long as it has had
        none of the batch. Without `fresh` only parts are dealt that were dealt before. With `lanes` no
        more than `left` parts are dealt from now on, with this one.
        """
        if rank not in self.current:
            part = self._next_for(rank, live, fresh, left)
            if part == NO_PART:
                return NO_PART
            self.due.discard(part)
            self.current[rank] = part
            self._give_to(rank, part)
        return self.current[rank]

    def _next_for(self, rank: int, live: Container[int], fresh: bool, left: int | None) -> int:
        if self.whole:
            return self._next_of_batch(rank, live)
        while self._queue and self._queue[0] not in self.due:
            heapq.heappop(self._queue)
        if self._queue:
            return self._queue[0]
        if not fresh:
            return NO_PART
        if self.lanes is not None:
            part, self.next = self.lanes.choose(rank, self.next, live, left)
            return part
        self.next += 1
        return self.next - 1

    def _next_of_batch(self, rank: int, live: Container[int]) -> int:
        own = self.batch * self.parts + rank % self.parts
        if own in self.due:
            return own

        def is_free(part: int) -> bool:
            owner = part % self.parts
            may = rank >= self.parts or owner not in live or bool(self.parts_of.get(owner))
            return may and part // self.parts == self.batch

        return min(filter(is_free, self.due), default=NO_PART)

    def resume(self, rank: int, part: int) -> bool:
        """Note that a replica already computes a part, which a dealer before this one has dealt.

        Numbers below it that no replica reports become due.

        Returns:
            Whether the part is still needed.
        """
        if not self.whole and part >= self.next:
            below = range(self.next, part + 1)
            self.due.update(below)
            for each in below:
                heapq.heappush(self._queue, each)
            self.next = below.stop
        if part not in self.due:
            return False
        self.due.discard(part)
        self.current[rank] = part
        self._give_to(rank, part)
        return True

    def pushed(self, rank: int, part: int) -> None:
        if self.current.get(rank) == part:
            del self.current[rank]

    def hold(self, part: int, rank: int = NO_RANK) -> None:
        """Do not deal a part again before it is settled: it is complete, has no examples, or was refused."""
        self._take_back(part)
        self.due.discard(part)
        self._give_to(rank, part)

    def settle(self, part: int) -> None:
        self._take_back(part)
        self.due.discard(part)

    def late(self, part: int, *, again: bool) -> None:
        (self.repeat if again else self.settle)(part)

    def repeat(self, part: int) -> None:
        """Have a late part computed again: by the same replica, or by another if that has one already."""
        owner = self.given.get(part)
        if owner is not None and self.current.setdefault(owner, part) != part:
            self.give_back(part)

    def lose(self, rank: int, complete: Container[int] = ()) -> None:
        """Take back the parts of a replica whose process is lost or replaced, but for complete ones."""
        for part in sorted(self.parts_of[rank]):
            if part not in complete:
                self.give_back(part)

    def give_back(self, part: int) -> None:
        if part in self.given:
            self._take_back(part)
            self.due.add(part)
            if not self.whole:
                heapq.heappush(self._queue, part)

    def export(self) -> Dealt:
        """Return the state for a checkpoint, in which parts under way count as not done."""
        waiting = [] if self.lanes is None else self.lanes.all_waiting()
        due = tuple(sorted([*self.due, *self.given, *waiting]))
        return Dealt(self.parts, self.next, due, self.even, self.rest)

    def _give_to(self, rank: int, part: int) -> None:
        self.given[part] = rank
        self.parts_of[rank].add(part)

    def _take_back(self, part: int) -> None:
        owner = self.given.pop(part, None)
        if owner is not None:
            self.parts_of[owner].discard(part)
            if self.current.get(owner) == part:
                del self.current[owner]
