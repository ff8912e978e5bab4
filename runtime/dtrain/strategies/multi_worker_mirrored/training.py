"""One call of `fit` in one of the tasks whose replicas reduce among themselves."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from dtrain.config import MultiWorkerMirroredSection
from dtrain.config.choices import Weighting
from dtrain.errors import DtrainError
from dtrain.messages import Row, SnapshotReply, SnapshotRows, Sums, Verdict
from dtrain.protocol.outcome import Outcome
from dtrain.protocol.part_dealer import NO_PART
from dtrain.roles.collective.backup_driver import BackupDriver
from dtrain.roles.collective.driver import CollectiveDriver
from dtrain.roles.collective.rules import LOOK_S, Rules
from dtrain.runs.reporting import Reporter
from dtrain.strategies.in_process.fit_holder import FitHolder
from dtrain.strategies.interface import Compute, Leader, Replica, Training
from dtrain.strategies.multi_worker_mirrored.orders import OrderBook
from dtrain.strategies.multi_worker_mirrored.step_boundary import StepBoundary
from dtrain.strategies.multi_worker_mirrored.step_calls import StepCalls
from dtrain.strategies.multi_worker_mirrored.with_backups.no_calls import NoStepCalls
from dtrain.types import Array
from dtrain.wire.one_host.bells import Bells

T = TypeVar("T")


def rules_of(section: MultiWorkerMirroredSection, replicas: int, *, alone: bool) -> Rules:
    """Return the rules of steps, where so many replicas train at the start; `alone` as in `Problem`."""
    return Rules(
        section.weighting, section.nan_policy, section.too_few, section.too_few_timeout_s, replicas, alone
    )


class SharedFitHolder(FitHolder):
    """A state that other processes change: what a checkpoint remembers of it is copied at once."""

    def mark(self) -> SnapshotReply:
        """See `FitHolder.mark`."""
        reply = super().mark()
        self.store.keep_snapshots()
        return reply

    def snapshot_rows(self, server: int, question: SnapshotRows) -> Array:
        """See `saver.Holder`: rows of the copy."""
        return self.store.read_snapshot(question.part, question.array, question.start, question.stop)


class ReplicaTraining(Training):
    """One task's part in a call of `fit`; see `Training`.

    Attributes:
        driver: makes the steps with the others.
        calls: within a step.
        book: the leader's orders.
        state: variables, slots, sums.
        boundary: between two steps.
    """

    repairs = False

    def __init__(
        self,
        driver: CollectiveDriver | BackupDriver,
        bells: Bells,
        calls: StepCalls | NoStepCalls,
        book: OrderBook,
        state: FitHolder,
        boundary: StepBoundary,
        section: MultiWorkerMirroredSection,
        reporter: Reporter,
        *,
        name_of: Callable[[int], str],
        failure: Callable[[], DtrainError | None],
        lead: Callable[["ReplicaTraining"], Leader],
        on_close: Callable[["ReplicaTraining", BaseException | None], None],
    ) -> None:
        """Put together what `opening` has made.

        Args:
            driver, bells, calls, book, state, boundary, section, reporter: of this task.
            name_of: the task of a rank.
            failure: why this task cannot go on; None while it can.
            lead: makes this task the leader, which the one before has left.
            on_close: called when it ends.
        """
        self.driver = driver
        self.calls = calls
        self.book = book
        self.state = state
        self.boundary = boundary
        self.leader: Leader | None = None
        self.replicas: Sequence[Replica] = ()
        self.clock = self
        self.weights = state.weights
        self.cut = state.dealer.cut
        self.weighs_examples = section.weighting == Weighting.EXAMPLES
        self.first_step = state.begun.lineage.first_step
        self.bells = bells
        self._reporter = reporter
        self._name_of = name_of
        self._failure = failure
        self._lead = lead
        self._on_close = on_close

    @property
    def global_step(self) -> int:
        """See `StepClock.global_step`."""
        return self.state.global_step

    @property
    def finished(self) -> bool:
        """See `StepClock.finished`."""
        return self.driver.finished

    @property
    def recorded(self) -> Mapping[int, Row]:
        """See `Training.recorded`."""
        return self.state.tally.rows

    @property
    def kept(self) -> Mapping[str, bytes]:
        """See `Training.kept`."""
        return self.book.kept

    def let_compute(self, compute: Compute) -> None:
        """See `Training.let_compute`."""
        self.calls.compute = compute

    # Steps

    def contribute(self, part: int, examples: int, sums: Sums | None, finite: bool) -> Outcome:
        """Take part in a round with the gradient of a part, and wait for the next one where the leader says
        so.
        """
        outcome = self._round(partial(self.driver.contribute, part, examples, sums, finite))
        if outcome.verdict is not Verdict.PENDING:
            self.wait_for_order()
        return outcome

    def sit_out(self) -> None:
        """Take part in a round in which others compute everything."""
        self.contribute(NO_PART, 0, None, True)

    def void(self) -> None:
        """End the round without a version; see `CollectiveDriver.void`."""
        assert isinstance(self.driver, CollectiveDriver), "with backups no step waits for the leader"
        self._round(self.driver.void)

    def _round(self, make: Callable[[], T]) -> T:
        driver = self.driver
        assert isinstance(driver, CollectiveDriver), "with backups a round is another one"
        version = driver.version
        self.boundary.begin_step()
        try:
            result = make()
            if driver.version > version:
                self.state.count(driver.sums_of_last_step())
                self.state.global_step = driver.version
        finally:
            self.boundary.end_step()
        self._lead_if_due()
        across = driver.across
        if self.leader is not None and across is not None and across.has_newcomers:
            across.welcome()
        return result

    # Waits for the leader

    def wait_for_order(self) -> None:
        """Wait, in a task that does not lead, while the next step waits for the leader."""
        self._wait_while(
            lambda: not self.finished and self.book.is_held(self.global_step), f"step {self.global_step + 1}"
        )

    def wait_for_end(self) -> bool:
        """See `Training.wait_for_end`."""
        self._wait_while(lambda: not self.book.concluded, "the end of fit")
        return self.leader is None

    def _wait_while(self, goes_on: Callable[[], bool], what: str) -> None:
        """Wait for the leader; return early if this task leads now."""
        waits = False
        try:
            while True:
                self.driver.look_across()
                self.book.look(self.global_step)
                if self.leader is not None or not goes_on():
                    return
                self._lead_if_due()
                if self.leader is not None:
                    return
                if (failure := self._failure()) is not None:
                    raise failure
                waits = True
                self._reporter.waiting(f"{self._name_of(self._awaited_leader)}, {what}")
                self.bells.wait(LOOK_S)
        finally:
            if waits:
                self._reporter.waiting(None)

    @property
    def _awaited_leader(self) -> int:
        """The rank of the replica that leads, or is to lead next."""
        return self.book.leader

    def _lead_if_due(self) -> None:
        """Lead, if the leader is gone and no live member has a lower rank."""
        driver = self.driver
        if self.leader is not None or self.book.concluded:
            return
        if driver.across is not None:
            leads = driver.across.leads
        else:
            leads = self.book.leader in driver.dead and driver.rank == min(set(driver.members) - driver.dead)
        if leads:
            self.book.lead(driver.rank, self.global_step)
            self.leader = self._lead(self)

    def close(self, error: BaseException | None = None) -> None:
        """See `Training.close`."""
        self._reporter.progress(self.global_step)
        self.calls.close()
        self._on_close(self, error)
        self.driver.close()
        if error is None:
            self._reporter.fit_ends()
