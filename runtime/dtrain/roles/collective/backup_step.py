"""A step with backups: how it stands, as one process changes it, and the work once it is decided.

One process at a time changes it: the one that has the lock on it, which the kernel takes back if it dies.

A process locks a slice before it takes it through a phase, from its beginning. So a replica that is stopped
while it waits delays no other one, and the slice of a replica that has died is made by the next.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from dtrain.collectives.backups import NOBODY, BackupFit
from dtrain.collectives.step import Phase, through_phase
from dtrain.config.choices import Weighting
from dtrain.messages import Sums
from dtrain.parameters.store import TwoSidedStore
from dtrain.protocol.membership import LEASE_S
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.round import SliceWork, Stock
from dtrain.roles.collective.rules import Awaited, Orders, Waits
from dtrain.roles.collective.shared_records import FitRecord
from dtrain.wire.one_host.synchronization import Doorbells, Locks

DECISION = 0
"""The lock on the fit's state; the slices of a step have the next numbers."""
LIFE = 1000
"""The lock of rank r on its own life has number LIFE + r; it lasts as long as the process takes part."""
SOON_S = 0.002
"""The pause before a lock of another process is tried again where no doorbell announces its release."""
Change = Callable[[BackupFit], bool]
"""Changes the fit's state, and returns whether it did."""


class LateOrders(Orders, Protocol):
    """The leader's orders, where training does not wait for the leader."""

    @property
    def unwritten(self) -> int:
        """The number of the order whose values may not be written yet; 0: there is none."""


class EpochAccount(Protocol):
    """The sums of epochs, which are bytes in the fit's state, and the variables, as a process knows them."""

    def count(self, sums: bytes, version: int, given: Sequence[Sums]) -> bytes:
        """Return the sums with those of the step that makes `version` + 1."""

    def adopt(self, fit: BackupFit) -> None:
        """Receive a fit's state that is new to this process, and let the store stand at its version."""


class SharedFit:
    """The fit's state, as this process knows it, and who of its members is gone."""

    def __init__(
        self,
        arena: Arena,
        doorbells: Doorbells,
        locks: Locks,
        rank: int,
        account: EpochAccount,
        orders: LateOrders,
        waits: Waits,
        linked: Sequence[int],
    ) -> None:
        self._arena, self._board, self._record = arena, arena.board, arena.record
        self._doorbells, self._locks, self._rank = doorbells, locks, rank
        self._account, self._orders, self._waits = account, orders, waits
        self.now = self._record.read()
        self._linked = {other: self.now.members.get(other, 0) for other in linked}
        account.adopt(self.now)
        self.wait_for("the end of its predecessor", partial(locks.acquire, LIFE + rank))

    def rests(self) -> bool:
        """Take the lock and keep it, if no step is being made; return whether this process has it."""
        if not self.acquire(DECISION):
            return False
        if self.sync().counted is None:
            return True
        self.leave()
        return False

    def store(self) -> None:
        self._tidy(self.now)
        self._write(self.now)

    def acquire(self, number: int) -> bool:
        taken = self._locks.acquire(number)
        if taken:
            self._board.locked_by[number] = self._rank
        return taken

    def give_up(self, number: int) -> None:
        self._locks.release(number)

    @property
    def holder(self) -> int:
        """The rank that has changed the fit's state last, or does."""
        return self._board.locked_by[DECISION]

    @property
    def dead(self) -> set[int]:
        return {rank for rank in self.now.members if self._gone(rank)}

    @property
    def hears_an_end(self) -> bool:
        """Whether a socket of a member has ended whose locks may not be free yet."""
        return any(rank in self.now.members and rank in self._doorbells.dead for rank in self._linked)

    def wait_for(self, what: str, is_there: Callable[[], bool]) -> None:
        """Wait for another process that has a lock. Raises a WaitTimeoutError if it lasts too long."""
        since_s: float | None = None
        while not is_there():
            since_s = self._waits.clock.now() if since_s is None else since_s
            whom = Awaited(self._waits.name_of, [self.holder], what)
            self._waits.wait(self._doorbells, since_s, whom, SOON_S)
        if since_s is not None:
            self._waits.waiting(None)

    def sync(self) -> BackupFit:
        if self._record.has_changed:
            self.now = self._record.read()
            self._account.adopt(self.now)
        if self._doorbells.offered:
            for rank, entered in self.now.members.items():
                is_new = rank != self._rank and self._linked.get(rank) != entered
                if is_new and rank in self._doorbells.offered:
                    self._doorbells.take_up(rank)
                    self._linked[rank] = entered
        self._orders.heed(self.now.version)
        return self.now

    def _gone(self, rank: int) -> bool:
        """Return whether a member's process has ended; a socket may be its predecessor's, or be missing."""
        linked = self._linked.get(rank) == self.now.members.get(rank)
        doubtful = rank in self._doorbells.dead or not linked
        return rank != self._rank and doubtful and self._locks.is_free(LIFE + rank)

    def alone(self, change: Change) -> bool:
        """Change the fit's state unless another process has the lock; return whether this one had it."""
        if not self.acquire(DECISION):
            return False
        try:
            fit = self.sync()
            tidied = self._tidy(fit)
            if change(fit) or tidied:
                self._write(fit)
        finally:
            self.leave()
        return True

    def leave(self) -> None:
        self._locks.release(DECISION)
        self._doorbells.ring()

    def surely(self, change: Change) -> None:
        """Change the fit's state as soon as the lock on it is free."""
        self.wait_for("the record of the fit", partial(self.alone, change))

    def _write(self, fit: BackupFit) -> None:
        self._record.write(fit)
        self._account.adopt(fit)

    def _tidy(self, fit: BackupFit) -> bool:
        """Go on without the dead, and finish what a leader has ordered and may not have written."""
        gone = [rank for rank in fit.members if self._gone(rank)]
        for rank in gone:
            fit.lose(rank, self.complete(fit))
        order = self._orders.unwritten
        if fit.counted is not None or order <= fit.carried:
            return bool(gone)
        self._orders.carry_out()
        fit.carried = order
        fit.void()
        return True

    def complete(self, fit: BackupFit) -> set[int]:
        ready, number = self._board.ready, fit.round
        return {place for place, used in enumerate(fit.places) if used is not None and ready[place] == number}

    # For a checkpoint

    @contextmanager
    def cut(self) -> Iterator[BackupFit | None]:
        """Keep all replicas from making a step, for a thread that does not train; None: try again later."""
        if not self._locks.acquire(DECISION):
            yield None
            return
        try:
            found = FitRecord(self._board.record, self._arena.record.places).read()
            yield found if found.counted is None else None
        finally:
            self._locks.release(DECISION)


