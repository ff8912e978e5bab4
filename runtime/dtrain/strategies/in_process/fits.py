"""The calls of `fit` of one process, one after the other: where each starts, and where it is saved."""

from collections.abc import Callable, Sequence

from dtrain.checkpoints import OptimizerState
from dtrain.config import SynchronousSection, TrainingSection
from dtrain.parameters import placement
from dtrain.process.assignment import TaskAssignment
from dtrain.roles.chief.start import Start
from dtrain.runs.files import RunFiles
from dtrain.runs.reporting import Reporter
from dtrain.state.batch_cut import UNCUT, BatchCut
from dtrain.strategies.beginnings import Beginnings, told_of
from dtrain.strategies.in_process.training import LocalTraining
from dtrain.strategies.interface import Replica, Training
from dtrain.strategies.problem import Problem

MakeReplicas = Callable[[LocalTraining], Sequence[Replica]]


class LocalFits:
    """The state that one process keeps from one `fit` to the next.

    Attributes:
        reporter: None where no launcher asks how training stands.
        last: the training that began last.
    """

    def __init__(
        self,
        training: TrainingSection,
        assignment: TaskAssignment | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        """Train by `training`; the one task of a launch has a run directory, for checkpoints and status.

        Args:
            training: the rules.
            assignment: the task's place; None: it trains alone.
            reporter: the task's own, if it has one already.
        """
        self._training = training
        self._section = assignment.spec.checkpoint if assignment is not None else None
        self.reporter = reporter or (Reporter(assignment) if assignment is not None else None)
        run_dir = assignment.run_dir if assignment is not None else None
        folder = RunFiles(run_dir).checkpoints if run_dir is not None else None
        self._saves = folder is not None
        self._beginnings = Beginnings(self._section, folder, self.reporter)
        self.last: LocalTraining | None = None

    def open(
        self,
        problem: Problem,
        make_replicas: MakeReplicas,
        cut: BatchCut = UNCUT,
        *,
        shared: bool = False,
    ) -> Training:
        """Begin a call of `fit`, where the one before it or a checkpoint ended.

        Args:
            problem: what is trained.
            make_replicas: makes the replicas of a training.
            cut: how every batch is cut into parts, unless a checkpoint has begun otherwise.
            shared: whether replicas make every step together; see `LocalTraining`.
        """
        beginnings = self._beginnings
        beginnings.number += 1
        if (passed := beginnings.passed_over(problem)) is not None:
            return passed
        plan = placement.plan(problem.variables, servers=1)
        sync = isinstance(self._training, SynchronousSection)
        resumes = beginnings.resumes
        start = beginnings.start(
            problem.asked(beginnings.number, plan, cut, sync=sync), plan, problem, resumes=resumes
        ).going_on(cut, problem.max_steps, sync=shared)
        training = self.last = LocalTraining(start, self._training, self.reporter, shared=shared)
        beginnings.last = training.state
        training.replicas = make_replicas(training)
        self._save_and_report(training, start, resumes=resumes)
        return training

    def in_loop(self, updates: int) -> None:
        """See `OwnLoops.in_loop`."""
        if self.reporter is not None:
            self.reporter.in_loop(updates)

    def optimizer_state(self, owner: object) -> OptimizerState | None:
        """See `Strategy.optimizer_state`."""
        return self._beginnings.optimizer_state(owner)

    def _save_and_report(self, training: LocalTraining, start: Start, *, resumes: bool) -> None:
        """Write the run's own checkpoints from now on, and tell the launcher where training begins."""
        if self._section is None or self.reporter is None or not self._saves:
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
