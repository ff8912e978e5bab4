"""The journal of a run, an event a line, and its numbers over time, a line every few seconds.

Each line has `time` (ISO 8601), `global_step` and `tasks`: for each task that trains its step, loss,
examples_per_s, the shares of its time in which it waited for others and for input, and, where they apply,
stale_gradients, staleness_mean and staleness_counts (how many of its
gradients had which staleness so far).
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dtrain.cluster import TaskId
from dtrain.formats.remote_files import masked
from dtrain.messages import HeartbeatReply
from dtrain.messages.membership import TaskStatus
from dtrain.runs.files import RunFiles


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def append_event(files: RunFiles, kind: str, **facts: Any) -> None:
    """Append one line, for example ``{"event": "exited", "task": "worker:0", "status": -9, ...}``."""
    line = json.dumps({"time": now_text(), "monotonic_s": round(time.monotonic(), 4), "event": kind, **facts})
    with open(files.journal, "a", encoding="utf-8") as file:
        file.write(masked(line) + "\n")


INTERVAL_S = 5.0
FIELDS = (
    *("step", "loss", "examples_per_s", "waiting_share", "input_share"),
    *("stale_gradients", "staleness_mean", "staleness_counts"),
)


class MetricsLog:
    """Appends the numbers of all tasks from ps:0's answers to the leader's heartbeats."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._next_s = clock() + INTERVAL_S
        self._newest: HeartbeatReply | None = None

    def update(self, reply: HeartbeatReply) -> None:
        """Take an answer of ps:0; write a line every `INTERVAL_S` seconds."""
        self._newest = reply
        if self._clock() >= self._next_s:
            self.flush()

    def flush(self) -> None:
        """Write the last answer, if it is not written yet. A full disk must not stop training."""
        if self._newest is not None:
            line = msgspec.json.encode(self._line(self._newest, datetime.now().astimezone()))
            with contextlib.suppress(OSError), self._path.open("ab") as file:
                file.write(line + b"\n")
        self._newest = None
        self._next_s = self._clock() + INTERVAL_S

    def _line(self, reply: HeartbeatReply, now: datetime) -> dict[str, Any]:
        tasks = {
            status.task: _numbers(status) for status in reply.statuses if TaskId.parse(status.task).trains
        }
        return {"time": now.isoformat(timespec="milliseconds"), "global_step": reply.version, "tasks": tasks}


def _numbers(status: TaskStatus) -> dict[str, Any]:
    values: Iterable[tuple[str, Any]] = ((name, getattr(status, name)) for name in FIELDS)
    return {name: value for name, value in values if value is not None and value != {}}
