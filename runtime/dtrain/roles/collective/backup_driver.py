"""Runs the steps of one replica where a step does not wait for every replica of the host.

It has the methods of `CollectiveDriver`, and the rules are `collectives.backups`. Whoever is awake decides,
works on slices and ends the step; see docs/design/collectives.md#backups.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from dtrain.collectives.backups import NOBODY, BackupRules, Standing
from dtrain.config.choices import NanPolicy, TooFew
from dtrain.errors import NonFiniteGradientError, TooFewReplicasError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import Sums, Verdict
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.parameters.store import Store
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.part_dealer import NO_PART
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.backup_step import (
    SOON_S,
    EpochAccount,
    LateOrders,
    Leadership,
    LockedStep,
    SharedStanding,
)
from dtrain.roles.collective.rules import LOOK_S, Awaited, Rules, Waits
from dtrain.types import Array
from dtrain.wire.one_host.synchronization import Bells, Locks

PENDING = Outcome(Verdict.PENDING)
FINISHED = Outcome(Verdict.FINISHED)
NO_PLACE = -1


class BackupDriver:
    """One replica; the methods with the same names are those of `CollectiveDriver`."""

    across: None = None
    exchanges = False

    def __init__(
        self,
        arena: Arena,
        bells: Bells,
        locks: Locks,
        rank: int,
        store: Store,
        backups: BackupRules,
        rules: Rules,
        account: EpochAccount,
        orders: LateOrders,
        *,
        linked: Sequence[int],
        joins: bool = False,
        waits: Waits | None = None,
    ) -> None:
        """Take part.

        Args:
            linked: the ranks to which `bells` has an end.
            joins: whether this replica takes part later than others, or in the place of one that has died.
        """
        self.rank = rank
        self.values = arena.values
        self.store = store
        self._arena, self._board = arena, arena.board
        self._bells, self._locks = bells, locks
        self._backups, self._rules = backups, rules
        self._account = account
        self._waits = waits or Waits()
        self._shared = SharedStanding(arena, bells, locks, rank, account, orders, self._waits, linked)
        self._memory = arena.block_update(store)
        self._step = LockedStep(arena, store, self._memory, self._shared, rank, rules.weighting)
        self._base = self._standing.round
        self._place = NO_PLACE
        self._looks_soon = False
        self.leadership = Leadership(self._shared, rank, self._waits)
        if joins:
            self._shared.surely(self._enter)
        self._shared.sync()

    @property
    def _standing(self) -> Standing:
        return self._shared.now

    # The training loop's side

    @property
    def members(self) -> Sequence[int]:
        return sorted(self._standing.members)

    @property
    def dead(self) -> set[int]:
        return self._shared.dead

    @property
    def version(self) -> int:
        return self._standing.version

    @property
    def round(self) -> int:
        return self._standing.round - 1

    @property
    def finished(self) -> bool:
        return self.store.max_steps is not None and self.version >= self.store.max_steps

    @property
    def made_by(self) -> Sequence[int]:
        return self._standing.made_by

    def next_part(self) -> int:
        """Return the part to compute now; NO_PART if there is none, or a step is being made."""
        standing = self._shared.sync()
        self._base, self._place = standing.round, NO_PLACE
        if self.finished or standing.counted is not None:
            return NO_PART
        if not self._open_places(standing) and self._may_give(standing):
            self._shared.surely(self._give)
            standing = self._standing
        open_places = self._open_places(standing)
        if standing.counted is not None or not open_places:
            return NO_PART
        self._base, self._place = standing.round, open_places[0]
        return self._part_in(standing, self._place)

    def place_of(self, part: int) -> int:
        """Return the place of the part that `next_part` returned last."""
        return max(self._place, 0)

    def gradients(self, part: int) -> ReplicaMemory:
        return self._arena.gradients[self.place_of(part)]

    def give_rows(self, part: int, rows: Mapping[str, SparseRows]) -> None:
        self._arena.rows.put(self.place_of(part), rows)

    def given(self, part: int) -> list[Array]:
        return self._arena.given(self.place_of(part))

    def contribute(self, part: int, examples: int, sums: Sums | None, finite: bool) -> Outcome:
        """Contribute a gradient, as `CollectiveDriver.contribute`; stale if the step was made without it."""
        if self.finished:
            return FINISHED
        if part != NO_PART and (not examples or not finite):
            self._shared.surely(partial(self._drop, part, finite))
            self._raise_if_failed()
            return PENDING if finite else Outcome(Verdict.REFUSED, reason=self._not_finite(self.version + 1))
        if part != NO_PART:
            self._deliver(examples, sums)
        if not self._run():
            return PENDING
        return self._outcome(part)

    def look_across(self) -> None:
        self._shared.sync()
        if self.dead:
            self._shared.surely(lambda standing: False)

    def close(self) -> None:
        self._locks.close()
        self._bells.close()

    # The leader

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Keep all replicas from making a step; a step that has begun is completed first. Values that the
        leader orders in this context are in the variables when it ends.
        """
        self._shared.wait_for("the step under way", self._rests)
        try:
            yield
            self._shared.keep()
        finally:
            self._shared.leave()

    def _rests(self) -> bool:
        standing = self._shared.sync()
        while standing.counted is not None and self._make(standing) is None:
            standing = self._shared.sync()
        return standing.counted is None and self._shared.rests()

    @property
    def cut(self) -> Callable[[], AbstractContextManager[Standing | None]]:
        return self._shared.cut

    # Waits

    def _awaited(self, ranks: Sequence[int], what: str) -> Awaited:
        what = f"{what} of step {self.version + 1}"
        return Awaited(self._waits.name_of, ranks, what, "" if ranks else "replicas")

    def _run(self) -> bool:
        """Do what there is to do until the round is over; return False if there is a part to compute."""
        awaited: Awaited | None = None
        since_s = 0.0
        try:
            while True:
                standing = self._shared.sync()
                self._raise_if_failed()
                if standing.round > self._base or self.finished:
                    return True
                whom = self._make(standing) if standing.counted is not None else self._gather(standing)
                if whom is None:
                    standing = self._shared.sync()  # for another part of the round, after the one given
                    here = standing.round == self._base and standing.counted is None
                    if here and any(place != self._place for place in self._open_places(standing)):
                        return False
                    continue
                if whom != awaited:
                    awaited, since_s = whom, self._waits.clock.now()
                self._check_enough(standing, since_s)
                self._waits.look(self._bells, since_s, whom, SOON_S if self._looks_soon else LOOK_S)
        finally:
            if awaited is not None:
                self._waits.waiting(None)

    def _gather(self, standing: Standing) -> Awaited | None:
        """Decide, or take another part, or name those for whom this replica waits; None: look again."""
        complete = self._shared.complete(standing)
        self._looks_soon = True
        if len(complete) >= self._backups.parts:
            return (
                None if self._shared.alone(self._decide) else self._awaited([self._shared.holder], "decision")
            )
        if self.dead or self._may_give(standing):
            return None if self._shared.alone(self._give) else self._awaited([self._shared.holder], "deal")
        self._looks_soon = self._shared.hears_an_end
        left = {used.rank for place, used in enumerate(standing.places) if used and place not in complete}
        return self._awaited(sorted(left - {self.rank}), "gradient")

    def _make(self, standing: Standing) -> Awaited | None:
        """Work on the step that is decided, or name those for whom this replica waits; None: look again."""
        self._step.begin(standing)
        self._looks_soon = True
        if self._step.work():
            self._bells.ring()
            return None
        if self._step.open() is None:
            return None if self._shared.alone(self._finish) else self._awaited([self._shared.holder], "end")
        return self._awaited(self._step.busy(), "update of its slice")

    def _check_enough(self, standing: Standing, since_s: float) -> None:
        rules, live = self._rules, len(standing.members)
        by_the_dead = sum(
            self._rank_in(standing, each) not in standing.members for each in self._shared.complete(standing)
        )
        possible = by_the_dead + live * self._backups.quota(live)
        if rules.too_few == TooFew.SHRINK or standing.counted is not None or possible >= self._backups.parts:
            return
        waited_s = self._waits.clock.now() - since_s
        if rules.too_few == TooFew.FAIL or waited_s >= rules.too_few_timeout_s:
            raise TooFewReplicasError(
                f"too few replicas: {self._backups.parts} are needed for version {self.version + 1} and "
                f"{live} are left, for {waited_s:.1f} s (training.too_few: {rules.too_few})"
            )

    def _open_places(self, standing: Standing) -> list[int]:
        complete = self._shared.complete(standing)
        return [place for place in standing.places_of(self.rank) if place not in complete]

    def _may_give(self, standing: Standing) -> bool:
        return standing.may_give(
            self.rank, self._backups, self._shared.complete(standing), self.store.max_steps
        )

    @staticmethod
    def _rank_in(standing: Standing, place: int) -> int:
        used = standing.places[place]
        return NOBODY if used is None else used.rank

    @staticmethod
    def _part_in(standing: Standing, place: int) -> int:
        used = standing.places[place]
        return NO_PART if used is None else used.part

    # Changes of it

    def _enter(self, standing: Standing) -> bool:
        standing.enter(self.rank)
        return True

    def _give(self, standing: Standing) -> bool:
        return standing.give(self.rank, self._backups, self._shared.complete(standing), self.store.max_steps)

    def _decide(self, standing: Standing) -> bool:
        if standing.counted is not None or self.finished:
            return False
        return standing.decide(self._shared.complete(standing), self._backups)

    def _finish(self, standing: Standing) -> bool:
        """End the step unless another replica has ended it, and deal parts to all idle replicas."""
        if standing.round != self._step.round or standing.counted is None:
            return False
        sums = self._step.sums(standing)
        standing.sums = self._account.count(standing.sums, standing.version, sums)
        standing.finish(self._shared.complete(standing), self._backups)
        for rank in sorted(standing.members):
            standing.give(rank, self._backups, (), self.store.max_steps)
        return True

    def _drop(self, part: int, finite: bool, standing: Standing) -> bool:
        place = self._place
        if (self._rank_in(standing, place), self._part_in(standing, place)) != (self.rank, part):
            return False
        if standing.round > self._base:
            standing.late(place, self._backups)
        else:
            standing.drop(place)
            if not finite and self._rules.nan_policy == NanPolicy.FAIL:
                standing.failed = self._not_finite(standing.version + 1)
        return True

    def _late(self, part: int, standing: Standing) -> bool:
        place = self._place
        if (self._rank_in(standing, place), self._part_in(standing, place)) != (self.rank, part):
            return False
        standing.late(place, self._backups)
        return True

    # What came of a part

    def _deliver(self, examples: int, sums: Sums | None) -> None:
        board, place = self._board, self._place
        board.examples[place] = examples
        board.finite[place] = 1
        board.computed_by[place] = self.rank
        board.sums_nbytes[place] = self._arena.put_sums(place, sums)
        board.ready[place] = self._base
        self._bells.ring()

    def _outcome(self, part: int) -> Outcome:
        standing = self._standing
        counted = standing.contributed.get(self.rank, (0, 0))
        if part == NO_PART or counted[0] == self._base:
            return Outcome(Verdict.ACCEPTED, accepted=counted[1] if counted[0] == self._base else 0)
        if self.finished:
            return FINISHED
        used = standing.places[self._place]
        again = used is not None and used.rank == self.rank and used.part == part
        void = again and used is not None and used.void
        if again and (void or not self._backups.retry):
            self._shared.surely(partial(self._late, part))
        return PENDING if void else Outcome(Verdict.STALE, stale=1)

    def _raise_if_failed(self) -> None:
        if self._standing.failed:
            raise NonFiniteGradientError(self._standing.failed)

    def _not_finite(self, step: int) -> str:
        return f"the gradient of {self._waits.name_of(self.rank)} for step {step} holds NaN or infinity"
