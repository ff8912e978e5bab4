"""The launcher's knowledge of each task of a run: its life, its failures, its place in training.

A task that dies of an exception leaves a record. For every other death the launcher writes one: the signal
by name, the last lines of the output, and whether the kernel killed it for memory.
"""

import contextlib
import os
import re
import signal
import sysconfig
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

import dtrain
from dtrain.cluster import TaskId
from dtrain.errors import RunError
from dtrain.messages.membership import TaskPhase, TaskStatus
from dtrain.process.start_protocol import Exited
from dtrain.runs.files import FailureRecord, KillRequest, RunFiles, TaskRecord, read_record, read_sound
from dtrain.runs.journal import now_text
from dtrain.runs.states import ENDED, HAS_PROCESS, FailureKind, TaskState
from dtrain_cli.plan.run_plan import TaskLaunch
from dtrain_cli.targets.target import TaskHandle

LAST_LINES = 20
LINE_MAX = 400
TAIL_BYTES = 1 << 16


def failure_of(launch: TaskLaunch, end: Exited, why: str | None = None) -> FailureRecord:
    """Keep and return the record of a failed attempt: its own, else one made here, with its last output.

    `why` says more than the end of the process, for example for what the launcher has killed it.
    """
    record = own_record(launch)
    if record is None or (end.status < 0 and record.kind is FailureKind.SIGNAL):
        killed_for_memory = end.killed_for_memory and end.exit_code == 128 + signal.SIGKILL
        record = FailureRecord(
            task=str(launch.task),
            message=why or describe(end, killed_for_memory),
            kind=FailureKind.SIGNAL if end.status < 0 else FailureKind.EXIT,
            time=now_text(),
            monotonic_s=time.monotonic(),
            attempt=launch.attempt,
            exit_code=end.exit_code,
            peak_memory_bytes=end.peak_memory_bytes or None,
        )
    return keep_failure(launch, record)


def keep_failure(launch: TaskLaunch, record: FailureRecord) -> FailureRecord:
    """Write the record of a failed attempt, with the attempt's last output, and return it."""
    record.log = str(launch.log)  # a task on another host has named the path there
    record.last_lines = last_lines(launch.log)
    with contextlib.suppress(OSError):
        files = RunFiles(launch.run_dir)
        files.write_last_words(files.failure(launch.task, launch.attempt), record)
    return record


def launcher_failure(
    kind: FailureKind, text: str, code: int, at_s: float, task: str = "launcher"
) -> FailureRecord:
    return FailureRecord(task, text, kind=kind, time=now_text(), monotonic_s=at_s, exit_code=code)


def own_record(launch: TaskLaunch) -> FailureRecord | None:
    """Return the record that the attempt itself has left; None where it is half written on a full disk."""
    return read_sound(RunFiles(launch.run_dir).failure(launch.task, launch.attempt), FailureRecord)


def describe(end: Exited, killed_for_memory: bool) -> str:
    """Return an end in words: ``killed by SIGSEGV (signal 11)``, ``exited with code 139 (128 + SIGSEGV)``."""
    peak = f"(peak {end.peak_memory_bytes / 2**30:.1f} GiB)"
    if end.status >= 0:
        name = _signal_name(end.status - 128)
        killed = f"; the kernel has killed one of its processes for memory {peak}"
        memory = killed if killed_for_memory else ""
        return f"exited with code {end.status}" + (f" (128 + {name})" if name else "") + memory
    if killed_for_memory:
        return f"killed by the kernel for memory {peak}"
    return f"killed by {_signal_name(-end.status) or 'a signal'} (signal {-end.status})"


def _signal_name(number: int) -> str | None:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return None


def earliest(failures: Iterable[FailureRecord]) -> FailureRecord | None:
    return min(failures, key=lambda failure: failure.order, default=None)


def _tail(log: Path, begin: int = 0) -> str:
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(begin, log.stat().st_size - TAIL_BYTES))
        return file.read().decode(errors="replace")
    return ""


def last_lines(log: Path) -> list[str]:
    lines = _tail(log).splitlines()[-LAST_LINES:]
    return [line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]} ..." for line in lines]


class Stuck(msgspec.Struct, frozen=True):
    """A replica that is stuck at a place, ``in its input at step 7``, since a moment (monotonic)."""

    place: str
    reason: str
    since_s: float


