"""The calls of `fit` of one process that holds the variables: where each begins, and what keeps it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from dtrain import checkpoints
from dtrain.checkpoints import OptimizerState
from dtrain.config import CheckpointSection, TrainingSection
from dtrain.parameters import placement
from dtrain.parameters.placement import Plan
from dtrain.process.clock import SYSTEM
from dtrain.protocol.batch_cut import BatchCut
from dtrain.roles.chief.generation import Generation
from dtrain.roles.chief.keeper.machine import Keeping
from dtrain.roles.chief.keeper.thread import KeeperThread
from dtrain.roles.chief.machine import CheckpointSchedule
from dtrain.roles.chief.recovery import Beginning, beginning
from dtrain.roles.chief.start import Start, fetch_newest, fresh, restored, saved_generation
from dtrain.runs.reporting import Reporter
from dtrain.strategies.in_process.fit_state import FitState
from dtrain.strategies.interface import Training
from dtrain.strategies.passed_over import PassedOverTraining
from dtrain.strategies.problem import Problem


class Beginnings:
    """The state that one process keeps from one `fit` to the next.

    Attributes:
        number: of the call of `fit` that began last.
        last: its state; None before the first that trains.
        folder: of the run's own checkpoints; None where there are none.
    """

    def __init__(
        self, section: CheckpointSection | None, folder: Path | None, reporter: Reporter | None
    ) -> None:
        """Begin with the checkpoints of a folder.

        Args:
            section: when to save, and where else; None where nothing is saved.
            folder: see above.
            reporter: told of them.
        """
        self._section = section
        self.folder = folder
        self._reporter = reporter
        self.number = 0
        self.last: FitState | None = None
        self._owner: object = None
        self._said: dict[str, Any] | None = None

    def passed_over(self, problem: Problem) -> Training | None:
        """Return the training of this `fit` if it had ended before this program was started again."""
        if self.last is not None or self.folder is None:
            return None
        if self._section is not None and self._reporter is not None:
            fetch_newest(self._section, self.folder, self._reporter.warn)
        if beginning(self.number, [], saved_generation(self.folder)) is not Beginning.PASS_OVER:
            return None
        self._owner = problem.owner
        return PassedOverTraining(problem, self.number, self.folder)

    def follow(self, problem: Problem) -> None:
        """Take part in a call of `fit` that another process begins."""
        self._owner = problem.owner
        self._said = problem.optimizer

    def taken_over(self, problem: Problem) -> Problem:
        """Return the next call of `fit`, which that process does not live to begin, as it would have begun.

        The optimizer's numbers are those that its callbacks have set, unless the program has set others
        since.
        """
        goes_on = problem.owner is self._owner and problem.optimizer == self._said
        if self.last is None or not goes_on:
            return problem
        return replace(problem, optimizer=self.last.store.optimizer_config)

    def generation(
        self, problem: Problem, training: TrainingSection, cut: BatchCut, plan: Plan | None = None
    ) -> Generation:
        """Return the subject of this `fit`, as if it began at step 0; by default with its variables on one
        server.
        """
        return Generation(
            self.number,
            placement.plan(problem.variables, servers=1) if plan is None else plan,
            training,
            problem.optimizer,
            problem.max_steps,
            cut,
            problem.model,
            problem.steps_per_epoch,
            problem.first_epoch,
            problem.alone,
            problem.feed,
        )

    @property
    def resumes(self) -> bool:
        """Whether the run itself has a checkpoint to go on from."""
        if self.last is not None or self.folder is None:
            return False
        return bool(checkpoints.list_checkpoints(self.folder))

    def start(self, generation: Generation, problem: Problem) -> Start:
        """Return where this `fit` starts."""
        plan = generation.plan
        optimizer = problem.optimizer
        same_owner = problem.owner is self._owner
        self._owner = problem.owner
        if self.last is not None and (problem.resume_from is None or self.folder is not None):
            return self.last.continuation(generation, problem, same_owner=same_owner)
        if self.folder is not None and self.resumes:
            return restored(self.folder, plan, optimizer, problem.feed, by_server=False)
        if problem.resume_from is not None:
            start = restored(problem.resume_from, plan, optimizer, problem.feed, by_server=False)
            ended = start.history.get(saved_generation(problem.resume_from), {})
            return replace(start, history={generation.number: ended})
        return fresh(plan, optimizer, problem.initial_values(), state=problem.state)

    def keeper(self, state: FitState, reporter: Reporter, section: CheckpointSection) -> KeeperThread:
        """Return what writes the run's own checkpoints of a `fit`, which has a folder for them."""
        assert self.folder is not None, "a run that saves has a directory"
        saver = state.saver_into(self.folder, section, reporter.warn, reporter.tried_to_save)
        keeping = Keeping(CheckpointSchedule(section, SYSTEM.now(), -1), max_steps=0)
        return KeeperThread(keeping, saver, reporter.warn, reporter.trace)

    def optimizer_state(self, owner: object) -> OptimizerState | None:
        """See `Strategy.optimizer_state`."""
        return self.last.optimizer_state if self.last is not None and owner is self._owner else None


def told_of(start: Start, max_steps: int, *, resumes: bool) -> list[str]:
    """Return what a user should know of where training starts."""
    warning = [start.warning] if start.warning else []
    return [*warning, *(start.where(max_steps) if resumes else [])]
