"""The success of a run as its supervisor asks for it: by the task that leads now, and the spec in force."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from dtrain.cluster import TaskId
from dtrain.config import RunSpec
from dtrain.config.choices import On
from dtrain.errors import RunError, SpecError
from dtrain.runs.files import FailureRecord, read_record
from dtrain.runs.states import TaskState
from dtrain_cli.launch.policies import success_rule
from dtrain_cli.launch.tasks.task_life import TaskLife


class Success:
    """The judge of a run's success.

    Attributes:
        leader_changes: whether another replica leads when the one that leads has died.
    """

    def __init__(
        self, spec: RunSpec, spec_file: Path, leader: TaskId, foreign: bool, lives: Mapping[TaskId, TaskLife]
    ) -> None:
        """Judge by the lives of the tasks; `leader` is the one that leads at the beginning."""
        self.leader_changes = success_rule.leader_changes(spec, foreign)
        self._spec = spec
        self._spec_file = spec_file
        self._first = leader
        self._foreign = foreign
        self._lives = lives

    @property
    def leader(self) -> TaskId:
        """The task that leads; one that has died is the leader until another one says that it leads."""
        if not self.leader_changes:
            return self._first
        leading = [life for life in self._lives.values() if life.status is not None and life.status.leads]
        there = [life.task for life in leading if not life.ended]
        done = [life.task for life in leading if life.state == TaskState.SUCCEEDED]
        return next(iter([*there, *done]), self._first)

    @property
    def achieved(self) -> bool:
        """Whether the run has succeeded."""
        leader = self.leader
        heirs = self.leader_changes and not self.stands_and_falls_with(leader)
        return success_rule.has_succeeded(self._spec, leader, self._states, heirs)

    def stands_and_falls_with(self, task: TaskId) -> bool:
        """Return whether the others end with a task: it is in a loop of the program's own.

        Such a loop has no heirs: rule *Calls* (docs/design/collectives.md#calls).
        """
        said = self._lives[task].status
        return self.leader_changes and task.trains and said is not None and said.in_loop

    def needed_in_a_loop(self, task: TaskId) -> bool:
        """Return whether a task is in a loop of the program's own, or others are: they need every replica."""
        others = (life.status for life in self._lives.values() if life.task.trains and not life.ended)
        in_loop = (
            self.leader_changes and task.trains and any(said is not None and said.in_loop for said in others)
        )
        return in_loop or self.stands_and_falls_with(task)

    def without(self, lost: TaskId, why: FailureRecord) -> bool:
        """Return whether the run goes on although a task has failed for good.

        The spec is every replica's: what is wrong with it for one, each of the others would find in its turn.
        """
        of_the_spec = lost.trains and why.error_type == SpecError.__name__
        if (of_the_spec or self.needed_in_a_loop(lost)) and not self.achieved:
            return False
        if self._spec.on is not On.LOCAL and lost == self.leader and not self._trains_without(lost):
            return False  # tasks on other hosts cannot read who has failed for good: they would wait for it
        return success_rule.survives_without(self._in_force(), self.leader, lost, self._states, self._foreign)

    def _trains_without(self, lost: TaskId) -> bool:
        """Return whether another replica has come so far as to train."""
        return any(life.is_up for life in self._lives.values() if life.task.trains and life.task != lost)

    @property
    def _states(self) -> dict[TaskId, TaskState]:
        return {task: life.state for task, life in self._lives.items()}

    def _in_force(self) -> RunSpec:
        """Return the spec with the program's wishes, as its leader writes it; before that our own."""
        with contextlib.suppress(RunError, OSError):
            return read_record(self._spec_file, RunSpec) or self._spec
        return self._spec
