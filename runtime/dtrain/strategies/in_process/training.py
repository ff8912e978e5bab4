"""Calls of `fit` whose variables lie in this process: the same rules as a server's, without a server."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.checkpoints import OptimizerState
from dtrain.config import CheckpointSection, SingleSection, SynchronousSection, TrainingSection
from dtrain.config.choices import NanPolicy
from dtrain.errors import NonFiniteGradientError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import Row, Sums, Verdict
from dtrain.parameters import placement
from dtrain.parameters.replica_memory import ReplicaMemory, RowRoutes, any_non_finite
from dtrain.parameters.store import Change, Store
from dtrain.parameters.updater import Contributions
from dtrain.parameters.versions import BufferAllocator
from dtrain.process.assignment import TaskAssignment
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.part_dealer import PartDealer
from dtrain.roles.chief.keeper_thread import KeeperThread
from dtrain.roles.chief.start import Start
from dtrain.runs.files import RunFiles
from dtrain.runs.ledger import NO_ACTIVITY
from dtrain.runs.reporting import Reporter
from dtrain.runs.trace import NO_TRACE
from dtrain.state.batch_cut import BatchCut
from dtrain.state.fit_state import Open
from dtrain.strategies.beginnings import Beginnings, told_of
from dtrain.strategies.context import TaskContext
from dtrain.strategies.in_process.fit_holder import FitHolder
from dtrain.strategies.interface import FitOrder, Problem, Strategy, Training, TurnReplica, TurnTraining
from dtrain.types import Array, Blocks

APPLIED = Outcome(Verdict.ACCEPTED)
REFUSED = Outcome(Verdict.REFUSED)


class LocalTraining(TurnTraining):
    """The variables of one call of `fit`, and all that this process does about them as its leader.

    Attributes:
        replicas: made by the strategy; they share `weights`.
        constraints: functions through which variables pass after each update, by name.
        allocator: of the memory of values; None: each version is made in the place of the one before.
        lock: held while anything of `state` changes.
        reporter: None where no launcher asks.
        saver: writes the run's own checkpoints, where there are any.
    """

    replicas: Sequence[TurnReplica] = ()
    weights: dict[str, Array]
    constraints: Mapping[str, Callable[[Array], Array]] = {}
    allocator: BufferAllocator | None = None

    def __init__(
        self, start: Start, training: TrainingSection, reporter: Reporter | None, *, shared: bool = False
    ) -> None:
        """Begin at `start`; `shared`: replicas make every step together, as in synchronous training."""
        self._nan_policy = training.nan_policy
        self._shared = shared
        self.lock = threading.Lock()
        self.reporter = reporter
        self.activity = NO_ACTIVITY if reporter is None else reporter.activity
        self.saver: KeeperThread | None = None
        store, dealer = self._hold(start)
        self.state = FitHolder(start, store, dealer, self.lock)
        self.weights = self.state.weights  # which the model reads where the optimizer writes them

    def _hold(self, start: Start) -> tuple[Store, PartDealer]:
        """Hold the variables of a start; return them, and what deals the parts that it has left."""
        self.plan = start.plan
        dealt = start.state.dealt
        layout = start.plan.layout(0)
        store = Store(
            layout,
            start.state.optimizer,
            [np.zeros(group.size, group.dtype) for group in layout.groups],
            start.state.lineage.origin,
            start.state.max_steps,
            self.allocator,
        )
        store.fill(start.values, start.slots)
        dealer = PartDealer.of(dealt, whole=self._shared and not dealt.even)
        self.cut = dealer.cut
        self.store = store
        trace = NO_TRACE if self.reporter is None else self.reporter.trace
        self._make = trace.timed("apply", store.make)
        self.first_step = start.state.lineage.first_step
        return store, dealer

    # How far it has come

    @property
    def global_step(self) -> int:
        return self.state.global_step

    @property
    def finished(self) -> bool:
        return self.global_step >= (self.store.max_steps or 0)

    @property
    def recorded(self) -> Mapping[int, Row]:
        return self.state.tally.rows

    # For its replicas

    def deal(self, rank: int) -> int:
        """Return the part that a replica computes next. A snapshot never sees a part that is half dealt."""
        with self.lock:
            return self.state.dealer.give(rank)

    def apply(
        self,
        gradients: Sequence[Blocks],
        parts: Sequence[int],
        sums: Sequence[Sums | None],
        loss: float,
        examples: int,
        *,
        finite: bool | None = None,
    ) -> Outcome:
        """Make the next version of the mean of gradients, which uses up these parts.

        Args:
            gradients: those of parts with examples, as `LocalReplica.blocks` returns them.
            parts: those that are used up.
            sums: of every part of the step, with examples or without.
            loss: for the status.
            examples: of how many it is the mean.
            finite: whether all that counts is free of NaN and infinity; None: it is looked at here.

        Raises:
            NonFiniteGradientError: one holds NaN or infinity and the spec's `nan_policy` is ``fail``.
        """
        finite = not any(map(any_non_finite, gradients)) if finite is None else finite
        given = Contributions.of(gradients, len(sums) - len(gradients), None, self.global_step)

        def update() -> None:
            for part in parts:
                self.state.dealer.settle(part)
            if finite:
                self._make(given)

        if finite:
            self.advance(update, sums, loss, examples)
            return APPLIED
        with self.lock:
            update()
        return self.refuse(loss)

    def advance(
        self, update: Callable[[], None], sums: Sequence[Sums | None], loss: float, examples: int
    ) -> None:
        """Make the next version by `update`, which also settles its parts; see `apply` for the rest."""
        with self.lock:
            update()
            for name, constraint in self.constraints.items():
                self.weights[name][...] = constraint(self.weights[name])
            self.state.count(sums)
            self.state.global_step += 1
        if self.reporter is not None:
            self.reporter.progress(self.global_step, loss, examples)

    def pass_over(self, part: int) -> Outcome:
        """Use up a part of a batch that has no examples at all: no version is made of it."""
        with self.lock:
            self.state.dealer.settle(part)
        return APPLIED

    def count_stale(self) -> None:
        """Count a gradient that came too late, for the status."""
        if self.reporter is not None:
            self.reporter.status.stale_gradients = (self.reporter.status.stale_gradients or 0) + 1

    def refuse(self, loss: float) -> Outcome:
        """Refuse a gradient that is not finite, or raise a `NonFiniteGradientError` by the spec's policy."""
        text = f"the gradient of step {self.global_step + 1} holds NaN or infinity (loss {loss})"
        policy = self._nan_policy
        if policy == NanPolicy.FAIL:
            raise NonFiniteGradientError(text)
        if self.reporter is not None and policy == NanPolicy.REFUSE:
            self.reporter.refused(text)
        return REFUSED

    # As the leader

    @property
    def optimizer(self) -> dict[str, Any]:
        return self.store.optimizer_config

    @property
    def tally(self) -> Open:
        return self.state.tally.open()

    def order(self, order: FitOrder) -> None:
        """Carry out an order at once."""
        with self.lock:
            if order.rows is not None:
                self.state.tally.record(order.open_from, order.rows)
            if order.optimizer is not None:
                if order.stop:
                    self.store.end_at(self.global_step, self.global_step)
                self.store.change(Change(self.global_step, order.optimizer), self.global_step)
                self.state.assign(order.weights or {})

    def save(self, directory: Path | None = None) -> None:
        if directory is not None:
            # In the place of the checkpoint before: the folder is for this one alone.
            only = CheckpointSection(keep=1)
            self.state.saver_into(directory, only, lambda text: None).save_cut()
        elif self.saver is not None:
            self.saver.save_now()

    @property
    def optimizer_state(self) -> OptimizerState | None:
        return self.state.optimizer_state

    def close(self, error: BaseException | None = None) -> None:
        """End it, and write the final checkpoint, where the run has any."""
        if self.saver is not None:
            if error is None or isinstance(error, SystemExit | KeyboardInterrupt):
                self.saver.finish()
            else:
                self.saver.stop()
        if error is None and self.reporter is not None:
            self.reporter.fit_ends()


