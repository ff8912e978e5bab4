"""The journal of a run, an event a line, and its numbers over time, a line every few seconds.

Each line has `time` (ISO 8601), `global_step` and `tasks`: for each task that trains its step, loss,
examples_per_s, the shares of its time in which it waited for others and for input, and, where they apply,
stale_gradients, staleness_mean and staleness_counts (how many of its gradients had which staleness so far).
The first line of each leader has `versions` too.
"""

import contextlib
import json
import platform
import sys
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


INTERVAL_S = 0.5
LENGTHENED_BY = 1 / 250
"""The share of the time since the first line that the interval is: an hour has about 1,000 lines, a week
2,400."""
TASKS = 40
"""More tasks have longer lines, and so many times fewer."""
FIELDS = (
    *("step", "loss", "examples_per_s", "waiting_share", "input_share"),
    *("stale_gradients", "staleness_mean", "staleness_counts"),
)


class MetricsLog:
    """Appends the numbers of all tasks from ps:0's answers to the leader's heartbeats."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._begun_s = clock()
        self._next_s = self._begun_s + INTERVAL_S
        self._newest: HeartbeatReply | None = None
        self._says_versions = True

    def update(self, reply: HeartbeatReply) -> None:
        """Take an answer of ps:0; write a line where one is due."""
        self._newest = reply
        if self._clock() >= self._next_s:
            self.flush()

    def flush(self) -> None:
        """Write the last answer, if it is not written yet. A full disk must not stop training."""
        now_s = self._clock()
        if self._newest is not None:
            line = self._line(self._newest, datetime.now().astimezone())
            with contextlib.suppress(OSError), self._path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
            longer = max(1.0, len(line["tasks"]) / TASKS)
            self._next_s = now_s + longer * max(INTERVAL_S, (now_s - self._begun_s) * LENGTHENED_BY)
        self._newest = None

    def _line(self, reply: HeartbeatReply, now: datetime) -> dict[str, Any]:
        tasks = {
            status.task: _numbers(status) for status in reply.statuses if TaskId.parse(status.task).trains
        }
        line = {"time": now.isoformat(timespec="milliseconds"), "global_step": reply.version, "tasks": tasks}
        if self._says_versions:
            self._says_versions = False
            line["versions"] = _versions()
        return line


def _versions() -> dict[str, str]:
    """Return the versions of Python, and of packages as far as this process has imported them."""
    modules = {name: sys.modules[name] for name in ("dtrain", "numpy", "torch") if name in sys.modules}
    said = {name: getattr(module, "__version__", None) for name, module in modules.items()}
    return {"python": platform.python_version()} | {name: str(each) for name, each in said.items() if each}


def _numbers(status: TaskStatus) -> dict[str, Any]:
    values: Iterable[tuple[str, Any]] = ((name, getattr(status, name)) for name in FIELDS)
    return {name: value for name, value in values if value is not None and value != {}}
