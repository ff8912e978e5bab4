"""One call of `fit` in one of the tasks whose replicas reduce among themselves, and the leader's work for it.

The gradients of a replica lie in memory that all replicas of the host share.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dtrain import checkpoints
from dtrain.config import MultiWorkerMirroredSection
from dtrain.config.choices import NanPolicy
from dtrain.errors import DtrainError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import Row, SnapshotReply, SnapshotRows, Sums, Verdict
from dtrain.parameters.store import TwoSidedStore
from dtrain.process.clock import SYSTEM
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.part_dealer import NO_PART
from dtrain.roles.chief.keeper_thread import KeeperThread
from dtrain.roles.collective.member_driver import MemberDriver
from dtrain.roles.collective.rules import Rules
from dtrain.runs.reporting import Reporter
from dtrain.state.fit_state import Open
from dtrain.strategies.in_process.fit_holder import FitHolder
from dtrain.strategies.interface import Compute, FitOrder, Stepped, TurnReplica, TurnTraining, Weights
from dtrain.strategies.multi_worker_mirrored.orders import LeaderOrder, OrderBook
from dtrain.strategies.multi_worker_mirrored.step_calls import NoStepCalls, StepCalls
from dtrain.strategies.replicas.reduction import Nest, ReduceOp
from dtrain.types import Array


def rules_of(section: MultiWorkerMirroredSection, replicas: int, *, alone: bool) -> Rules:
    return Rules(
        section.weighting, section.nan_policy, section.too_few, section.too_few_timeout_s, replicas, alone
    )


class SharedFitHolder(FitHolder):
    """A state that other processes change: what a checkpoint needs of it is copied at once. `driver` is to be
    set.
    """

    store: TwoSidedStore
    driver: MemberDriver

    def mark(self) -> SnapshotReply:
        reply = super().mark()
        self.store.keep_snapshots()
        tally = self.tally.holding(self.driver.tally).open()
        return msgspec.structs.replace(reply, state=reply.state.but(dealt=self.driver.dealt, tally=tally))

    def snapshot_rows(self, server: int, question: SnapshotRows) -> Array:
        return self.store.read_snapshot(question.part, question.array, question.start, question.stop)


class ReplicaTraining(TurnTraining):
    """One task's part in a call of `fit`, and the leader's work for it, where this task leads."""

    keeper: KeeperThread | None = None
    _saved = False

    def __init__(
        self,
        driver: MemberDriver,
        calls: StepCalls | NoStepCalls,
        book: OrderBook,
        state: SharedFitHolder,
        section: MultiWorkerMirroredSection,
        reporter: Reporter,
        *,
        failure: Callable[[], DtrainError | None],
        lead: Callable[["ReplicaTraining"], None],
        on_close: Callable[["ReplicaTraining", BaseException | None], None],
    ) -> None:
        """Put together what `assembly` has made.

        `failure` returns why this task cannot go on; `lead` makes this task the leader when the one before is
        gone; `on_close` is called when the training ends.
        """
        self.driver = driver
        self.calls = calls
        self.book = book
        self.state = state
        self.replicas: Sequence[TurnReplica] = ()
        self.weights = state.weights
        self.cut = state.dealer.cut
        self.first_step = state.begun.lineage.first_step
        self._reporter = reporter
        self._failure = failure
        self._lead = lead
        self._on_close = on_close

    @property
    def global_step(self) -> int:
        return self.state.global_step

    @property
    def finished(self) -> bool:
        return self.driver.finished

    @property
    def recorded(self) -> Mapping[int, Row]:
        return self.state.tally.rows

    @property
    def kept(self) -> Mapping[str, bytes]:
        return self.book.kept

    @property
    def leads(self) -> bool:
        return self.keeper is not None

    @property
    def optimizer(self) -> dict[str, Any]:
        return self.state.store.optimizer_config

    @property
    def tally(self) -> Open:
        return self.state.tally.holding(self.driver.tally).open()

    # Steps

    def step(self, compute: Compute) -> Stepped:
        self.calls.compute = compute
        return super().step(compute)

    def contribute(self, part: int, examples: int, sums: Sums | None, finite: bool) -> Outcome:
        """Take part in a round with the gradient of a part; wait where the leader holds the next step."""
        outcome = self.driver.contribute(part, examples, sums, finite)
        self._lead_if_due()
        if outcome.verdict is not Verdict.PENDING and self.book.is_held(self.global_step):
            self.wait_for_order()
        return outcome

    def _await_others(self) -> None:
        self.contribute(NO_PART, 0, None, True)
        self._reporter.progress(self.global_step)

    # Waits for the leader

    def wait_for_order(self) -> None:
        self._wait_while(
            lambda: not self.finished and self.book.is_held(self.global_step), f"step {self.global_step + 1}"
        )

    def _wait_while(self, goes_on: Callable[[], bool], what: str) -> None:
        """Wait for the leader; return early if this task leads now."""
        driver = self.driver
        driver.look()
        while not self.leads and goes_on():
            self._lead_if_due()
            if self.leads:
                return
            if (failure := self._failure()) is not None:
                raise failure
            driver.wait_while(lambda: goes_on() and self._failure() is None, what)

    def _lead_if_due(self) -> None:
        """Lead, if this member leads the rounds."""
        driver = self.driver
        if self.leads or self.book.concluded or not driver.leads:
            return
        if driver.owes_values:
            driver.void(values=True)
        self.book.lead(driver.rank, self.global_step)
        self._lead(self)

    def _conclude(self) -> bool:
        if self.keeper is None:
            book, driver = self.book, self.driver
            self._wait_while(lambda: not book.concluded or book.awaits_values(driver.side), "the end of fit")
            return not self.leads
        self._saved = self.keeper.finish()
        self._publish_end()
        self.book.conclude(self.global_step)
        self.driver.void(values=False)  # so that everybody looks
        return True

    # The leader

    def lead(self, keeper: KeeperThread, folder: Path, publish_end: Callable[[], None]) -> None:
        """Lead from now on; `publish_end` notifies the tasks that are no replicas that the last step is
        saved.
        """
        self.keeper = keeper
        self._folder = folder
        self._publish_end = publish_end

    def order(self, order: FitOrder) -> None:
        with self.driver:
            if order.rows is not None:  # training never goes back here, so all of them stay
                self.book.record(order.rows, self.global_step)
            if order.kept:
                self.book.store(order.kept)
            if order.optimizer is not None:
                self._change(order, order.optimizer)

    def _change(self, order: FitOrder, optimizer: dict[str, Any]) -> None:
        """Carry out an order. Where it writes values, a round without a version does that: what others
        compute meanwhile counts for nothing, and is computed again.
        """
        book, driver, version = self.book, self.driver, self.global_step
        values = self._new_values(order)
        writes = values is not None or (order.stop and not self.finished)
        number, end = book.order.number + 1, self._end_of(order)
        side = driver.side if writes else book.order.side
        book.give(LeaderOrder(number, optimizer, order.until, end, version, side), values, version)
        driver.heed()
        if writes:
            driver.void(values=True)
            book.carried_out()

    def _end_of(self, order: FitOrder) -> int | None:
        """Return the last step of all, if an order sets it, or one before has set it."""
        return self.global_step if order.stop and not self.finished else self.book.order.end

    def _new_values(self, order: FitOrder) -> Weights | None:
        known = self.weights
        new = {name: value for name, value in (order.weights or {}).items() if value is not known.get(name)}
        return new or None

    def save(self, directory: Path | None = None) -> None:
        assert self.keeper is not None, "this task leads"
        self.keeper.save_now()
        if directory is not None:
            checkpoints.copy_latest(self._folder, directory, SYSTEM.wall())

    def close(self, error: BaseException | None = None) -> None:
        """End it; a leader that is stopped early without a failure writes a last checkpoint."""
        self._reporter.progress(self.global_step)
        self.calls.close()
        self._on_close(self, error)
        if self.keeper is not None and not self._saved:
            self.keeper.stop(save=error is None or isinstance(error, SystemExit | KeyboardInterrupt))
        self.driver.close()
        if error is None:
            self._reporter.fit_ends()


class ArenaReplica(TurnReplica):
    """This task's replica; `gradients` and `updates` are those of the part that `next_batch` has returned."""

    def __init__(
        self, training: ReplicaTraining, section: MultiWorkerMirroredSection, reporter: Reporter
    ) -> None:
        self.rank = training.driver.rank
        self.weights = training.weights
        self.rows: dict[str, SparseRows] = {}
        self._training = training
        self._driver = training.driver
        self._calls = training.calls
        self._reporter = reporter
        self._warns = section.nan_policy == NanPolicy.REFUSE
        plan = training.state.plan
        self._trainable = {spec.name: spec.trainable for spec in plan.variables}
        self._places: dict[int, tuple[dict[str, Array], dict[str, Array]]] = {}
        self._part, self._place = NO_PART, 0
        self.gradients, self.updates = self._memory_of(0)
        self._begun_s = reporter.begins()

    def _memory_in(self, slot: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the memory of a part by its number in its batch."""
        return self._memory_of(self._driver.place_in(slot))

    def _memory_of(self, place: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the gradients of a part and the new values of untrained variables, by its place."""
        if place not in self._places:
            arrays = self._driver.gradients(place).variables
            trainable = self._trainable
            self._places[place] = (
                {name: array for name, array in arrays.items() if trainable[name]},
                {name: array for name, array in arrays.items() if not trainable[name]},
            )
        return self._places[place]

    def next_batch(self) -> int:
        part = self._driver.next_part()
        if part != NO_PART:
            self._part, self._place = part, self._driver.place
            self.gradients, self.updates = self._memory_of(self._place)
        return part

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        """Contribute the part.

        Raises:
            NonFiniteGradientError: a gradient holds NaN or infinity, and `nan_policy` is ``fail``.
            WaitTimeoutError: a replica that is alive did not do its share in time.
        """
        reporter = self._reporter
        reporter.slow_down(self._begun_s)
        part = self._part  # not the driver's next one: others may have died meanwhile
        self._calls.finish(part % self._training.cut.parts, examples, self._memory_in)
        finite = not examples or self._driver.give(self._place, self.rows)
        self.rows.clear()
        outcome = self._training.contribute(part, examples, sums, finite)
        reporter.progress(self._training.global_step, loss if examples else None, examples)
        if self._warns and outcome.verdict is Verdict.REFUSED:
            reporter.refused(f"step {self._training.global_step}: {outcome.reason}")
        if outcome.verdict is Verdict.STALE:
            reporter.status.stale_gradients = (reporter.status.stale_gradients or 0) + 1
        self._begun_s = reporter.begins()
        return outcome

    def all_reduce(self, op: ReduceOp, value: Nest) -> Nest:
        return self._calls.all_reduce(self._part % self._training.cut.parts, self._memory_in, op, value)
