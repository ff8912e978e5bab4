"""One call of `fit` whose variables lie in this process: the same rules as a server's, without a server."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.checkpoints import OptimizerState
from dtrain.config import CheckpointSection
from dtrain.config.choices import NanPolicy
from dtrain.errors import NonFiniteGradientError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import Row, SnapshotReply, SnapshotRows, Sums, Verdict
from dtrain.parameters.change import Change
from dtrain.parameters.finite import any_non_finite
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.parameters.row_routes import RowRoutes
from dtrain.parameters.store import Store
from dtrain.protocol.batch_cut import BatchCut
from dtrain.protocol.outcome import Outcome
from dtrain.protocol.part_dealer import PartDealer
from dtrain.protocol.tally import Open, Tally
from dtrain.roles.chief.generation import Generation
from dtrain.roles.chief.keeper.thread import KeeperThread
from dtrain.roles.chief.machine import Cut
from dtrain.roles.chief.saver import Saver, Tried
from dtrain.roles.chief.start import Start, fresh
from dtrain.runs.reporting import Reporter
from dtrain.runs.trace import NO_TRACE
from dtrain.strategies.interface import Leader, Replica, Training
from dtrain.strategies.problem import ConfigChange, Problem
from dtrain.types import Array

APPLIED = Outcome(Verdict.ACCEPTED)
REFUSED = Outcome(Verdict.REFUSED)


class LocalTraining(Training, Leader):
    """The variables of one call of `fit`, and everything that this process does about them as its leader.

    Attributes:
        replicas: made by the strategy; they share `weights`.
        store: variables and slots. Its arrays are what `weights` shows.
        saver: writes the run's own checkpoints, where there are any.
    """

    replicas: Sequence[Replica] = ()
    repairs = False

    def __init__(
        self, generation: Generation, start: Start, reporter: Reporter | None, parts: int = 1
    ) -> None:
        """Fill the variables.

        Args:
            generation: what is trained.
            start: from where.
            reporter: told of steps; None where no launcher asks.
            parts: into how many every batch is cut.
        """
        self.generation = generation
        self.leader = self
        self.clock = self
        self.cut = BatchCut(parts)
        memory = ReplicaMemory(generation.plan)
        for name, array in memory.variables.items():
            array[...] = start.values[name]
        # The model reads the variables where the optimizer writes them.
        self.store = _filled_store(generation, start, memory)
        self._tables = {table.shard.name: table for table in self.store.tables}
        self.weights: dict[str, Array] = {
            **memory.variables,
            **{name: table.values for name, table in self._tables.items()},
        }
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._dealer = PartDealer.of(start.dealt.cut_into(parts), whole=False)
        kept = not generation.alone
        self._tally = Tally.of(
            start.lineage.first_step,
            generation.steps_per_epoch,
            generation.first_epoch,
            start.tally,
            start.history.get(generation.number, {}) if kept else {},
            kept=kept,
        )
        self._earlier_rows = start.history
        self._reporter = reporter
        trace = NO_TRACE if reporter is None else reporter.trace
        self._apply = trace.timed("apply", self.store.apply)
        self._lineage = start.lineage
        self.global_step = start.version
        self.first_step = start.lineage.first_step
        self.saver: KeeperThread | None = None

    # How far it has come

    @property
    def finished(self) -> bool:
        """See `StepClock.finished`."""
        return self.global_step >= (self.store.max_steps or 0)

    @property
    def recorded(self) -> Mapping[int, Row]:
        """See `Training.recorded`."""
        return self._tally.rows

    # For its replicas

    def deal(self, rank: int) -> int:
        """Return the part that a replica computes next. A snapshot never sees a part that is half dealt."""
        with self._lock:
            return self._dealer.give(rank)

    def apply(
        self,
        blocks: Sequence[Array],
        parts: Sequence[int],
        sums: Sequence[Sums | None],
        loss: float,
        examples: int,
    ) -> Outcome:
        """Make the next version of a gradient, which uses up these parts.

        Args:
            blocks: as `LocalReplica.blocks` returns them; the mean of the replicas'. They may be overwritten
                afterwards.
            parts: the numbers of all parts that it is of.
            sums: those of each.
            loss: for the status.
            examples: of how many it is the mean.

        Raises:
            NonFiniteGradientError: it holds NaN or infinity and the spec's `nan_policy` is ``fail``.
        """
        finite = not any_non_finite(blocks)
        with self._lock:
            for part in parts:
                self._dealer.settle(part)
            if finite:
                self._apply(blocks, self.global_step)
                for each in sums:
                    self._tally.add(self.global_step, each)
                self.global_step += 1
        if not finite:
            return self._refuse(loss)
        if self._reporter is not None:
            self._reporter.progress(self.global_step, loss, examples)
        return APPLIED

    def pass_over(self, part: int) -> Outcome:
        """Use up a part of a batch that has no examples at all: no version is made of it."""
        with self._lock:
            self._dealer.settle(part)
        return APPLIED

    def _refuse(self, loss: float) -> Outcome:
        text = f"the gradient of step {self.global_step + 1} holds NaN or infinity (loss {loss})"
        policy = self.generation.training.nan_policy
        if policy == NanPolicy.FAIL:
            raise NonFiniteGradientError(text)
        if self._reporter is not None and policy == NanPolicy.REFUSE:
            self._reporter.warn(f"{text}; it was not applied")
        return REFUSED

    # As the leader

    @property
    def optimizer(self) -> dict[str, Any]:
        """See `Leader.optimizer`."""
        return self.store.optimizer_config

    @property
    def tally(self) -> Open:
        """See `Leader.tally`."""
        return self._tally.open()

    def record(self, epoch: int, rows: Mapping[int, Row]) -> None:
        """See `Leader.record`."""
        with self._lock:
            self._tally.record(epoch, rows)

    def control(self, change: ConfigChange) -> None:
        """See `Leader.control`: at once."""
        with self._lock:
            if change.stop:
                self.store.end_at(self.global_step, self.global_step)
            self.store.change(Change(self.global_step, change.optimizer), self.global_step)
            self.store.keep_snapshots()
            for name, value in (change.weights or {}).items():
                if name in self._tables:
                    self._tables[name].assign(np.asarray(value))
                else:
                    self.weights[name][...] = value

    def save(self, directory: Path | None = None) -> None:
        """See `Leader.save`; nothing reads the run's own checkpoints out of turn: this process validates
        itself.
        """
        if directory is not None:
            saver = self.saver_into(directory, CheckpointSection(keep=1), lambda text: None)
            saver.lineage = self._lineage
            saver.save_cut()

    def wait(self, step: int) -> None:
        """Return at once: this process makes every step itself."""

    # For checkpoints, and for the next call of fit

    def saver_into(
        self,
        directory: Path,
        section: CheckpointSection,
        warn: Callable[[str], None],
        tried: Tried = lambda step, failure: None,
    ) -> Saver:
        """Return what saves this training, never while another one does."""
        return Saver(
            self, self.generation, section, directory, lambda: self.global_step, warn, self._saving, tried
        )

    def snapshot(self, cut: Cut, newest: int, last: int) -> list[SnapshotReply]:
        """Everything between two updates; see `saver.Holder`."""
        with self._lock:
            self.store.mark()
            reply = SnapshotReply(
                version=self.global_step,
                slots=tuple(self.store.slots),
                seen=[],
                dealt=self._dealer.export(),
                optimizer=self.optimizer,
                tally=self.tally,
                history=self._history(),
            )
            return [reply]

    def snapshot_rows(self, server: int, question: SnapshotRows) -> Array:
        """See `saver.Holder`."""
        with self._lock:
            return self.store.read_snapshot(question.part, question.array, question.start, question.stop)

    def _history(self) -> dict[int, dict[int, Row]]:
        """Return the numbers of every epoch that has ended, by call of `fit`."""
        kept = self._tally.kept and self._tally.rows
        own = {self.generation.number: dict(self._tally.rows)} if kept else {}
        return {**{fit: dict(rows) for fit, rows in self._earlier_rows.items()}, **own}

    def continuation(self, generation: Generation, problem: Problem, *, same_owner: bool) -> Start:
        """Return where the next `fit` starts; another model's optimizer, or a new one, starts afresh."""
        state = (
            OptimizerState(self.global_step - self.store.origin, self.store.all_slots())
            if same_owner
            else problem.state
        )
        start = fresh(generation.plan, problem.optimizer, problem.initial_values(), self.global_step, state)
        return replace(start, history=self._history())

    @property
    def optimizer_state(self) -> OptimizerState:
        """A copy of how far the optimizer has come."""
        with self._lock:
            slots = {
                slot: {name: view.copy() for name, view in views.items()}
                for slot, views in self.store.all_slots().items()
            }
            return OptimizerState(self.global_step - self.store.origin, slots)

    def close(self, error: BaseException | None = None) -> None:
        """See `Training.close`; write the final checkpoint, where there are any."""
        if self.saver is not None:
            if error is None or isinstance(error, SystemExit | KeyboardInterrupt):
                self.saver.finish()
            else:
                self.saver.stop()
        if error is None and self._reporter is not None:
            self._reporter.fit_ends()


