"""Runs the steps of one replica where a step does not wait for every replica of the host.

It has the methods of `CollectiveDriver`, and the rules are `collectives.backups`. Whoever is awake decides,
works on slices and ends the step; see docs/design/collectives.md#backups.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from dtrain.collectives.backups import NOBODY, BackupFit, BackupRules
from dtrain.config.choices import NanPolicy, TooFew
from dtrain.errors import NonFiniteGradientError, TooFewReplicasError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import Sums, Verdict
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.parameters.store import TwoSidedStore
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.part_dealer import NO_PART
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.backup_step import (
    SOON_S,
    EpochAccount,
    LateOrders,
    Leadership,
    LockedStep,
    SharedFit,
)
from dtrain.roles.collective.rules import LOOK_S, Awaited, Rules, Waits
from dtrain.types import Array
from dtrain.wire.one_host.synchronization import Doorbells, Locks

PENDING = Outcome(Verdict.PENDING)
FINISHED = Outcome(Verdict.FINISHED)
NO_PLACE = -1


class BackupDriver:
    """One replica; the methods with the same names are those of `CollectiveDriver`."""

    def __init__(
        self,
        arena: Arena,
        doorbells: Doorbells,
        locks: Locks,
        rank: int,
        store: TwoSidedStore,
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
            linked: the ranks to which `doorbells` has an end.
            joins: whether this replica takes part later than others, or in the place of one that has died.
        """
        self.rank = rank
        self.store = store
        self._arena, self._board = arena, arena.board
        self._doorbells, self._locks = doorbells, locks
        self._backups, self._rules = backups, rules
        self._account = account
        self._waits = waits or Waits()
        self._shared = SharedFit(arena, doorbells, locks, rank, account, orders, self._waits, linked)
        self._step = LockedStep(arena, store, self._shared, rank, rules.weighting)
        self._base = self._fit.round
        self._place = NO_PLACE
        self._looks_soon = False
        self.leadership = Leadership(self._shared, rank, self._waits)
        if joins:
            self._shared.surely(self._enter)
        self._shared.sync()

    @property
    def _fit(self) -> BackupFit:
        return self._shared.now

    # The training loop's side

    @property
    def members(self) -> Sequence[int]:
        return sorted(self._fit.members)

    @property
    def dead(self) -> set[int]:
        return self._shared.dead

    @property
    def version(self) -> int:
        return self._fit.version

    @property
    def round(self) -> int:
        return self._fit.round - 1

    @property
    def finished(self) -> bool:
        return self.store.max_steps is not None and self.version >= self.store.max_steps

    @property
    def made_by(self) -> Sequence[int]:
        return self._fit.made_by

    def next_part(self) -> int:
        """Return the part to compute now; NO_PART if there is none, or a step is being made."""
        fit = self._shared.sync()
        self._base, self._place = fit.round, NO_PLACE
        if self.finished or fit.counted is not None:
            return NO_PART
        if not self._open_places(fit) and self._may_give(fit):
            self._shared.surely(self._give)
            fit = self._fit
        open_places = self._open_places(fit)
        if fit.counted is not None or not open_places:
            return NO_PART
        self._base, self._place = fit.round, open_places[0]
        return self._part_in(fit, self._place)

    def place_of(self, part: int) -> int:
        """Return the place of the part that `next_part` returned last."""
        return max(self._place, 0)

    def place_in(self, slot: int) -> int:
        return slot

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

    def look(self) -> None:
        """Learn what others have done, between two steps."""
        self._shared.sync()
        if self.dead:
            self._shared.surely(lambda fit: False)

    def close(self) -> None:
        self._locks.close()
        self._doorbells.close()

    # The leader

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Keep all replicas from making a step; a step that has begun is completed first. Values that the
        leader orders in this context are in the variables when it ends.
        """
        self._shared.wait_for("the step under way", self._rests)
        try:
            yield
            self._shared.store()
        finally:
            self._shared.leave()

    def _rests(self) -> bool:
        fit = self._shared.sync()
        while fit.counted is not None and self._make(fit) is None:
            fit = self._shared.sync()
        return fit.counted is None and self._shared.rests()

    @property
    def cut(self) -> Callable[[], AbstractContextManager[BackupFit | None]]:
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
                fit = self._shared.sync()
                self._raise_if_failed()
                if fit.round > self._base or self.finished:
                    return True
                whom = self._make(fit) if fit.counted is not None else self._gather(fit)
                if whom is None:
                    fit = self._shared.sync()  # for another part of the round, after the one given
                    here = fit.round == self._base and fit.counted is None
                    if here and any(place != self._place for place in self._open_places(fit)):
                        return False
                    continue
                if whom != awaited:
                    awaited, since_s = whom, self._waits.clock.now()
                self._check_enough(fit, since_s)
                self._waits.wait(self._doorbells, since_s, whom, SOON_S if self._looks_soon else LOOK_S)
        finally:
            if awaited is not None:
                self._waits.waiting(None)

    def _gather(self, fit: BackupFit) -> Awaited | None:
        """Decide, or take another part, or name those for whom this replica waits; None: look again."""
        complete = self._shared.complete(fit)
        self._looks_soon = True
        if len(complete) >= self._backups.parts:
            return (
                None if self._shared.alone(self._decide) else self._awaited([self._shared.holder], "decision")
            )
        if self.dead or self._may_give(fit):
            return None if self._shared.alone(self._give) else self._awaited([self._shared.holder], "deal")
        self._looks_soon = self._shared.hears_an_end
        left = {used.rank for place, used in enumerate(fit.places) if used and place not in complete}
        return self._awaited(sorted(left - {self.rank}), "gradient")

    def _make(self, fit: BackupFit) -> Awaited | None:
        """Work on the step that is decided, or name those for whom this replica waits; None: look again."""
        self._step.begin(fit)
        self._looks_soon = True
        if self._step.work():
            self._doorbells.ring()
            return None
        if self._step.open() is None:
            return None if self._shared.alone(self._finish) else self._awaited([self._shared.holder], "end")
        return self._awaited(self._step.busy(), "update of its slice")

    def _check_enough(self, fit: BackupFit, since_s: float) -> None:
        rules, live = self._rules, len(fit.members)
        by_the_dead = sum(self._rank_in(fit, each) not in fit.members for each in self._shared.complete(fit))
        possible = by_the_dead + live * self._backups.quota(live)
        if rules.too_few == TooFew.SHRINK or fit.counted is not None or possible >= self._backups.parts:
            return
        waited_s = self._waits.clock.now() - since_s
        if rules.too_few == TooFew.FAIL or waited_s >= rules.too_few_timeout_s:
            raise TooFewReplicasError(
                f"too few replicas: {self._backups.parts} are needed for version {self.version + 1} and "
                f"{live} are left, for {waited_s:.1f} s (training.too_few: {rules.too_few})"
            )

    def _open_places(self, fit: BackupFit) -> list[int]:
        complete = self._shared.complete(fit)
        return [place for place in fit.places_of(self.rank) if place not in complete]

    def _may_give(self, fit: BackupFit) -> bool:
        return fit.may_give(self.rank, self._backups, self._shared.complete(fit), self.store.max_steps)

    @staticmethod
    def _rank_in(fit: BackupFit, place: int) -> int:
        used = fit.places[place]
        return NOBODY if used is None else used.rank

    @staticmethod
    def _part_in(fit: BackupFit, place: int) -> int:
        used = fit.places[place]
        return NO_PART if used is None else used.part

    # Changes of it

    def _enter(self, fit: BackupFit) -> bool:
        fit.enter(self.rank)
        return True

    def _give(self, fit: BackupFit) -> bool:
        return fit.give(self.rank, self._backups, self._shared.complete(fit), self.store.max_steps)

    def _decide(self, fit: BackupFit) -> bool:
        if fit.counted is not None or self.finished:
            return False
        return fit.decide(self._shared.complete(fit), self._backups)

    def _finish(self, fit: BackupFit) -> bool:
        """End the step unless another replica has ended it, and deal parts to all idle replicas."""
        if fit.round != self._step.round or fit.counted is None:
            return False
        sums = self._step.sums(fit)
        fit.sums = self._account.count(fit.sums, fit.version, sums)
        fit.finish(self._shared.complete(fit), self._backups)
        for rank in sorted(fit.members):
            fit.give(rank, self._backups, (), self.store.max_steps)
        return True

    def _drop(self, part: int, finite: bool, fit: BackupFit) -> bool:
        place = self._place
        if (self._rank_in(fit, place), self._part_in(fit, place)) != (self.rank, part):
            return False
        if fit.round > self._base:
            fit.late(place, self._backups)
        else:
            fit.drop(place)
            if not finite and self._rules.nan_policy == NanPolicy.FAIL:
                fit.failed = self._not_finite(fit.version + 1)
        return True

    def _late(self, part: int, fit: BackupFit) -> bool:
        place = self._place
        if (self._rank_in(fit, place), self._part_in(fit, place)) != (self.rank, part):
            return False
        fit.late(place, self._backups)
        return True

    # What came of a part

    def _deliver(self, examples: int, sums: Sums | None) -> None:
        board, place = self._board, self._place
        board.examples[place] = examples
        board.finite[place] = 1
        board.computed_by[place] = self.rank
        board.sums_nbytes[place] = self._arena.put_sums(place, sums)
        board.ready[place] = self._base
        self._doorbells.ring()

    def _outcome(self, part: int) -> Outcome:
        fit = self._fit
        counted = fit.contributed.get(self.rank, (0, 0))
        if part == NO_PART or counted[0] == self._base:
            return Outcome(Verdict.ACCEPTED, accepted=counted[1] if counted[0] == self._base else 0)
        if self.finished:
            return FINISHED
        used = fit.places[self._place]
        again = used is not None and used.rank == self.rank and used.part == part
        void = again and used is not None and used.void
        if again and (void or not self._backups.retry):
            self._shared.surely(partial(self._late, part))
        return PENDING if void else Outcome(Verdict.STALE, stale=1)

    def _raise_if_failed(self) -> None:
        if self._fit.failed:
            raise NonFiniteGradientError(self._fit.failed)

    def _not_finite(self, step: int) -> str:
        return f"the gradient of {self._waits.name_of(self.rank)} for step {step} holds NaN or infinity"
