"""The calls of `fit` of one process, as their leader sees them: where each begins, and what keeps it."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dtrain import checkpoints
from dtrain.checkpoints import OptimizerState
from dtrain.config import CheckpointSection
from dtrain.parameters.placement import Plan
from dtrain.process.clock import SYSTEM
from dtrain.roles.chief.keeper_thread import KeeperThread
from dtrain.roles.chief.machine import Beginning, CheckpointSchedule, Keeping, beginning
from dtrain.roles.chief.start import Start, continued, fetch_newest, fresh, restored, saved_generation
from dtrain.runs.reporting import Reporter
from dtrain.state.fit_state import FitState
from dtrain.strategies.in_process.fit_holder import FitHolder
from dtrain.strategies.interface import Problem, Training
from dtrain.strategies.passed_over import PassedOverTraining


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
        """Begin with the checkpoints of a folder; `section` is None where nothing is saved."""
        self._section = section
        self.folder = folder
        self._reporter = reporter
        self.number = 0
        self.last: FitHolder | None = None
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
        """Return the next call of `fit`, whose leader has died before it began, as it would have begun.

        The optimizer's numbers are those of that leader's callbacks, unless the program has set others since.
        """
        goes_on = problem.owner is self._owner and problem.optimizer == self._said
        if self.last is None or not goes_on:
            return problem
        return replace(problem, optimizer=self.last.store.optimizer_config)

    @property
    def resumes(self) -> bool:
        """Whether the run itself has a checkpoint to go on from."""
        if self.last is not None or self.folder is None:
            return False
        return bool(checkpoints.list_checkpoints(self.folder))

    def start(
        self, asked: FitState, plan: Plan, problem: Problem, *, resumes: bool, by_server: bool = False
    ) -> Start:
        """Return where this `fit` starts: the end of the one before, a checkpoint, or its first values.

        `asked` is its state at step 0; `resumes`: the run's own checkpoint is of this `fit`; `by_server`:
        servers may begin with different batches.
        """
        same_owner = problem.owner is self._owner
        self._owner = problem.owner
        if self.last is not None and (problem.resume_from is None or self.folder is not None):
            return self.last.continuation(asked, plan, problem, same_owner=same_owner)
        if self.folder is not None and resumes:
            return restored(self.folder, plan, asked, by_server=by_server)
        # A call before this one that has failed has left no checkpoint.
        if self.folder is not None and self.number > 1 and checkpoints.list_checkpoints(self.folder):
            values, state = problem.initial_values(), problem.state
            return continued(self.folder, plan, asked, values, state, same_owner=same_owner)
        if problem.resume_from is not None:
            start = restored(problem.resume_from, plan, asked, by_server=by_server)
            ended = start.state.history.get(saved_generation(problem.resume_from), {})
            return start.but(history={asked.generation: ended})
        return fresh(asked, plan, problem.initial_values(), state=problem.state)

    def keeper(
        self, state: FitHolder, reporter: Reporter, section: CheckpointSection, patience_s: float = 0.0
    ) -> KeeperThread:
        """Return the thread that writes the run's own checkpoints of a `fit`, which has a folder for them.

        What is saved may be away for `patience_s` at the end.
        """
        assert self.folder is not None, "a run that saves has a directory"
        saver = state.saver_into(self.folder, section, reporter.warn, reporter.tried_to_save)
        keeping = Keeping(CheckpointSchedule(section, SYSTEM.now(), -1), max_steps=0, patience_s=patience_s)
        return KeeperThread(keeping, saver, reporter.warn, reporter.trace)

    def optimizer_state(self, owner: object) -> OptimizerState | None:
        return self.last.optimizer_state if self.last is not None and self.is_of(owner) else None

    def is_of(self, owner: object) -> bool:
        """Return whether the last `fit` was of this owner; see `Problem.owner`."""
        return owner is self._owner


def told_of(start: Start, *, resumes: bool) -> list[str]:
    """Return what a user should know of where training starts."""
    warning = [start.warning] if start.warning else []
    return [*warning, *(start.where() if resumes else [])]
