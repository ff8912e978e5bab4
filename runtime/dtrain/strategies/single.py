"""Training in one process: the same rules as a server's, without anybody to talk to.

Under `dtrain launch --strategy single` it saves and resumes as a cluster does; under plain Python it keeps no
files.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dtrain import checkpoints
from dtrain.checkpoints import EvaluatedCheckpoint, OptimizerState, Pace
from dtrain.config import CheckpointSection, TrainingSection
from dtrain.errors import NonFiniteGradientError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.graphs.passes import OnGradients
from dtrain.messages import Row, SnapshotReply, SnapshotRows, Verdict
from dtrain.parameters import placement
from dtrain.parameters.change import Change
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.parameters.row_routes import RowRoutes
from dtrain.parameters.store import Store, any_non_finite
from dtrain.process.assignment import TaskAssignment
from dtrain.protocol.batch_cut import BatchCut
from dtrain.protocol.part_dealer import PartDealer
from dtrain.protocol.tally import Open, Tally
from dtrain.roles.chief.checkpoint_thread import CheckpointThread, Warn
from dtrain.roles.chief.generation import Generation
from dtrain.roles.chief.machine import Cut
from dtrain.roles.chief.recovery import Beginning, beginning
from dtrain.roles.chief.saver import Saver, Tried
from dtrain.roles.chief.start import Start, fetch_newest, fresh, restored, saved_generation
from dtrain.runs.files import RunFiles
from dtrain.runs.reporting import Reporter
from dtrain.strategies.interface import (
    Array,
    Contribution,
    Orders,
    Problem,
    Session,
    StepResult,
    Strategy,
    scope_of,
)
from dtrain.strategies.passed_over import PassedOverSession


class SingleSession:
    """The variables in this process's memory; see `Session`."""

    rank = 0
    cut = BatchCut()
    weighs_examples = False

    def __init__(self, generation: Generation, start: Start, reporter: Reporter | None) -> None:
        plan = generation.plan
        weights, self._gradients = ReplicaMemory(plan), ReplicaMemory(plan)
        for name, array in weights.variables.items():
            array[...] = start.values[name]
        # The model reads the variables where the optimizer writes them.
        self._store = Store(
            plan.layout(0), start.optimizer, weights.blocks[0], start.lineage.origin, generation.max_steps
        )
        for slot, by_variable in start.slots.items():
            views = self._store.slot_views(slot)
            for name, array in views.items():
                array[...] = by_variable[name]
        self._tables = {table.shard.name: table for table in self._store.tables}
        for name, table in self._tables.items():
            for array_name, source in start.table(name).items():
                table.fill(array_name, source)
        self._lock, self._saving = threading.Lock(), threading.Lock()
        self._dealer = PartDealer.of(start.dealt.cut_into(1), whole=False)
        rows = start.history.get(generation.number, {})
        first_step, first_epoch = start.lineage.first_step, generation.first_epoch
        steps, kept = generation.steps_per_epoch, not generation.alone
        self._tally = Tally.of(first_step, steps, first_epoch, start.tally, rows if kept else {}, kept=kept)
        self._earlier_rows = start.history
        self._generation = generation
        self._reporter = reporter
        self._step = self.entered_step = start.version
        self._lineage, self.first_step = start.lineage, start.lineage.first_step
        self.saver: CheckpointThread | None = None
        self.weights: dict[str, Array] = {
            **weights.variables,
            **{name: table.values for name, table in self._tables.items()},
        }
        self.arriving: Mapping[str, Array] = self.weights
        self.complete: OnGradients | None = None
        arrays, dense = self._gradients.variables, [spec for spec in plan.variables if not spec.sparse]
        self.gradients: dict[str, Array] = {spec.name: arrays[spec.name] for spec in dense if spec.trainable}
        self.updates: dict[str, Array] = {
            spec.name: arrays[spec.name] for spec in dense if not spec.trainable
        }
        self.row_gradients: dict[str, SparseRows] = {}
        self._routes = RowRoutes(plan)
        for name, update in self.updates.items():
            update[...] = self.weights[name]

    @property
    def global_step(self) -> int:
        """Updates made so far."""
        return self._step

    @property
    def part(self) -> int:
        """See `Session.part`. A snapshot never sees a part that is half dealt."""
        with self._lock:
            return self._dealer.give(0)

    @property
    def repairs(self) -> bool:
        """See `Session.repairs`."""
        return False

    @property
    def tally(self) -> Open:
        """See `Session.tally`."""
        return self._tally.open()

    @property
    def rows(self) -> Mapping[int, Row]:
        """See `Session.rows`."""
        return self._tally.rows

    def record(self, epoch: int, rows: Mapping[int, Row]) -> None:
        """See `Session.record`."""
        with self._lock:
            self._tally.record(epoch, rows)

    @property
    def history(self) -> dict[int, dict[int, Row]]:
        """The numbers of every epoch that has ended, by call of `fit`."""
        own = (
            {self._generation.number: dict(self._tally.rows)} if self._tally.kept and self._tally.rows else {}
        )
        return {**{fit: dict(rows) for fit, rows in self._earlier_rows.items()}, **own}

    @property
    def finished(self) -> bool:
        """Whether the last step is done."""
        return self._step >= (self._store.max_steps or 0)

    @property
    def optimizer(self) -> dict[str, Any]:
        """In force."""
        return self._store.optimizer_config

    def step(self, contribution: Contribution) -> StepResult:
        """Apply the gradients at once.

        Raises:
            NonFiniteGradientError: they hold NaN or infinity and the spec's `nan_policy` is ``fail``.
        """
        blocks = [*self._gradients.blocks[0], *self._routes.blocks(self.row_gradients)[0]]
        self.row_gradients.clear()
        if any_non_finite(blocks):
            with self._lock:
                self._use_up_batch()
            return self._refuse(contribution.loss)
        with self._lock:
            self._use_up_batch()
            self._store.apply(blocks, self._step)
            self._tally.add(self._step, contribution.sums)
            self._step += 1
        if self._reporter is not None:
            self._reporter.progress(self._step, contribution.loss, contribution.examples)
        return StepResult(Verdict.ACCEPTED, self._step)

    def pass_over(self, empty: int) -> StepResult:
        """Go on with the next batch: this one has no examples."""
        with self._lock:
            self._use_up_batch()
        return StepResult(Verdict.ACCEPTED, self._step)

    def arrive(self) -> None:
        """They always are."""

    def _use_up_batch(self) -> None:
        self._dealer.settle(self._dealer.give(0))

    def _refuse(self, loss: float) -> StepResult:
        text = f"the gradient of step {self._step + 1} holds NaN or infinity (loss {loss})"
        if self._generation.training.nan_policy == "fail":
            raise NonFiniteGradientError(text)
        if self._reporter is not None and self._generation.training.nan_policy == "refuse":
            self._reporter.warn(f"{text}; it was not applied")
        return StepResult(Verdict.REFUSED, self._step)

    def snapshot(self, cut: Cut, newest: int, last: int) -> list[SnapshotReply]:
        """Everything between two updates; see `saver.Holder`."""
        with self._lock:
            self._store.mark()
            reply = SnapshotReply(
                version=self._step,
                slots=tuple(self._store.slots),
                seen=[],
                dealt=self._dealer.export(),
                optimizer=self.optimizer,
                tally=self.tally,
                history=self.history,
            )
            return [reply]

    def conclude(self) -> bool:
        """`close` saves it."""
        return True

    def wait(self, step: int) -> None:
        """Never called: this process trains."""
        raise AssertionError("a process that trains alone waits for no other")

    def control(self, orders: Orders) -> None:
        """See `Session.control`: at once."""
        with self._lock:
            if orders.stop:
                self._store.end_at(self._step, self._step)
            self._store.change(Change(self._step, orders.optimizer), self._step)
            self._store.keep_images()
            for name, value in (orders.weights or {}).items():
                if name in self._tables:
                    self._tables[name].assign(np.asarray(value))
                else:
                    self.weights[name][...] = value

    def checkpoint(self) -> None:
        """See `Session.checkpoint`; never called: this process validates itself."""

    def save(self, directory: Path) -> None:
        """See `Session.save`."""
        saver = self.saver_into(directory, CheckpointSection(keep=1), lambda text: None)
        saver.lineage = self._lineage
        saver.save_cut()

    def saver_into(
        self,
        directory: Path,
        section: CheckpointSection,
        warn: Warn,
        tried: Tried = lambda step, failure: None,
    ) -> Saver:
        """Return what saves this session, never while another one does."""
        return Saver(
            self, self._generation, section, directory, lambda: self._step, warn, self._saving, tried
        )

    def snapshot_rows(self, server: int, question: SnapshotRows) -> Array:
        """See `saver.Holder`."""
        with self._lock:
            return self._store.read_image(question.part, question.array, question.start, question.stop)

    def continuation(self, generation: Generation, problem: Problem, *, same_owner: bool) -> Start:
        """Where the next `fit` starts; another model's optimizer, or a new one, starts afresh."""
        state = (
            OptimizerState(self._step - self._store.origin, self._store.all_slots())
            if same_owner
            else problem.state
        )
        start = fresh(generation.plan, problem.optimizer, problem.initial_values(), self._step, state)
        return replace(start, history=self.history)

    @property
    def optimizer_state(self) -> OptimizerState:
        """A copy."""
        with self._lock:
            slots = {
                slot: {k: v.copy() for k, v in views.items()}
                for slot, views in self._store.all_slots().items()
            }
            return OptimizerState(self._step - self._store.origin, slots)

    def close(self, error: BaseException | None = None) -> None:
        """Write the final checkpoint, where there are any."""
        if self.saver is not None:
            if error is None or isinstance(error, SystemExit | KeyboardInterrupt):
                self.saver.finish()
            else:
                self.saver.stop()
        if error is None and self._reporter is not None:
            self._reporter.fit_ends()


