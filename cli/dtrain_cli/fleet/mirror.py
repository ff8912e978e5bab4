"""The launcher's copies of what tasks write on other hosts, and what it passes on to those tasks.

Times are those of the launcher's clock. The newest checkpoint has its second place here. Passed on are the
orders to single tasks that other commands leave in the run directory (`dtrain chaos`).
"""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dtrain.cluster import TaskId
from dtrain.config import RunSpec
from dtrain.runs.files import RunFiles, Slowdown, read_record, write_record
from dtrain.runs.json_file import overwrite_json, read_sound, replace_json
from dtrain.runs.states import FailureKind
from dtrain_cli.agent import messages
from dtrain_cli.agent.copies import RECORD_BYTES_MAX, ArrivingCheckpoint, checkpoint_parts, grows, is_record
from dtrain_cli.launch.tasks import launcher_failure

_CLOCK = "monotonic_s"
"""The end of the name of every field that holds a moment of a machine's monotonic clock."""
HOST_BYTES_MAX = 4 << 30
HOST_FILES_MAX = 100_000
"""Bytes of logs, metrics and traces of one host, and files of it: no more of them is copied."""
_NO_MORE = b"\ndtrain: no more output of this host is copied to the launcher; the rest is there\n"


class Mirror:
    """The copies of one run: every agent's news are written into the launcher's run directory."""

    def __init__(self, run_dir: Path, may_write: Callable[[str, str], bool]) -> None:
        self._run_dir = run_dir
        self._may_write = may_write
        self._said: dict[str, dict[str, Any]] = {}
        self._targets: dict[str, Path] = {}
        self.sizes: dict[str, dict[str, int]] = {}
        """By host, the bytes that were copied of each file that grows."""

    def said(self, task: TaskId) -> Mapping[str, Any] | None:
        return self._said.get(f"tasks/{task.role}-{task.index}/status.json")

    def write(self, host: str, news: messages.FileNews, offset_s: float) -> None:
        """Write what an agent sends, unless its host may not write there, or has sent too much.

        `offset_s` is from its monotonic clock to that of this machine.
        """
        sizes = self.sizes.setdefault(host, {})
        nbytes = sum(sizes.values())
        if not self._may_write(host, news.path) or (news.path not in sizes and len(sizes) >= HOST_FILES_MAX):
            return
        with contextlib.suppress(OSError):
            match news:
                case messages.Appended(path, data) if grows(path) and nbytes <= HOST_BYTES_MAX:
                    sizes[path] = sizes.get(path, 0) + len(data)
                    last = _NO_MORE if path.endswith(".log") else b""
                    with open(self._made(path), "ab") as file:
                        file.write(data if nbytes + len(data) <= HOST_BYTES_MAX else last)
                case messages.Replaced(path=path, data=data) if (
                    is_record(path) and len(data) <= RECORD_BYTES_MAX
                ):
                    sizes.setdefault(path, 0)
                    if (said := news.record()) is not None:
                        self._replace(path, said, offset_s)
                    else:  # a timesheet, which its task too writes in place
                        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                        with open(os.open(self._made(path), flags, 0o600), "wb") as file:
                            file.write(data)

    def _replace(self, path: str, said: dict[str, Any], offset_s: float) -> None:
        if path == "spec.json":  # the launcher's own, but for what the leader's program wishes
            if (own := read_record(self._run_dir / path, RunSpec)) is not None:
                told = msgspec.convert(said, RunSpec)
                write_record(self._run_dir / path, replace(own, training=told.training))
            return
        if path.endswith("/status.json"):
            self._said[path] = said
        moved, target = rebased(said, offset_s), self._made(path)
        # In place: with many idle tasks, renaming files would cost most.
        (overwrite_json if target.exists() else replace_json)(target, moved)

    def _made(self, path: str) -> Path:
        if (target := self._targets.get(path)) is None:
            target = self._targets[path] = self._run_dir / path
            target.parent.mkdir(parents=True, exist_ok=True)
        return target


