"""Deadlines of a launch, and watches over starts, steps, input and stuck replicas. Pure: time is given.

A dead replica costs the others little: its sockets are at their end, and they go on without it. One that
lives and does nothing, or that is stopped, would hold them up. The launcher has started it, and knows what
every task reports. Rule *No silent wait* (docs/design/protocol.md#no-silent-wait).
"""

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from dtrain.cluster import TaskId
from dtrain.config import RunSpec, ServerSection
from dtrain.messages.membership import TaskPhase, TaskStatus, global_step
from dtrain.runs.states import FailureKind, TaskState
from dtrain_cli.launch.policies.ordered_stop import RunStop
from dtrain_cli.launch.tasks import Stuck, TaskLife
from dtrain_cli.targets.target import HostNews

TIMEOUT = 124
START_TIMEOUT = 125


class LaunchLimits(msgspec.Struct, frozen=True):
    """The times of one launch, in seconds; `timeout_s` is None for no limit."""

    timeout_s: float | None
    start_timeout_s: float
    stall_timeout_s: float
    grace_s: float


class Late(msgspec.Struct, frozen=True):
    """A run has to be given up, for `text`; `tasks` are those that are late."""

    kind: FailureKind
    text: str
    code: int
    tasks: Sequence[TaskLife]


class Patience:
    """The judge of what takes too long."""

    def __init__(
        self, limits: LaunchLimits, lives: Mapping[TaskId, TaskLife], started_s: float, spec: RunSpec
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
        """Where training stands still and which tasks it waits for; None: it goes on."""
        return self._stall_watch.stalled

    def late(self, now_s: float, starting: bool, order: RunStop | None) -> Late | None:
        """Return why the run must be given up, if it must.

        `starting`: some task has not been up yet. After a success the limit of the whole run still holds.
        """
        limits = self._limits
        if order is not None and not order.patient:
            return None
        if limits.timeout_s is not None and now_s - self._started_s >= limits.timeout_s:
            stalled = f"; {self.stalled}" if self.stalled else ""
            text = f"not finished within {limits.timeout_s:g} s (--timeout){stalled}"
            late = [life for life in self._lives.values() if life.has_process]
            return Late(FailureKind.TIMEOUT, text, TIMEOUT, late)
        if order is None and starting:
            missing = self._missing()
            if failure := self._start_watch.failure(missing, now_s):
                late = [self._lives[task] for task in missing]
                return Late(FailureKind.START_TIMEOUT, failure, START_TIMEOUT, late)
        return None

    def word(self, now_s: float) -> str | None:
        return self._start_watch.word(self._missing(), now_s)

    def stall(self, now_s: float) -> str | None:
        return self._stall_watch.poll(self._running(), now_s)

    def stuck(self, now_s: float) -> dict[str, Stuck]:
        for life in self._lives.values():
            if life.status and life.status.monotonic_s > self._cut_s.get(life.host, math.inf):
                del self._cut_s[life.host]
        answering = {
            task: status
            for task, status in self._running().items()
            if self._lives[TaskId.parse(task)].host not in self._cut_s
        }
        return self._stuck_watch.poll(answering, now_s)

    def news_of_host(self, news: HostNews, now_s: float) -> None:
        """Note that a host is cut off, or answers again; nothing is known of its tasks meanwhile."""
        if news.kind in ("silent", "cut"):
            self._cut_s[news.host] = now_s
        elif news.kind in ("heard again", "back", "lost"):
            self._cut_s.pop(news.host, None)

    def awaited(self, now_s: float, *, replicas_alone: bool) -> str | None:
        """Return the line about what a task waits for, when one is due.

        `replicas_alone`: the replicas reduce without servers, and each names the replica that it waits for.
        """
        running = self._running()
        line = self._awaited_watch.poll(running, now_s) if replicas_alone else None
        return line or self._input_watch.poll(running, now_s)

    def _running(self) -> dict[str, TaskStatus]:
        lives = self._lives.items()
        return {
            str(task): life.status for task, life in lives if life.state == TaskState.RUNNING and life.status
        }

    def _missing(self) -> dict[TaskId, str | None]:
        """Return the tasks that are not up, each with the peer that it waits for."""
        lives = self._lives.items()
        return {
            task: life.status.waiting_for if life.status else None for task, life in lives if not life.is_up
        }


SILENT_S = 10.0
"""A task that has said nothing for so long stands still itself, whatever it was waiting for before."""
_TASK = re.compile(r"\b(?:chief|worker|ps|evaluator):\d+\b")
_AT = " (at "


def tasks_in(awaited: str) -> list[str]:
    return _TASK.findall(awaited)


def awaited_in_the_end(statuses: Mapping[str, TaskStatus], now_s: float) -> list[str]:
    """Return the tasks for which the others wait, found by following what each running task says.

    Where the tasks wait in a circle, these are the servers at which they wait and get no answer.
    """
    waiting = {
        task: status.waiting_for
        for task, status in statuses.items()
        if status.waiting_for and now_s - status.monotonic_s < SILENT_S
    }
    reached = {name for whom in waiting.values() for name in tasks_in(whom.partition(_AT)[0])}
    servers = {name for whom in waiting.values() for name in tasks_in(whom.partition(_AT)[2])}
    return sorted(reached - waiting.keys() or servers or reached)


FIRST_WORD_OF_WAITS_S = 2.0
REMEMBERED = 5


class AwaitedWatch(msgspec.Struct):
    """Names the replica that has not delivered, and what, at growing intervals.

    Where the last waits were all long, as in a cluster of slow steps, only a wait of twice that length is
    reported.
    """

    _ended_s: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _whom: str | None = None
    _waited_s: float = 0.0
    _next_s: float = FIRST_WORD_OF_WAITS_S

    def poll(self, statuses: Mapping[str, TaskStatus], now_s: float) -> str | None:
        """Return the line that is due, if any: ``waiting for worker:2, gradient of step 311, 4.1 s``."""
        # The task that waits longest for a replica that neither waits itself nor says what it does.
        free = {task for task, each in statuses.items() if not each.waiting_for and not each.busy_with}
        waiting = [each for each in statuses.values() if free & set(tasks_in(each.waiting_for or ""))]
        longest = min(waiting, key=lambda each: each.waiting_monotonic_s or 0.0, default=None)
        if longest is None or longest.waiting_for != self._whom:
            if self._whom is not None and self._waited_s >= FIRST_WORD_OF_WAITS_S:
                self._ended_s.append(self._waited_s)
            usual_s = max(self._ended_s) if len(self._ended_s) == REMEMBERED else 0.0
            self._next_s = max(FIRST_WORD_OF_WAITS_S, 2 * usual_s)
            self._whom = None if longest is None else longest.waiting_for
        if longest is None or longest.waiting_monotonic_s is None:
            return None
        self._waited_s = now_s - longest.waiting_monotonic_s
        if self._waited_s < self._next_s:
            return None
        self._next_s = 2 * self._waited_s
        return f"waiting for {longest.waiting_for}, {self._waited_s:.1f} s"


FIRST_WORD_OF_INPUT_S = 3.0
TOLD_S = 1.0
"""A read is reported only if the task's own last status shows it as lasting this long: a task that was lost
during a read must not be reported as reading."""


class InputWatch(msgspec.Struct):
    """Names each task that waits long for its input, once for each read longer than those before."""

    _next_s: dict[str, float] = msgspec.field(default_factory=dict)

    def poll(self, statuses: Mapping[str, TaskStatus], now_s: float) -> str | None:
        """Return the line that is due, if any: ``worker:0 reads its next batch for 3.1 s``."""
        for task, status in statuses.items():
            if status.reading_monotonic_s is None or now_s - status.monotonic_s >= SILENT_S:
                continue
            if status.monotonic_s - status.reading_monotonic_s < TOLD_S:
                continue
            reads_s = now_s - status.reading_monotonic_s
            if reads_s >= self._next_s.get(task, FIRST_WORD_OF_INPUT_S):
                self._next_s[task] = 2 * reads_s
                return f"{task} reads its next batch for {reads_s:.1f} s"
        return None


class StallWatch(msgspec.Struct):
    """Reports a stall once: no task has raised its step for `timeout_s`.

    `stalled` is the present one, ``stalled at step 412, waiting for worker:1``; None: training goes on.
    """

    timeout_s: float
    stalled: str | None = None

    def poll(self, statuses: Mapping[str, TaskStatus], now_s: float) -> str | None:
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
    """From the second second of a start on it names the missing tasks, at growing intervals."""

    timeout_s: float
    started_s: float

    def __post_init__(self) -> None:
        self._next_word_s = FIRST_WORD_OF_START_S

    def word(self, missing: Mapping[TaskId, str | None], now_s: float) -> str | None:
        """Return the line that is due, if any: ``waiting 2 s for worker:2 (waits for ps:0)``."""
        waited_s = now_s - self.started_s
        if not missing or waited_s < self._next_word_s:
            return None
        self._next_word_s = waited_s * 2
        return f"waiting {waited_s:.0f} s for {_names(missing)}"

    def failure(self, missing: Mapping[TaskId, str | None], now_s: float) -> str | None:
        if not missing or now_s < self.started_s + self.timeout_s:
            return None
        return f"not up within {self.timeout_s:g} s (--start-timeout): {_names(missing)}"


def _names(missing: Mapping[TaskId, str | None]) -> str:
    shown = [f"{task} (waits for {whom})" if whom else str(task) for task, whom in list(missing.items())[:5]]
    return ", ".join(shown) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")


AWAY_S = 5.0
"""A launcher that has not polled for so long was stopped itself, and begins to watch anew."""


def silence_limit_s(spec: RunSpec, stall_s: float) -> float:
    """Return how long a replica may report nothing, whatever it does.

    Servers give up a leader, or a step, that lacks a replica which does not answer. Half of that time is left
    for a restart of the replica.
    """
    limits = [stall_s]
    if isinstance(spec.training, ServerSection):
        limits += [spec.wait.leader_s / 2, spec.training.too_few_timeout_s / 2]
    return max(SILENT_S, min(limits))


class StuckWatch(msgspec.Struct):
    """Finds replicas that others wait for during `stall_s`, or that report nothing during `silence_s`."""

    stall_s: float
    silence_s: float
    _polled_s: float = math.inf
    _seen_s: dict[str, float] = msgspec.field(default_factory=dict)

    def poll(self, statuses: Mapping[str, TaskStatus], now_s: float) -> dict[str, Stuck]:
        """Return the replicas that are stuck.

        One is stuck that has stopped to report while others report; or that others have waited for as long
        as it has read the same batch, or has neither read, computed nor evaluated one in its call of `fit`.
        It is not if it waits itself, or runs a callback or a validation, which may take any time.

        `statuses` are those of the running tasks whose hosts answer, by the monotonic clock of `now_s`.
        """
        before = self._seen_s if now_s - self._polled_s < AWAY_S else {}
        self._seen_s = {task: before.get(task, now_s) for task in statuses}
        self._polled_s = now_s
        fresh = {task: status for task, status in statuses.items() if now_s - status.monotonic_s < SILENT_S}
        awaited = self._awaited(fresh)
        found = {
            task: self._judged(status, max(status.monotonic_s, self._seen_s[task]), awaited.get(task), now_s)
            for task, status in statuses.items()
            if fresh and TaskId.parse(task).trains and status.phase is TaskPhase.RUNNING
        }
        return {task: stuck for task, stuck in found.items() if stuck is not None}

    def _awaited(self, fresh: Mapping[str, TaskStatus]) -> dict[str, str]:
        """Return the tasks for which others have waited for `stall_s`, each with the text that says so."""
        awaited: dict[str, str] = {}
        for task, status in fresh.items():
            waited_s = status.monotonic_s - max(status.waiting_monotonic_s or math.inf, self._seen_s[task])
            if waited_s >= self.stall_s:
                why = f"{task} has waited {waited_s:.0f} s for {status.waiting_for}, and it "
                awaited |= dict.fromkeys(tasks_in(status.waiting_for or ""), why)
        return awaited

    def _judged(self, status: TaskStatus, heard_s: float, awaited: str | None, now_s: float) -> Stuck | None:
        step = f"at step {status.step or 0}"
        if now_s - heard_s >= self.silence_s:
            silent = f"it has not reported for {now_s - heard_s:.0f} s"
            return Stuck(f"{step}, where its process stood still", silent, heard_s)
        if awaited is None or status.waiting_for or status.busy_with:
            return None
        reading_s, active_s, at_s = status.reading_monotonic_s, status.active_monotonic_s, status.monotonic_s
        if reading_s is not None and at_s - reading_s >= self.stall_s:
            reads = f"{awaited}has read its next batch for {at_s - reading_s:.0f} s"
            return Stuck(f"in its input {step}", reads, reading_s)
        if status.fits_begun > status.fits_ended and at_s - active_s >= self.stall_s:
            return Stuck(f"in its computation {step}", f"{awaited}does nothing", active_s)
        return None