class LocalReplica(Replica):
    """The memory of one replica of a `LocalTraining`; a strategy adds what `commit` does with it."""

    def __init__(self, training: LocalTraining, rank: int = 0) -> None:
        """Make room for one gradient."""
        plan = training.generation.plan
        self.rank = rank
        self.training = training
        self.weights = training.weights
        self._memory = ReplicaMemory(plan)
        self._routes = RowRoutes(plan)
        arrays = self._memory.variables
        dense = [spec for spec in plan.variables if not spec.sparse]
        self.gradients = {spec.name: arrays[spec.name] for spec in dense if spec.trainable}
        self.updates = {spec.name: arrays[spec.name] for spec in dense if not spec.trainable}
        self.rows: dict[str, SparseRows] = {}
        for name, update in self.updates.items():
            update[...] = self.weights[name]

    def next_batch(self) -> int:
        """See `Replica.next_batch`."""
        return self.training.deal(self.rank)

    def blocks(self) -> list[Array]:
        """Return the gradient as a server gets it: a flat array for each group of variables, views of this
        replica's memory; then ids and rows of each table.
        """
        blocks = [*self._memory.blocks[0], *self._routes.blocks(self.rows)[0]]
        self.rows.clear()
        return blocks


def _filled_store(generation: Generation, start: Start, memory: ReplicaMemory) -> Store:
    store = Store(
        generation.plan.layout(0),
        start.optimizer,
        memory.blocks[0],
        start.lineage.origin,
        generation.max_steps,
    )
    for slot, by_variable in start.slots.items():
        for name, array in store.slot_views(slot).items():
            array[...] = by_variable[name]
    for table in store.tables:
        for array_name, source in start.table(table.shard.name).items():
            table.fill(array_name, source)
    return store