def rebased(said: dict[str, Any], offset_s: float) -> dict[str, Any]:
    """Return a record of another host with its times by the clocks of this machine.

    Fields that end with `monotonic_s` are moved by `offset_s`, but for 0 and null; `time` is computed anew.
    """
    moved = {
        name: value + offset_s
        if name.endswith(_CLOCK) and isinstance(value, int | float) and value
        else value
        for name, value in said.items()
    }
    if isinstance(said.get("time"), str) and (at_s := moved.get(_CLOCK)):
        wall_s = time.time() - (time.monotonic() - at_s)
        moved["time"] = datetime.fromtimestamp(wall_s, UTC).isoformat()
    return moved


class SecondPlace:
    """The copy of one run's newest checkpoint: its `step`, and the host and step that are `asked` for now."""

    def __init__(self, files: RunFiles) -> None:
        self.step = files.newest_step
        self._files = files
        self.asked: tuple[str, int] | None = None
        self._tried: int | None = None
        self._why: str | None = None
        self._arriving = ArrivingCheckpoint(files.checkpoints)

    def due(self, saved: Mapping[str, int]) -> tuple[str, messages.Fetch] | None:
        """Return the order to send a newer checkpoint, and its host; `saved` has each host's newest step."""
        host = max(saved, key=saved.__getitem__, default=None)
        if host is None or self.asked is not None or saved[host] == self._tried:
            return None
        self._tried = saved[host]
        self.asked = host, saved[host]
        return host, messages.Fetch(saved[host])

    def write(self, host: str, part: messages.MadePart | messages.AllMade) -> str | None:
        """Write what has arrived; return why there is no copy if that is news."""
        asked_host, step = self.asked or (None, None)
        if host != asked_host or (isinstance(part, messages.AllMade) and part.step != step):
            return None  # the launcher has not asked for it
        try:
            problems = self._arriving.write(part)
        except OSError as error:
            self._arriving.drop()
            problems = [f"it cannot be written: {error.strerror}"]
        if isinstance(part, messages.MadePart):
            return None
        self.asked = None
        if problems:
            told, self._why = self._why, problems[0]
            return None if told == self._why else f"the newest checkpoint has no copy here: {self._why}"
        if self.step not in (None, part.step):
            shutil.rmtree(self._files.checkpoints / f"ckpt-{self.step}", ignore_errors=True)
        self.step = part.step
        return None

    def forget(self, host: str) -> None:
        if self.asked is not None and self.asked[0] == host:
            self.asked = self._tried = None
            self._arriving.drop()

    def parts(self) -> Iterator[messages.MadePart | messages.AllMade]:
        if self.step is not None:
            yield from checkpoint_parts(self._files.checkpoints, self.step)


LOST_STATUS = -signal.SIGKILL
"""The status that a task of a lost host has ended with: its agent has killed it."""


def keep_failure(files: RunFiles, task: TaskId, attempt: int, message: str) -> None:
    code, now_s = 128 - LOST_STATUS, time.monotonic()
    record = launcher_failure(FailureKind.HOST_LOST, message, code, now_s, str(task))
    record.attempt, record.log = attempt, str(files.log(task, attempt))
    path = files.failure(task, attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_last_words(path, record)


LOOK_S = 0.5


class OrdersForTasks:
    """The files with orders, each sent to the host of its task once."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._folders: dict[tuple[TaskId, int], Path] = {}
        self._told: dict[Path, tuple[int, int] | None] = {}
        self._look_s = 0.0

    def due(
        self, attempts: Mapping[TaskId, int], host_of: Callable[[TaskId], str]
    ) -> Iterator[tuple[str, messages.Order]]:
        now_s = time.monotonic()
        if now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        for task, attempt in attempts.items():
            folder = self._folders.get((task, attempt))
            if folder is None:
                folder = self._folders[task, attempt] = self._files.attempt(task, attempt)
            if not self._is_new(folder):  # a file that is replaced changes its folder
                continue
            if self._is_new(slow := self._files.slow(task, attempt)):
                told = read_sound(slow, Slowdown)
                yield host_of(task), messages.SlowOrder(str(task), attempt, told.factor if told else None)
            if self._is_new(asked := self._files.signal(task, attempt)) and (
                number := read_sound(asked, int)
            ):
                yield host_of(task), messages.SignalOrder(str(task), attempt, number)

    def _is_new(self, path: Path) -> bool:
        try:
            facts = path.stat()
            stamp = facts.st_ino, facts.st_mtime_ns
        except OSError:
            stamp = None
        if stamp == self._told.get(path):
            return False
        self._told[path] = stamp
        return True
