"""Deadlines of a launch, and watches over starts, steps, input and stuck replicas. Pure: time is given.

A dead replica costs the others little: its sockets are at their end, and they go on without it. One that
lives and does nothing, or that is stopped, would hold them up. The launcher has started it, and knows what
every task reports. Rule *No silent wait* (docs/design/protocol.md#no-silent-wait).
"""

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dtrain.cluster import TaskId
from dtrain.config import RunSpec, ServerSection
from dtrain.messages.membership import TaskPhase, TaskStatus, global_step
from dtrain.runs.states import FailureKind, TaskState
from dtrain_cli.launch.policies.ordered_stop import RunStop
from dtrain_cli.launch.tasks import Stuck, TaskLife
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


SILENT_S = 10.0
"""A task that has said nothing for so long stands still itself, whatever it was waiting for before."""
_TASK = re.compile(r"\b(?:chief|worker|ps|evaluator):\d+\b")
_AT = " (at "


def tasks_in(awaited: str) -> list[str]:
    """Return the tasks that a text about a wait names."""
    return _TASK.findall(awaited)


def awaited_in_the_end(statuses: Mapping[str, TaskStatus], now_s: float) -> list[str]:
    """Return the tasks for which the others wait, found by following what each says it waits for.

    Where those who wait do so in a circle, these are the servers at which they wait and get no answer.

    Args:
        statuses: by task, of those that run.
        now_s: the monotonic clock, as in the statuses.
    """
    waiting = {
        task: said.waiting_for
        for task, said in statuses.items()
        if said.waiting_for and now_s - said.monotonic_s < SILENT_S
    }
    reached = {name for whom in waiting.values() for name in tasks_in(whom.partition(_AT)[0])}
    servers = {name for whom in waiting.values() for name in tasks_in(whom.partition(_AT)[2])}
    return sorted(reached - waiting.keys() or servers or reached)


FIRST_WORD_OF_WAITS_S = 2.0
REMEMBERED = 5


@dataclass
class AwaitedWatch:
    """Names the replica that has not delivered, and what, at growing distances.

    Where the last waits were all that long, as in a cluster of slow steps, only one that is twice as long as
    these is told.
    """

    _ended_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _whom: str | None = None
    _waited_s: float = 0.0
    _next_s: float = FIRST_WORD_OF_WAITS_S

    def look(self, statuses: Mapping[str, TaskStatus], now_s: float) -> str | None:
        """Return the line that is due, if any: ``waiting for worker:2, gradient of step 311, 4.1 s``.

        Args:
            statuses: by task, of those that run.
            now_s: the monotonic clock, as in the statuses.
        """
        found = _longest(statuses)
        if found is None or found.waiting_for != self._whom:
            if self._whom is not None and self._waited_s >= FIRST_WORD_OF_WAITS_S:
                self._ended_s.append(self._waited_s)
            usual_s = max(self._ended_s) if len(self._ended_s) == REMEMBERED else 0.0
            self._next_s = max(FIRST_WORD_OF_WAITS_S, 2 * usual_s)
            self._whom = None if found is None else found.waiting_for
        if found is None or found.waiting_monotonic_s is None:
            return None
        self._waited_s = now_s - found.waiting_monotonic_s
        if self._waited_s < self._next_s:
            return None
        self._next_s = 2 * self._waited_s
        return f"waiting for {found.waiting_for}, {self._waited_s:.1f} s"


def _longest(statuses: Mapping[str, TaskStatus]) -> TaskStatus | None:
    """Return the one that waits longest for a replica that neither waits itself nor says what it does."""
    free = {task for task, said in statuses.items() if not said.waiting_for and not said.busy_with}
    waiting = [said for said in statuses.values() if free & set(tasks_in(said.waiting_for or ""))]
    return min(waiting, key=lambda said: said.waiting_monotonic_s or 0.0, default=None)


FIRST_WORD_OF_INPUT_S = 3.0
TOLD_S = 1.0
"""A read is reported only if the task's own last status shows it as lasting this long: a task that was lost
during a read must not be reported as reading."""


@dataclass
class InputWatch:
    """Names each task that waits long for its input, for each read that lasts longer than those before."""

    _next_s: dict[str, float] = field(default_factory=dict)

    def look(self, statuses: Mapping[str, TaskStatus], now_s: float) -> str | None:
        """Return the line that is due, if any: ``worker:0 reads its next batch for 3.1 s``.

        Args:
            statuses: by task, of those that run.
            now_s: the monotonic clock, as in the statuses.
        """
        for task, said in statuses.items():
            if said.reading_monotonic_s is None or now_s - said.monotonic_s >= SILENT_S:
                continue
            if said.monotonic_s - said.reading_monotonic_s < TOLD_S:
                continue
            reads_s = now_s - said.reading_monotonic_s
            if reads_s >= self._next_s.get(task, FIRST_WORD_OF_INPUT_S):
                self._next_s[task] = 2 * reads_s
                return f"{task} reads its next batch for {reads_s:.1f} s"
        return None


@dataclass
class StallWatch:
    """A watch on what the training tasks report of their progress. It reports each stall once.

    Attributes:
        timeout_s: how long no task may have risen its step.
        stalled: where training stands still and whom it waits for, ``stalled at step 412, waiting for
            worker:1``; None: it goes on.
    """

    timeout_s: float
    stalled: str | None = None

    def look(self, statuses: Mapping[str, TaskStatus], now_s: float) -> str | None:
        """Return what to say about a stall that has just become one; None otherwise.

        Args:
            statuses: by task, of those that run.
            now_s: the monotonic clock, as in the statuses.
        """
        training = [
            status
            for task, status in statuses.items()
            if TaskId.parse(task).trains
            and status.phase == TaskPhase.RUNNING
            and status.progress_monotonic_s > 0
        ]
        newest_s = max((status.progress_monotonic_s for status in training), default=now_s)
        before = self.stalled
        self.stalled = None
        if now_s - newest_s >= self.timeout_s:
            step = global_step(statuses.values()) or 0
            whom = ", ".join(awaited_in_the_end(statuses, now_s))
            self.stalled = f"stalled at step {step}" + (f", waiting for {whom}" if whom else "")
        if before or not self.stalled:
            return None
        return f"{self.stalled}: no progress for {self.timeout_s:g} s; the tasks' stacks are in their logs"