class LocalReplica(TurnReplica):
    """The memory of one replica of a `LocalTraining`; a strategy adds what `commit` does with it."""

    def __init__(self, training: LocalTraining, rank: int = 0) -> None:
        plan = training.plan
        self.rank = rank
        self.training = training
        self.weights: dict[str, Array] = training.weights
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
        return self.training.deal(self.rank)

    def blocks(self) -> list[Array]:
        """Return the gradient as a server gets it: an array for each group, ids and rows of each table."""
        blocks = [*self._memory.blocks[0], *self._routes.blocks(self.rows)[0]]
        self.rows.clear()
        return blocks


class LocalStrategy(Strategy):
    """A strategy of one process, with the state that it keeps from one `fit` to the next.

    Attributes:
        kind: of its trainings.
        shares: whether its replicas make every step together.
        reporter: None where no launcher asks.
        last: the training that began last.
    """

    kind: type[LocalTraining] = LocalTraining
    shares = False
    last: LocalTraining | None = None

    def __init__(
        self,
        training: TrainingSection | None = None,
        assignment: TaskAssignment | None = None,
        reporter: Reporter | None = None,
        *,
        replicas: int = 1,
    ) -> None:
        """Train by `training`; the one task of a launch has a run directory, for checkpoints and status."""
        self.training = training = training or SingleSection()
        self._section = assignment.spec.checkpoint if assignment is not None else None
        self.reporter = reporter or (Reporter(assignment) if assignment is not None else None)
        run_dir = assignment.run_dir if assignment is not None else None
        folder = RunFiles(run_dir).checkpoints if run_dir is not None else None
        self._beginnings = Beginnings(self._section, folder, self.reporter)
        self.context = TaskContext(
            task=assignment.task if assignment else None,
            num_replicas=replicas,
            directory=run_dir,
            run_id=assignment.run_id if assignment else None,
            seed=training.seed,
            weighs_examples=training.weighs_examples,
            trace=NO_TRACE if self.reporter is None else self.reporter.trace,
            activity=NO_ACTIVITY if self.reporter is None else self.reporter.activity,
        )

    @property
    def num_replicas_in_sync(self) -> int:
        return self.context.num_replicas

    @property
    def _even(self) -> bool:
        """Whether a step does without its last replicas, so that all parts of a batch are of one size."""
        return False

    def make_replicas(self, training: LocalTraining) -> Sequence[TurnReplica]:
        """Return the replicas of a training that begins."""
        return []

    def open(self, problem: Problem) -> Training:
        """Begin a call of `fit`, where the one before it or a checkpoint ended.

        Every batch is cut into a part for each of `num_replicas_in_sync`, unless a checkpoint has begun
        otherwise.
        """
        beginnings = self._beginnings
        beginnings.number += 1
        if (passed := beginnings.passed_over(problem)) is not None:
            return passed
        plan = placement.plan(problem.variables, servers=1)
        section = self.training
        sync = isinstance(section, SynchronousSection)
        cut = BatchCut(self.num_replicas_in_sync, self._even)
        resumes = beginnings.resumes
        start = beginnings.start(
            problem.asked(beginnings.number, plan, cut, sync=sync), plan, problem, resumes=resumes
        ).going_on(cut, problem.max_steps, sync=self.shares)
        training = self.last = self.kind(start, section, self.reporter, shared=self.shares)
        training.constraints = problem.constraints
        beginnings.last = training.state
        training.replicas = self.make_replicas(training)
        self._save_and_report(training, start, resumes=resumes)
        return training

    def in_loop(self, updates: int) -> None:
        if self.reporter is not None:
            self.reporter.in_loop(updates)

    def optimizer_state(self, owner: object) -> OptimizerState | None:
        return self._beginnings.optimizer_state(owner)

    def close(self, error: BaseException | None = None) -> None:
        """End the strategy; the status stays."""
        if self.reporter is not None:
            self.reporter.close()

    def _save_and_report(self, training: LocalTraining, start: Start, *, resumes: bool) -> None:
        """Write the run's own checkpoints from now on, and report to the launcher where training begins."""
        if self._section is None or self.reporter is None or self._beginnings.folder is None:
            return
        reporter = self.reporter
        max_steps = start.state.max_steps
        for text in told_of(start, resumes=resumes):
            reporter.warn(text)
        training.saver = self._beginnings.keeper(training.state, reporter, self._section)
        training.saver.begin(start, save=True)
        reporter.status.max_steps = max_steps
        reporter.progress(training.global_step)
        reporter.fit_begins()
        reporter.running()
