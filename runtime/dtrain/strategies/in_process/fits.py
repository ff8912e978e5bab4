"""The calls of `fit` of one process, one after the other: where each starts, and where it is saved."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from dtrain import checkpoints
from dtrain.checkpoints import OptimizerState
from dtrain.config import TrainingSection
from dtrain.parameters import placement
from dtrain.process.assignment import TaskAssignment
from dtrain.process.clock import SYSTEM
from dtrain.protocol.batch_cut import BatchCut
from dtrain.roles.chief.generation import Generation
from dtrain.roles.chief.keeper.machine import Keeping
from dtrain.roles.chief.keeper.thread import KeeperThread
from dtrain.roles.chief.machine import CheckpointSchedule
from dtrain.roles.chief.recovery import Beginning, beginning
from dtrain.roles.chief.start import Start, fetch_newest, fresh, restored, saved_generation
from dtrain.runs.files import RunFiles
from dtrain.runs.reporting import Reporter
from dtrain.strategies.in_process.training import LocalTraining
from dtrain.strategies.interface import Replica, Training
from dtrain.strategies.passed_over import PassedOverTraining
from dtrain.strategies.problem import Problem

MakeReplicas = Callable[[LocalTraining], Sequence[Replica]]


class LocalFits:
    """The state that one process keeps from one `fit` to the next.

    Attributes:
        reporter: None where no launcher asks how training stands.
        last: the training that began last.
    """

    def __init__(self, training: TrainingSection, assignment: TaskAssignment | None = None) -> None:
        """Train by `training`; the one task of a launch has a run directory, for checkpoints and status."""
        self._training = training
        self._assignment = assignment
        self.reporter = Reporter(assignment) if assignment is not None else None
        run_dir = assignment.run_dir if assignment is not None else None
        self._folder = RunFiles(run_dir).checkpoints if run_dir is not None else None
        self._number = 0
        self.last: LocalTraining | None = None
        self._owner: object = None

    def open(self, problem: Problem, make_replicas: MakeReplicas, parts: int = 1) -> Training:
        """Begin a call of `fit`, where the one before it or a checkpoint ended.

        Args:
            problem: what is trained.
            make_replicas: makes the replicas of a training.
            parts: into how many every batch is cut.
        """
        self._number += 1
        if self.last is None and (passed := self._passed_over(problem)) is not None:
            return passed
        generation = Generation(
            self._number,
            placement.plan(problem.variables, servers=1),
            self._training,
            problem.optimizer,
            problem.max_steps,
            BatchCut(parts),
            problem.model,
            problem.steps_per_epoch,
            problem.first_epoch,
            problem.alone,
            problem.feed,
        )
        resumes = self._resumes()
        start = self._start(generation, problem)
        self._owner = problem.owner
        generation = replace(generation, max_steps=start.lineage.first_step + problem.max_steps)
        training = self.last = LocalTraining(generation, start, self.reporter, parts)
        training.replicas = make_replicas(training)
        self._save_and_report(training, start, resumes=resumes)
        return training

    def optimizer_state(self, owner: object) -> OptimizerState | None:
        """See `Strategy.optimizer_state`."""
        return self.last.optimizer_state if self.last is not None and owner is self._owner else None

    def _passed_over(self, problem: Problem) -> Training | None:
        """Return the training of a `fit` that had ended before this program was started again."""
        if self._folder is None:
            return None
        if self._assignment is not None and self.reporter is not None:
            fetch_newest(self._assignment.spec.checkpoint, self._folder, self.reporter.warn)
        if beginning(self._number, [], saved_generation(self._folder)) is not Beginning.PASS_OVER:
            return None
        self._owner = problem.owner
        return PassedOverTraining(problem, self._number, self._folder)

    def _resumes(self) -> bool:
        """Return whether the run itself has a checkpoint to go on from."""
        if self.last is not None or self._folder is None:
            return False
        return bool(checkpoints.list_checkpoints(self._folder))

    def _start(self, generation: Generation, problem: Problem) -> Start:
        plan = generation.plan
        optimizer = problem.optimizer
        if self.last is not None:
            return self.last.continuation(generation, problem, same_owner=problem.owner is self._owner)
        if self._folder is not None and self._resumes():
            return restored(self._folder, plan, optimizer, problem.feed, by_server=False)
        if problem.resume_from is not None:
            return restored(problem.resume_from, plan, optimizer, problem.feed, by_server=False)
        return fresh(plan, optimizer, problem.initial_values(), state=problem.state)

    def _save_and_report(self, training: LocalTraining, start: Start, *, resumes: bool) -> None:
        """Write the run's own checkpoints from now on, and tell the launcher where training begins."""
        if self._assignment is None or self.reporter is None or self._folder is None:
            return
        section = self._assignment.spec.checkpoint
        reporter = self.reporter
        max_steps = training.generation.max_steps
        for text in [
            *([start.warning] if start.warning else []),
            *(start.where(max_steps) if resumes else []),
        ]:
            reporter.warn(text)
        saver = training.saver_into(self._folder, section, reporter.warn, reporter.tried_to_save)
        keeping = Keeping(CheckpointSchedule(section, SYSTEM.now(), -1), max_steps=0)
        training.saver = KeeperThread(keeping, saver, reporter.warn, reporter.trace)
        training.saver.begin(start, save=True)
        reporter.status.max_steps = max_steps
        reporter.progress(training.global_step)
        reporter.fit_begins()
        reporter.running()