FIRST_WORD_OF_START_S = 2.0


@dataclass
class StartWatch:
    """From the second second of a start on it says whom it waits for, at growing distances; at the end, that
    it is over.

    Attributes:
        timeout_s: how long all tasks together may take to be up.
        started_s: when the start began (monotonic).
    """

    timeout_s: float
    started_s: float

    def __post_init__(self) -> None:
        self._next_word_s = FIRST_WORD_OF_START_S

    def word(self, missing: Mapping[TaskId, str | None], now_s: float) -> str | None:
        """Return the line that is due, if any: ``waiting 2 s for worker:2 (waits for ps:0)``.

        Args:
            missing: the tasks that are not up, with what each says it is waiting for.
            now_s: the monotonic clock.
        """
        waited_s = now_s - self.started_s
        if not missing or waited_s < self._next_word_s:
            return None
        self._next_word_s = waited_s * 2
        return f"waiting {waited_s:.0f} s for {_names(missing)}"

    def failure(self, missing: Mapping[TaskId, str | None], now_s: float) -> str | None:
        """Return why the run must be given up, if it must."""
        if not missing or now_s < self.started_s + self.timeout_s:
            return None
        return f"not up within {self.timeout_s:g} s (--start-timeout): {_names(missing)}"


def _names(missing: Mapping[TaskId, str | None]) -> str:
    shown = [f"{task} (waits for {whom})" if whom else str(task) for task, whom in list(missing.items())[:5]]
    return ", ".join(shown) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")


AWAY_S = 5.0
"""A launcher that has not looked for so long was stopped itself, and begins to watch anew."""


def silence_limit_s(spec: RunSpec, stall_s: float) -> float:
    """Return how long a replica may report nothing, whatever it does.

    Servers give up a leader, or a step, that lacks a replica which does not answer. Half of that time is left
    for a replica to be started again.
    """
    limits = [stall_s]
    if isinstance(spec.training, ServerSection):
        limits += [spec.wait.leader_s / 2, spec.training.too_few_timeout_s / 2]
    return max(SILENT_S, min(limits))


@dataclass
class StuckWatch:
    """A watch on what the tasks of a run report.

    Attributes:
        stall_s: how long others wait for a replica that does nothing.
        silence_s: see `silence_limit_s`.
    """

    stall_s: float
    silence_s: float
    _looked_s: float = math.inf
    _seen_s: dict[str, float] = field(default_factory=dict)

    def look(self, statuses: Mapping[str, TaskStatus], now_s: float) -> dict[str, Stuck]:
        """Return the replicas that are stuck.

        One is stuck that has stopped to report while others report; or that others have waited for as long
        as it has read the same batch, or has neither read, computed nor evaluated one in its call of `fit`.
        It is not if it waits itself, or runs a callback or a validation, which may take any time.

        Args:
            statuses: by task, of those that run on hosts which are heard.
            now_s: the monotonic clock, as in the statuses.
        """
        before = self._seen_s if now_s - self._looked_s < AWAY_S else {}
        self._seen_s = {task: before.get(task, now_s) for task in statuses}
        self._looked_s = now_s
        fresh = {task: said for task, said in statuses.items() if now_s - said.monotonic_s < SILENT_S}
        awaited = self._awaited(fresh)
        found = {
            task: self._judged(said, max(said.monotonic_s, self._seen_s[task]), awaited.get(task), now_s)
            for task, said in statuses.items()
            if fresh and TaskId.parse(task).trains and said.phase is TaskPhase.RUNNING
        }
        return {task: stuck for task, stuck in found.items() if stuck is not None}

    def _awaited(self, fresh: Mapping[str, TaskStatus]) -> dict[str, str]:
        """Return the tasks for which others have waited for the stall timeout, each with who has."""
        awaited: dict[str, str] = {}
        for task, said in fresh.items():
            waited_s = said.monotonic_s - max(said.waiting_monotonic_s or math.inf, self._seen_s[task])
            if waited_s >= self.stall_s:
                why = f"{task} has waited {waited_s:.0f} s for {said.waiting_for}, and it "
                awaited |= dict.fromkeys(tasks_in(said.waiting_for or ""), why)
        return awaited

    def _judged(self, said: TaskStatus, heard_s: float, awaited: str | None, now_s: float) -> Stuck | None:
        step = f"at step {said.step or 0}"
        if now_s - heard_s >= self.silence_s:
            silent = f"it has not reported for {now_s - heard_s:.0f} s"
            return Stuck(f"{step}, where its process stood still", silent, heard_s)
        if awaited is None or said.waiting_for or said.busy_with:
            return None
        reading_s, active_s, at_s = said.reading_monotonic_s, said.active_monotonic_s, said.monotonic_s
        if reading_s is not None and at_s - reading_s >= self.stall_s:
            reads = f"{awaited}has read its next batch for {at_s - reading_s:.0f} s"
            return Stuck(f"in its input {step}", reads, reading_s)
        if said.fits_begun > said.fits_ended and at_s - active_s >= self.stall_s:
            return Stuck(f"in its computation {step}", f"{awaited}does nothing", active_s)
        return None
