"""Deadlines of a launch: for tasks to be up, for the next step, for the end. Pure: time is an argument."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dtrain.cluster import TaskId
from dtrain.config import RunSpec
from dtrain.messages.status import TaskStatus
from dtrain.runs.states import FailureKind, TaskState
from dtrain_cli.launch.policies.awaited_watch import AwaitedWatch
from dtrain_cli.launch.policies.input_watch import InputWatch
from dtrain_cli.launch.policies.ordered_stop import RunStop
from dtrain_cli.launch.policies.stall_watch import StallWatch
from dtrain_cli.launch.policies.start_watch import StartWatch
from dtrain_cli.launch.policies.stuck_watch import StuckWatch, silence_limit_s
from dtrain_cli.launch.tasks.task_life import Stuck, TaskLife
from dtrain_cli.targets.target import HostNews

TIMEOUT = 124
START_TIMEOUT = 125


@dataclass(frozen=True)
class Limits:
    """The times of one launch, in seconds; `timeout_s` is None for no limit."""

    timeout_s: float | None
    start_timeout_s: float
    stall_timeout_s: float
    grace_s: float
    evaluator_grace_s: float = 60.0


@dataclass(frozen=True)
class Late:
    """A run has to be given up.

    Attributes:
        kind: of the failure; see `FailureRecord`.
        text: why.
        code: the exit code.
        tasks: those that are late.
    """

    kind: FailureKind
    text: str
    code: int
    tasks: Sequence[TaskLife]


class Patience:
    """The judge of what takes too long, by the lives of the tasks."""

    def __init__(
        self, limits: Limits, lives: Mapping[TaskId, TaskLife], started_s: float, spec: RunSpec
    ) -> None:
        self._limits = limits
        self._lives = lives
        self._started_s = started_s
        self._start_watch = StartWatch(limits.start_timeout_s, started_s)
        self._stall_watch = StallWatch(limits.stall_timeout_s)
        silence_s = silence_limit_s(spec, limits.stall_timeout_s)
        self._stuck_watch = StuckWatch(limits.stall_timeout_s, silence_s)
        self._cut_s: dict[str | None, float] = {}
        self._awaited_watch = AwaitedWatch()
        self._input_watch = InputWatch()

    @property
    def stalled(self) -> str | None:
        """Return where training stands still and which tasks it waits for; None: it goes on."""
        return self._stall_watch.stalled

    def late(self, now_s: float, starting: bool, order: RunStop | None) -> Late | None:
        """Return why the run must be given up, if it must.

        Args:
            now_s: the monotonic clock.
            starting: whether some task has not been up yet.
            order: by which the run is being stopped, if it is. After a success the limit of the whole run
                still holds.
        """
        limits = self._limits
        if order is not None and not order.patient:
            return None
        if limits.timeout_s is not None and now_s - self._started_s >= limits.timeout_s:
            stalled = f"; {self.stalled}" if self.stalled else ""
            text = f"not finished within {limits.timeout_s:g} s (--timeout){stalled}"
            return Late(
                FailureKind.TIMEOUT,
                text,
                TIMEOUT,
                [life for life in self._lives.values() if life.has_process],
            )
        if (
            order is None
            and starting
            and (text := self._start_watch.failure(missing := self._missing(), now_s) or "")
        ):
            return Late(
                FailureKind.START_TIMEOUT, text, START_TIMEOUT, [self._lives[task] for task in missing]
            )
        return None

    def word(self, now_s: float) -> str | None:
        """Return what to say about a start that takes long, when it is time to."""
        return self._start_watch.word(self._missing(), now_s)

    def stall(self, now_s: float) -> str | None:
        """Return what to say about a stall that has just become one."""
        return self._stall_watch.look(self._running(), now_s)

    def stuck(self, now_s: float) -> dict[str, Stuck]:
        """Return the replicas that are stuck, by name."""
        for life in self._lives.values():
            if life.status and life.status.monotonic_s > self._cut_s.get(life.host, math.inf):
                del self._cut_s[life.host]
        heard = {task: said for task, said in self._running().items() if self._is_heard(task)}
        return self._stuck_watch.look(heard, now_s)

    def _is_heard(self, task: str) -> bool:
        return self._lives[TaskId.parse(task)].host not in self._cut_s

    def news_of_host(self, news: HostNews, now_s: float) -> None:
        """Note that a host is not heard, or is again: what its tasks do meanwhile is not known."""
        if news.kind in ("silent", "cut"):
            self._cut_s[news.host] = now_s
        elif news.kind in ("heard again", "back", "lost"):
            self._cut_s.pop(news.host, None)

    def awaited(self, now_s: float, *, replicas_alone: bool) -> str | None:
        """Return what to say about what a task waits for, when it is time to.

        Args:
            now_s: the monotonic clock.
            replicas_alone: whether replicas reduce without servers, and name the one that they wait for.
        """
        running = self._running()
        word = self._awaited_watch.look(running, now_s) if replicas_alone else None
        return word or self._input_watch.look(running, now_s)

    def _running(self) -> dict[str, TaskStatus]:
        lives = self._lives.items()
        return {
            str(task): life.status for task, life in lives if life.state == TaskState.RUNNING and life.status
        }

    def _missing(self) -> dict[TaskId, str | None]:
        """Return the tasks that are not up, each with whom it says it waits for."""
        lives = self._lives.items()
        return {
            task: life.status.waiting_for if life.status else None for task, life in lives if not life.is_up
        }