class TaskLife(msgspec.Struct):
    """The state of one task. Mutable, and owned by the supervisor alone.

    Attributes:
        launch: the present attempt.
        first_attempt: where this launch began to count; a resumed run directory holds earlier ones.
        handle: the present attempt at the target; None: none was started.
        pid: of the present attempt, while it lives.
        exit_code: of the last attempt that ended.
        started_s: when the present attempt was started (monotonic), as all moments here.
        status: the newest status that the present attempt has written.
        stop_s: when it got the order to stop.
        reluctant: it got the order and has not left in time, so its stacks were asked for.
        restart_s: when it is to be started again.
        restarts_used: since it was last healthy; `restarts` counts all.
        lost: why it will not run again although it has not come to a good end.
        stuck: by attempt, where it was stuck, of those that were killed for it.
    """

    launch: TaskLaunch
    first_attempt: int = 0
    host: str | None = None
    handle: TaskHandle | None = None
    state: TaskState = TaskState.PENDING
    pid: int | None = None
    exit_code: int | None = None
    started_s: float = 0.0
    status: TaskStatus | None = None
    stop_s: float | None = None
    reluctant: bool = False
    restart_s: float | None = None
    restarts_used: int = 0
    failure: FailureRecord | None = None
    lost: FailureRecord | None = None
    stuck: dict[int, Stuck] = msgspec.field(default_factory=dict)
    _paths: tuple[TaskLaunch, Path, Path] | None = None
    _seen: tuple[int, int, int] | None = None

    @property
    def task(self) -> TaskId:
        return self.launch.task

    @property
    def restarts(self) -> int:
        return self.launch.attempt - self.first_attempt

    @property
    def has_process(self) -> bool:
        """Whether an attempt is running or being started."""
        return self.state in HAS_PROCESS

    @property
    def ended(self) -> bool:
        """Whether the task will never run again."""
        return self.state in ENDED

    @property
    def is_up(self) -> bool:
        """Whether the task is up: a program reports it, a foreign command is once it is executed."""
        if self.state != TaskState.STARTING:
            return self.state != TaskState.PENDING
        if self.launch.program is None:
            return self.pid is not None
        return self.status is not None and self.status.phase is not TaskPhase.STARTING

    def read_status(self) -> None:
        """Read the status of the present attempt; that of an earlier attempt does not count."""
        if not self.has_process or self.launch.program is None:
            return
        path, _ = self._polled_files()
        try:
            facts = path.stat()
            stamp = facts.st_ino, facts.st_mtime_ns, facts.st_size
        except OSError:
            return
        if stamp == self._seen and self.status is not None:
            return
        with contextlib.suppress(RunError):
            status = read_record(path, TaskStatus)
            self._seen = stamp
            if status is not None and status.attempt == self.launch.attempt:
                self.status = status

    def kill_request(self, heard_s: float) -> KillRequest | None:
        """Return the request to kill the present attempt: it answered last, or its own status is as old.

        `heard_s` is the last moment of which its host has told; a request of a later one may be about a cut
        cable, or of an earlier boot.
        """
        if self.launch.program is None or not os.path.lexists(path := self._polled_files()[1]):
            return None
        said_s = self.status.monotonic_s if self.status else heard_s
        with contextlib.suppress(RunError):
            request = read_record(path, KillRequest)
            if request is not None and request.monotonic_s <= heard_s:
                stood = said_s + request.silent_s <= request.monotonic_s
                return request if stood or request.attempt == self.launch.attempt else None
        return None

    def _polled_files(self) -> tuple[Path, Path]:
        if self._paths is None or self._paths[0] is not self.launch:
            files = RunFiles(self.launch.run_dir)
            self._paths = (self.launch, files.status(self.task), files.kill(self.task))
        return self._paths[1:]

    @property
    def stuck_text(self) -> str | None:
        """Why the present attempt was killed, ``was stuck 3 times, now in its input at step 7``."""
        if (stuck := self.stuck.get(self.launch.attempt)) is None:
            return None
        times = f" {len(self.stuck)} times, now" if len(self.stuck) > 1 else ""
        return f"was stuck{times} {stuck.place}, and was killed"

    def signal(self, number: int) -> None:
        if self.handle is not None:
            self.handle.signal(number)

    def to_record(self) -> TaskRecord:
        why = self.failure if self.state == TaskState.RESTARTING else self.lost
        return TaskRecord(
            task=str(self.task),
            state=TaskState(self.state),
            pid=self.pid,
            host=self.host,
            address=self.launch.address,
            attempt=self.launch.attempt,
            restarts=self.restarts,
            exit_code=self.exit_code,
            message=why.message if why else None,
        )


_STACK = re.compile(
    r"^(?:Current thread|Thread) .*\(most recent call first\):\n((?:  File .*\n)+)", re.MULTILINE
)
_FRAME = re.compile(r'^  File (".*", line \d+) in (.*)', re.MULTILINE)
_NOT_THE_PROGRAMS = (sysconfig.get_path("stdlib"), str(Path(dtrain.__file__).parent))


class TaskPlaces:
    """The position of each task, and after the end the innermost lines of tasks asked for their stacks."""

    def __init__(self, lives: Iterable[TaskLife], asked: Iterable[TaskLife]) -> None:
        self._places = {life.task: _progress(life) for life in lives}
        self._stacks = {}
        for life in asked:
            log = life.launch.log
            self._stacks[life.task] = (log, log.stat().st_size if log.exists() else 0, not life.is_up)

    def lines(self) -> list[str]:
        """Return one line a task. Those that were asked must have ended."""
        width = max((len(str(task)) for task in self._places), default=0)
        lines = []
        for task, place in sorted(self._places.items()):
            frame = innermost_frame(*self._stacks[task]) if task in self._stacks else None
            lines.append(f"{task!s:<{width}}  {place}" + (f", at {frame}" if frame else ""))
        return lines


def _progress(life: TaskLife) -> str:
    status = life.status
    words = str(life.state)
    if status is not None and status.step is not None:
        words += f" at step {status.step}" + (f" of {status.max_steps}" if status.max_steps else "")
    if status is not None and status.waiting_for and life.has_process:
        words += f", waits for {status.waiting_for}"
    return words


def innermost_frame(log: Path, begin: int = 0, or_any: bool = True) -> str | None:
    """Return the innermost line of the program in the main thread's stack, as written behind a log's `begin`.

    `or_any`: where no line is the program's own, the innermost of all is returned.
    """
    stacks = _STACK.findall(_tail(log, begin))
    frames = _FRAME.findall(stacks[-1]) if stacks else []  # the main thread is the last
    theirs = [frame for frame in frames if not frame[0][1:].startswith((*_NOT_THE_PROGRAMS, "<frozen"))]
    return next((f"{place} in {name}" for place, name in theirs or (frames if or_any else ())), None)
