"""Why a task failed, and which failure of a run came first.

A task that dies of an exception leaves a record. For every other death the launcher writes one: the signal by
name, the last lines of the output, and whether the kernel killed it for memory.
"""

import contextlib
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from dtrain.process.start_protocol import Exited
from dtrain.runs.files import FailureRecord, RunFiles, read_sound
from dtrain.runs.journal import now_text
from dtrain.runs.states import FailureKind
from dtrain_cli.plan.task_launch import TaskLaunch

LAST_LINES = 20
LINE_MAX = 400
_TAIL_BYTES = 1 << 16


def failure_of(launch: TaskLaunch, end: Exited, why: str | None = None) -> FailureRecord:
    """Keep and return the record of a failed attempt: its own, else one made here, with its last output.

    Args:
        launch: the attempt.
        end: of its process.
        why: it was killed by this launcher; None: it was not.
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
    record.log = str(launch.log)  # a task on another host has named the path there
    record.last_lines = last_lines(launch.log)
    with contextlib.suppress(OSError):
        files = RunFiles(launch.run_dir)
        files.write_last_words(files.failure(launch.task, launch.attempt), record)
    return record


def launcher_failure(
    kind: FailureKind, text: str, code: int, at_s: float, task: str = "launcher"
) -> FailureRecord:
    """Return the record of a failure that the launcher itself has found, at a moment (monotonic)."""
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
    """Return the first cause; see `FailureRecord.order`."""
    return min(failures, key=lambda failure: failure.order, default=None)


def last_lines(log: Path) -> list[str]:
    """Return the end of a log."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = text.splitlines()[-LAST_LINES:]
    return [line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]} ..." for line in lines]
