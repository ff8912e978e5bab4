"""The hints of a launch: what settings and waits cost, said once, when the run has measured it."""

from collections.abc import Iterator, Mapping

from dtrain.cluster import Role, TaskId
from dtrain.config import RunSpec
from dtrain.runs.files import SavedRecord
from dtrain_cli.launch.tasks.task_life import TaskLife
from dtrain_cli.runs.task_chaos import cost_of_slowness

UNSAVED_S = 10.0
"""For how long a run makes steps without a checkpoint before that is said."""


class Hints:
    """The hints of one run, each of which is given once."""

    def __init__(self, spec: RunSpec, lives: Mapping[TaskId, TaskLife]) -> None:
        """Begin; without any `lives`, as of a run that has had its hints, there is none."""
        self._lives = lives
        self._replicas = spec.replicas
        self._slow = {task: factor for task in lives if (factor := spec.simulate.slowness(task)) > 1}
        self._unsaved = any(task.role is Role.PS for task in lives)
        self._trains_since_s: float | None = None

    def look(self, saved: SavedRecord | None, step: int | None, now_s: float) -> Iterator[str]:
        """Yield the hints that are due.

        Args:
            saved: the newest checkpoint; None: there is none.
            step: the global step; None before any task has reported one.
            now_s: seconds, by any clock.
        """
        said = {task: life.status for task, life in self._lives.items() if life.status is not None}
        if self._replicas > 1 and any(status.staleness_mean is not None for status in said.values()):
            yield (
                f"{self._replicas} replicas update asynchronously: expect a staleness of about "
                f"{self._replicas - 1} steps; lower the learning rate if the loss rises or jumps"
            )
            self._replicas = 0
        for task in sorted(self._slow.keys() & said):
            if cost := cost_of_slowness(said[task], self._slow[task]):
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
