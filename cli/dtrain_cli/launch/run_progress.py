"""The progress of a run, by the last status of each task."""

from collections.abc import Mapping

from dtrain.cluster import TaskId
from dtrain.messages.status import TaskStatus, global_step
from dtrain_cli.console.live_table import Row
from dtrain_cli.launch.tasks.task_life import TaskLife


class RunProgress:
    """The progress of a run, read from the supervisor's lives of tasks at each call."""

    def __init__(self, lives: Mapping[TaskId, TaskLife]) -> None:
        self._lives = lives

    def rows(self) -> list[Row]:
        """Return the rows of the live table."""
        lives = sorted(self._lives.values(), key=lambda life: life.task)
        return [Row(life.task, life.state, life.restarts, life.status) for life in lives]

    @property
    def step(self) -> int | None:
        """Return the global step; None before any task has reported one."""
        return global_step(self._statuses())

    @property
    def unsaved(self) -> str | None:
        """Return why no checkpoint is saved any more; None: the last one was saved."""
        return next((status.unsaved for status in self._statuses() if status.unsaved), None)

    @property
    def saved_step(self) -> int | None:
        """Return the step of the last checkpoint of the leader's present attempt; None before its first."""
        return next((status.saved_step for status in self._statuses() if status.saved_step is not None), None)

    @property
    def stale_gradients(self) -> int:
        """Return how many gradients came too late to count."""
        return sum(status.stale_gradients or 0 for status in self._statuses())

    @property
    def evaluation(self) -> dict[str, float] | None:
        """Return the evaluation at the furthest step that any task has reported."""
        told = [status.evaluation for status in self._statuses() if status.evaluation]
        return max(told, key=lambda evaluation: evaluation.get("global_step", 0), default=None)

    def _statuses(self) -> list[TaskStatus]:
        return [life.status for life in self._lives.values() if life.status is not None]