class Leadership:
    """Which replica leads, as one of them sees it."""

    def __init__(self, shared: SharedFit, rank: int, waits: Waits) -> None:
        self._shared = shared
        self._rank = rank
        self._clock = waits.clock
        self._vacant_since_s: float | None = None

    @property
    def awaited(self) -> int:
        fit = self._shared.now
        return min(fit.members) if fit.leader == NOBODY else fit.leader

    @property
    def is_due(self) -> bool:
        """Whether the leader has died, and this is the live replica of the lowest rank; or any other, when
        that one has not led for a lease: it is stopped, or busy with a batch.
        """
        if self._shared.now.leader != NOBODY:
            self._vacant_since_s = None
            return False
        now_s = self._clock.now()
        if self._vacant_since_s is None:
            self._vacant_since_s = now_s
        return self._rank == self.awaited or now_s - self._vacant_since_s >= LEASE_S

    def acquire(self) -> bool:
        """Lead, unless another replica does meanwhile; return whether this one does."""

        def lead(fit: BackupFit) -> bool:
            if fit.leader != NOBODY:
                return False
            fit.leader = self._rank
            return True

        self._shared.surely(lead)
        return self._shared.now.leader == self._rank


class LockedStep:
    """The slices of a step, as one process works on them. The lock on slice s has number s + 1."""

    def __init__(
        self,
        arena: Arena,
        store: TwoSidedStore,
        shared: SharedFit,
        rank: int,
        weighting: Weighting,
    ) -> None:
        self._arena = arena
        self._board = arena.board
        self._work = SliceWork(store)
        self._shared = shared
        self._rank = rank
        self._weighting = weighting
        self.round = 0
        self._slices = 0
        self._phases: list[Phase] = []

    def begin(self, fit: BackupFit) -> None:
        """Read which gradients count; they stay as they are until the step is over."""
        counted = fit.counted
        assert counted is not None, "the step is decided"
        if self.round == fit.round:
            return
        self.round = fit.round
        self._slices = min(len(counted), self._arena.shape.ranks)
        given = Stock(self._arena, counted).contributions(self._weighting, fit.version)
        self._phases = [*self._work.begin(given), Phase.UPDATE]

    def sums(self, fit: BackupFit) -> list[Sums]:
        return [part.sums for part in Stock(self._arena, fit.counted or ()).parts if part.sums is not None]

    def open(self) -> tuple[Phase, list[int]] | None:
        """Return the first phase that is not over, and its unfinished slices, this replica's own first."""
        for phase in self._phases:
            column = through_phase(self._board, phase)
            order = [(self._rank + each) % self._slices for each in range(self._slices)]
            left = [number for number in order if column[number] < self.round]
            if left:
                return phase, left
        return None

    def work(self) -> bool:
        """Complete the current phase of one slice that is not locked; return whether there was one."""
        found = self.open()
        if found is None:
            return False
        phase, left = found
        for number in left:
            if self._shared.acquire(number + 1):
                try:
                    self._bring_through(phase, number)
                finally:
                    self._shared.give_up(number + 1)
                return True
        return False

    def busy(self) -> tuple[int, ...]:
        found = self.open()
        return () if found is None else tuple(sorted({self._board.locked_by[each + 1] for each in found[1]}))

    def _bring_through(self, phase: Phase, number: int) -> None:
        """Work on a slice that is locked, unless its phase is over: then the step may be, too."""
        column = through_phase(self._board, phase)
        if column[number] < self.round:
            self._work.work(phase, number, self._slices)
            column[number] = self.round
