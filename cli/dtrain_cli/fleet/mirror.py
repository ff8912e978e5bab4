"""The launcher's copies of the files that tasks write on other hosts, with their times by its own clock."""

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dtrain.cluster import TaskId
from dtrain.config import RunSpec
from dtrain.runs.files import read_record, write_record
from dtrain.runs.json_file import overwrite_json
from dtrain_cli.agent.copies import RECORD_BYTES_MAX, grows, is_record
from dtrain_cli.agent.messages import Appended, Changed, Replaced

_CLOCK = "monotonic_s"
"""The end of the name of every field that holds a moment of a machine's monotonic clock."""
HOST_BYTES_MAX = 4 << 30
HOST_FILES_MAX = 100_000
"""Bytes of logs, metrics and traces of one host, and files of it: no more of them is copied."""
_NO_MORE = b"\ndtrain: no more output of this host is copied to the launcher; the rest is there\n"


class HostClock:
    """The monotonic clock of a host, seen from here: the offset of the answer that was the fastest."""

    def __init__(self, said_s: float, now_s: float) -> None:
        self.offset_s = now_s - said_s

    def heard(self, said_s: float, now_s: float) -> None:
        """Note what the host's clock has said."""
        self.offset_s = min(self.offset_s, now_s - said_s)


class Mirror:
    """The copies of one run: every agent's news are written into the launcher's run directory."""

    def __init__(self, run_dir: Path, may_write: Callable[[str, str], bool]) -> None:
        """Copy nothing yet; `may_write` says whether a host may write the file of a name."""
        self._run_dir = run_dir
        self._may_write = may_write
        self._said: dict[str, dict[str, Any]] = {}
        self._targets: dict[str, Path] = {}
        self.sizes: dict[str, dict[str, int]] = {}
        """By host, the bytes that were copied of each file that grows."""

    def said(self, task: TaskId) -> Mapping[str, Any] | None:
        """Return the newest status of a task, with the times of its host."""
        return self._said.get(f"tasks/{task.role}-{task.index}/status.json")

    def take(self, host: str, news: Replaced | Changed | Appended, clock: HostClock) -> None:
        """Write what an agent sends, unless its host may not write there, or has sent too much already.

        A full disk costs the copy.
        """
        sizes = self.sizes.setdefault(host, {})
        nbytes = sum(sizes.values())
        if not self._may_write(host, news.path) or (news.path not in sizes and len(sizes) >= HOST_FILES_MAX):
            return
        with contextlib.suppress(OSError):
            match news:
                case Appended(path=path, data=data) if grows(path) and nbytes <= HOST_BYTES_MAX:
                    sizes[path] = sizes.get(path, 0) + len(data)
                    last = _NO_MORE if path.endswith(".log") else b""
                    with open(self._made(path), "ab") as file:
                        file.write(data if nbytes + len(data) <= HOST_BYTES_MAX else last)
                case Replaced(path=path, data=data) if is_record(path) and len(data) <= RECORD_BYTES_MAX:
                    sizes.setdefault(path, 0)
                    self._replace(path, news.record(), clock)
                case Changed(path=path) if path in self._said:
                    said = news.on_top_of(self._said[path])
                    if len(json.dumps(said)) <= RECORD_BYTES_MAX:
                        self._said[path] = said
                        self._overwrite(path, said, clock)

    def _replace(self, path: str, said: dict[str, Any], clock: HostClock) -> None:
        if path == "spec.json":  # the launcher's own, but for what the leader's program wishes
            if (own := read_record(self._run_dir / path, RunSpec)) is not None:
                told = msgspec.convert(said, RunSpec)
                write_record(self._run_dir / path, replace(own, training=told.training))
            return
        if path.endswith("/status.json"):
            self._said[path] = said
        self._write(path, said, clock)

    def _write(self, path: str, said: dict[str, Any], clock: HostClock) -> None:
        target = self._made(path)
        aside = target.with_name(f".{target.name}.copy")
        aside.write_text(json.dumps(rebased(said, clock.offset_s)))
        aside.replace(target)

    def _overwrite(self, path: str, said: dict[str, Any], clock: HostClock) -> None:
        """Overwrite a status in place: of many idle tasks, renaming files would cost most."""
        target = self._targets.get(path)
        if target is None or not target.exists():
            self._write(path, said, clock)
            self._targets[path] = self._run_dir / path
        else:
            overwrite_json(target, rebased(said, clock.offset_s))

    def _made(self, path: str) -> Path:
        target = self._run_dir / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return target


def rebased(said: dict[str, Any], offset_s: float) -> dict[str, Any]:
    """Return a record of another host with its times by the clocks of this machine.

    Args:
        said: the record. Fields that end with `monotonic_s` are moved, `time` is computed anew; a moment of 0
            or null has not come, and stays.
        offset_s: is added to a moment of the host's monotonic clock.
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