class SingleStrategy(Strategy):
    """One process that trains, leads, evaluates for itself; see `Strategy`."""

    trains = True
    is_leader = True
    evaluates = False
    has_evaluator = False
    validates = True
    evaluations: Mapping[int, Mapping[str, float]] = {}
    num_replicas = 1
    num_replicas_in_sync = 1
    rank = 0
    followed_rows: Mapping[int, Row] = {}

    def __init__(
        self, assignment: TaskAssignment | None = None, training: TrainingSection | None = None
    ) -> None:
        """Train alone, by `training`; or as the one task of a launch, whose run directory then holds
        checkpoints and status.
        """
        self._assignment = assignment
        self._reporter = Reporter(assignment) if assignment is not None else None
        self._generation = 0
        self._last: SingleSession | None = None
        self._owner: object = None
        self.training = assignment.spec.training if assignment else training or TrainingSection()
        self.directory: Path | None = assignment.run_dir if assignment else None
        self.run_id: str | None = assignment.run_id if assignment else None
        self.seed = self.training.seed

    def open(self, problem: Problem) -> Session:
        """See `Strategy.open`."""
        self._generation += 1
        plan = placement.plan(problem.variables, servers=1)
        generation = Generation(
            self._generation,
            plan,
            self.training,
            problem.optimizer,
            problem.max_steps,
            1,
            problem.model,
            problem.steps_per_epoch,
            problem.first_epoch,
            problem.alone,
            problem.feed,
        )
        if self._last is None and (passed := self._passed_over(problem)) is not None:
            return passed
        folder = RunFiles(self.directory).checkpoints if self.directory else None
        goes_on = self._last is None and folder is not None and bool(checkpoints.list_checkpoints(folder))
        start = self._start(generation, problem)
        self._owner = problem.owner
        generation = replace(generation, max_steps=start.lineage.first_step + problem.max_steps)
        session = self._last = SingleSession(generation, start, self._reporter)
        if self._assignment is not None and self._reporter is not None and self.directory is not None:
            directory, section = RunFiles(self.directory).checkpoints, self._assignment.spec.checkpoint
            if start.warning:
                self._reporter.warn(start.warning)
            if goes_on:
                for text in start.where(generation.max_steps):
                    self._reporter.warn(text)
            warn, tried = self._reporter.warn, self._reporter.tried_to_save
            session.saver = CheckpointThread(
                session.saver_into(directory, section, warn, tried), section, warn
            )
            session.saver.save_first(start)
            self._reporter.status.max_steps = generation.max_steps
            self._reporter.progress(session.global_step)
            self._reporter.fit_begins()
            self._reporter.running()
        return session

    def _passed_over(self, problem: Problem) -> Session | None:
        """The session of a `fit` that had ended before this program was started again."""
        directory = RunFiles(self.directory).checkpoints if self.directory else None
        if directory is not None and self._assignment is not None and self._reporter is not None:
            fetch_newest(self._assignment.spec.checkpoint, directory, self._reporter.warn)
        if (
            directory is None
            or beginning(self._generation, [], saved_generation(directory)) is not Beginning.PASS_OVER
        ):
            return None
        self._owner = problem.owner
        return PassedOverSession(problem, self._generation, directory, self)

    def _start(self, generation: Generation, problem: Problem) -> Start:
        plan, optimizer = generation.plan, problem.optimizer
        directory = RunFiles(self.directory).checkpoints if self.directory else None
        if self._last is not None:
            return self._last.continuation(generation, problem, same_owner=problem.owner is self._owner)
        if directory is not None and checkpoints.list_checkpoints(directory):
            return restored(directory, plan, optimizer, problem.feed, by_server=False)
        if problem.resume_from is not None:
            return restored(problem.resume_from, plan, optimizer, problem.feed, by_server=False)
        return fresh(plan, optimizer, problem.initial_values(), state=problem.state)

    def scope(self) -> AbstractContextManager[Strategy]:
        """Within it, models belong to this strategy."""
        return scope_of(self)

    def optimizer_state(self, owner: object) -> OptimizerState | None:
        """See `Strategy.optimizer_state`."""
        return self._last.optimizer_state if self._last is not None and owner is self._owner else None

    def checkpoints(self, pace: Pace) -> Iterator[EvaluatedCheckpoint]:
        """There is no evaluator."""
        return iter(())

    def evaluated(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """See `Session`; it does nothing: no other task asks."""

    def close(self, error: BaseException | None = None) -> None:
        """The status stays."""
        if self._reporter is not None:
            self._reporter.close()
