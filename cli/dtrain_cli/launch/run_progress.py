"""The progress of a run, by the last status of each task, and hints of what settings and waits cost."""

from collections.abc import Callable, Iterator, Mapping

from dtrain.cluster import Role, TaskId
from dtrain.config import PipelineSection, RunSpec
from dtrain.messages.membership import TaskStatus, global_step
from dtrain.runs.files import SavedRecord
from dtrain_cli.launch.tasks import TaskLife
from dtrain_cli.runs.advice import Row
from dtrain_cli.runs.faults import cost_of_slowness


class RunProgress:
    """The progress of a run, read at each call from the lives of its tasks and the joined workers."""

    def __init__(self, lives: Mapping[TaskId, TaskLife], joined: Callable[[], list[Row]]) -> None:
        self._lives = lives
        self._joined = joined
        self._cannot_save = False
        self._rolled_back = 0

    def rows(self) -> list[Row]:
        lives = self._lives.values()
        rows = [Row(life.task, life.state, life.restarts, life.status) for life in lives]
        return sorted((*rows, *self._joined()), key=lambda row: row.task)

    @property
    def step(self) -> int | None:
        """The global step; None before any task has reported one."""
        return global_step(self._statuses())

    def news_of_saving(self) -> tuple[str, str, dict[str, str | int]] | None:
        """Return a line, and an event of the journal, when checkpoints cannot be saved, or can be again."""
        reason = next((status.unsaved for status in self._statuses() if status.unsaved), None)
        if reason and not self._cannot_save:
            self._cannot_save = True
            return f"checkpoints can no longer be saved: {reason}", "unsaved", {"message": reason}
        # None: of a leader that has just been started again
        step = next((each.saved_step for each in self._statuses() if each.saved_step is not None), None)
        if reason or step is None or not self._cannot_save:
            return None
        self._cannot_save = False
        return f"checkpoints are saved again: the last one is of step {step}", "saved again", {"step": step}

    @property
    def saved(self) -> tuple[int, TaskLife] | None:
        saved = [
            (life.status.saved_step, life)
            for life in self._lives.values()
            if life.status is not None and life.status.saved_step is not None
        ]
        return max(saved, key=lambda each: each[0], default=None)

    def rolled_back(self) -> int:
        """Return how many steps were rolled back since the last call."""
        before = self._rolled_back
        self._rolled_back = max([before, *(status.rolled_back_steps for status in self._statuses())])
        return self._rolled_back - before

    @property
    def local_steps(self) -> int | None:
        """In local steps, how many the run has made; a step is a round of them."""
        return max(
            (each.local_steps for each in self._statuses() if each.local_steps is not None), default=None
        )

    @property
    def stale_gradients(self) -> int:
        return sum(status.stale_gradients or 0 for status in self._statuses())

    @property
    def evaluation(self) -> dict[str, float] | None:
        """The evaluation at the furthest step that any task has reported."""
        reported = [status.evaluation for status in self._statuses() if status.evaluation]
        return max(reported, key=lambda evaluation: evaluation.get("global_step", 0), default=None)

    def _statuses(self) -> list[TaskStatus]:
        there: list[TaskLife | Row] = [*self._lives.values(), *self._joined()]
        return [each.status for each in there if each.status is not None]


UNSAVED_S = 10.0
"""For how long a run makes steps without a checkpoint before that is said."""


class Hints:
    """The hints of one run, each of which is given once."""

    def __init__(self, spec: RunSpec, lives: Mapping[TaskId, TaskLife]) -> None:
        """Without any `lives`, as of a run that has had its hints, there is no hint."""
        self._lives = lives
        self._replicas = 1 if isinstance(spec.training, PipelineSection) else spec.replicas
        self._slow = {task: factor for task in lives if (factor := spec.simulate.slowness(task)) > 1}
        self._unsaved = any(task.role is Role.PS for task in lives)
        self._trains_since_s: float | None = None

    def due(self, saved: SavedRecord | None, step: int | None, now_s: float) -> Iterator[str]:
        statuses = {task: life.status for task, life in self._lives.items() if life.status is not None}
        if self._replicas > 1 and any(status.staleness_mean is not None for status in statuses.values()):
            yield (
                f"{self._replicas} replicas update asynchronously: expect a staleness of about "
                f"{self._replicas - 1} steps; lower the learning rate if the loss rises or jumps"
            )
            self._replicas = 0
        for task in sorted(self._slow.keys() & statuses):
            if cost := cost_of_slowness(statuses[task], self._slow[task]):
                yield f"simulate.slow: {task} computes {self._slow.pop(task):g} times slower: {cost}"
        if not self._unsaved or not step:
            return
        if self._trains_since_s is None:
            self._trains_since_s = now_s
        if saved is not None and saved.step:
            self._unsaved = False
        elif now_s - self._trains_since_s >= UNSAVED_S:
            self._unsaved = False
            yield (
                f"no checkpoint yet: a server's death now costs all {step:,} steps; "
                "--set checkpoint.every_steps=N saves more often"
            )
