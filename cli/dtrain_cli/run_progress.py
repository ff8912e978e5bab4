"""How far a run has come, by what its tasks last said of themselves."""

from collections.abc import Mapping

from dtrain.cluster import TaskId
from dtrain.run_files import TaskStatus, global_step
from dtrain_cli.live_table import Row
from dtrain_cli.task_life import TaskLife


class RunProgress:
    """Looks at the supervisor's lives of tasks whenever it is asked."""

    def __init__(self, lives: Mapping[TaskId, TaskLife]) -> None:
        self._lives = lives

    def rows(self) -> list[Row]:
        """What the live table shows."""
        lives = sorted(self._lives.values(), key=lambda life: life.task)
        return [Row(life.task, life.state, life.restarts, life.status) for life in lives]

    @property
    def step(self) -> int | None:
        """The global step; None before anybody has told of one."""
        return global_step(self._statuses())

    @property
    def stale_gradients(self) -> int:
        """How many gradients came too late to count."""
        return sum(status.stale_gradients or 0 for status in self._statuses())

    @property
    def evaluation(self) -> dict[str, float] | None:
        """The evaluation at the furthest step that any task has told of."""
        told = [status.evaluation for status in self._statuses() if status.evaluation]
        return max(told, key=lambda evaluation: evaluation.get("global_step", 0), default=None)

    def _statuses(self) -> list[TaskStatus]:
        return [life.status for life in self._lives.values() if life.status is not None]
