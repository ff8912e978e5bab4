"""The rules of steps that do not wait for every replica of a host: who computes what, what makes a version.

The rule *Backups* (docs/design/collectives.md#backups). The state of training lies in the memory of all.
One process at a time changes it, which holds the lock on it; a version is made of the first N0 parts that
are complete. The rules are those of parameter servers (`protocol.sync_round`): dealing is the same dealer's.
"""

from collections.abc import Collection, Iterable, Set

import msgspec

from dtrain.protocol.part_dealer import NO_PART, PartDealer
from dtrain.protocol.sync_round import quota
from dtrain.state.batch_cut import Dealt

NOBODY = -1


class BackupRules(msgspec.Struct, frozen=True):
    """The settings of a call of `fit` with backups; the same in every replica.

    Attributes:
        shrink: whether those that live compute more parts where fewer are left.
        retry: whether a part whose gradient came too late is computed again.
    """

    parts: int
    replicas: int
    shrink: bool = True
    retry: bool = False

    def quota(self, live: int) -> int:
        """Return how many parts of a version one replica may contribute."""
        return quota(self.parts, live if self.shrink and 0 < live < self.replicas else self.replicas)


class GradientSlot(msgspec.Struct, array_like=True, frozen=True):
    """The use of the memory of one gradient.

    Attributes:
        rank: of the replica that writes it; no other replica writes it until this one has finished or died.
        void: whether values were assigned since: what is computed of the part counts for nothing, and it is
            computed again.
    """

    rank: int
    part: int
    void: bool = False


class BackupFit(msgspec.Struct, array_like=True):
    """How one call of `fit` stands.

    Attributes:
        places: by the number of a gradient's memory, the replica that uses it and its part; None: it is free.
        next, due: of the dealer: the first part that was never dealt, and those to be dealt again.
        members: by rank of a live replica, a number that is another one for each process of the rank.
        round: from 1; it grows with each version, and when values are assigned.
        counted: the places of the step that is being made, in the order of their parts; None: gradients are
            computed.
        entered: how many processes have become members.
        carried: the last order of which the values were assigned.
        contributed: by rank, the last round to whose version it contributed, and how many parts.
        made_by: the ranks whose gradients made the newest version, in the order of their parts.
        sums: of the epochs that have not ended, as bytes that only their owner reads.
    """

    places: list[GradientSlot | None]
    next: int = 0
    due: list[int] = msgspec.field(default_factory=list)
    members: dict[int, int] = msgspec.field(default_factory=dict)
    round: int = 1
    version: int = 0
    counted: list[int] | None = None
    leader: int = NOBODY
    entered: int = 0
    carried: int = 0
    contributed: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    made_by: list[int] = msgspec.field(default_factory=list)
    failed: str = ""
    sums: bytes = b""

    # Members

    def enter(self, rank: int) -> None:
        """Let a new process take part as this rank; its predecessor is gone."""
        if rank in self.members:
            self.lose(rank, ())
        self.entered += 1
        self.members[rank] = self.entered

    def lose(self, rank: int, complete: Collection[int]) -> None:
        """Go on without a member whose process is gone; its complete gradients, by place, stay."""
        for place in self.places_of(rank):
            if place not in complete and self.counted is None:
                self._give_back(place)
        del self.members[rank]
        self.leader = NOBODY if self.leader == rank else self.leader

    def places_of(self, rank: int) -> list[int]:
        return [place for place, used in enumerate(self.places) if used is not None and used.rank == rank]

    # Parts

    def may_give(self, rank: int, rules: BackupRules, complete: Collection[int], last: int | None) -> bool:
        """Return whether a rank may be given a part now; `last` is the last version.

        Where a part that came too late is computed again, the last steps wait for it: no part of a pass that
        is never made takes its place.
        """
        own = self.places_of(rank)
        idle = all(place in complete for place in own) and len(own) < rules.quota(len(self.members))
        if not idle or self.counted is not None or None not in self.places:
            return False
        if last is None or (not rules.retry and self.version < last):
            return True
        return bool(self.due) or self._outstanding < (last - self.version) * rules.parts

    def give(self, rank: int, rules: BackupRules, complete: Collection[int], last: int | None) -> bool:
        """Give a rank a place and a part, if it may have one; return whether it got them."""
        if not self.may_give(rank, rules, complete, last):
            return False
        place = self.places.index(None)
        dealer = self._dealer(rules)
        fresh = not rules.retry or last is None or self._outstanding < (last - self.version) * rules.parts
        part = dealer.give(rank, fresh=fresh)
        if part == NO_PART:
            return False
        self.places[place] = GradientSlot(rank, part)
        self.next, self.due = dealer.next, sorted(dealer.due)
        return True

    def late(self, place: int, rules: BackupRules) -> None:
        """Judge a gradient that came too late for the round in which it was computed: it is void."""
        used = self.places[place]
        assert used is not None, "a place that is judged is in use"
        again = rules.retry or used.void
        self.places[place] = GradientSlot(used.rank, used.part) if again else None

    def drop(self, place: int) -> None:
        """Settle a part that makes no version: it has no examples, or its gradient was refused."""
        self.places[place] = None

    @property
    def _outstanding(self) -> int:
        return len(self.due) + sum(used is not None for used in self.places)

    def _dealer(self, rules: BackupRules) -> PartDealer:
        return PartDealer.of(Dealt(rules.parts, self.next, tuple(self.due), even=True), whole=False)

    def _give_back(self, place: int) -> None:
        used = self.places[place]
        assert used is not None, "a place that is given back was in use"
        self.places[place] = None
        self.due = sorted([*self.due, used.part])

    def dealt(self, parts: int) -> Dealt:
        """Return the dealer's state for a checkpoint, in which parts under way count as not done."""
        under_way = [used.part for used in self.places if used is not None]
        return Dealt(parts, self.next, tuple(sorted([*self.due, *under_way])), even=True)

    # Steps

    def decide(self, complete: Iterable[int], rules: BackupRules) -> bool:
        """Choose the gradients of the next version, once there are enough; return whether there are."""
        by_part = sorted(complete, key=lambda place: self.places[place].part)  # type: ignore[union-attr]
        if len(by_part) < rules.parts:
            return False
        self.counted = by_part[: rules.parts]
        return True

    def finish(self, complete: Set[int], rules: BackupRules) -> None:
        """Go on with the version that has been made; what was complete besides came too late."""
        counted = self.counted
        assert counted is not None, "a step that is finished was decided"
        self.counted = None
        ranks = [used.rank for place in counted if (used := self.places[place]) is not None]
        self.made_by = ranks
        for rank in sorted(set(ranks)):
            self.contributed[rank] = self.round, ranks.count(rank)
        for place in counted:
            self.places[place] = None
        for place in sorted(complete - set(counted)):
            self.late(place, rules)
        for place, used in enumerate(self.places):
            if used is not None and used.rank not in self.members:
                self._give_back(place)
        self.version += 1
        self.round += 1

    def void(self) -> None:
        """Go on from the same version with values that were assigned: what is under way is computed again."""
        self.places = [used and GradientSlot(used.rank, used.part, void=True) for used in self.places]
        for place, used in enumerate(self.places):
            if used is not None and used.rank not in self.members:
                self._give_back(place)
        self.round += 1
