"""The files of a run directory that agent and launcher copy to each other: what has changed since last time.

An agent sends what its tasks write: records as a whole, or the fields that have changed, and what has been
added to files that grow. Other names than these are neither sent nor written.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtrain.cluster import TaskId
from dtrain.runs.files import RunFiles
from dtrain_cli.agent.messages import Appended, Changed, Replaced

_TASK = r"tasks/[a-z]+-\d{1,9}"
_ATTEMPT = rf"{_TASK}/attempt-\d{{1,9}}"
_RECORD = re.compile(rf"spec\.json|{_TASK}/(status|joined)\.json|{_ATTEMPT}/(failure|kill)\.json")
_GROWS = re.compile(rf"metrics\.jsonl|{_ATTEMPT}/(output\.log|trace\.jsonl)")
_ORDER = re.compile(rf"moved\.json|{_TASK}/status\.json|{_ATTEMPT}/slow\.json")
RECORD_BYTES_MAX = 1 << 20
PIECE_BYTES = 1 << 18
"""The largest part of a file in one message."""
_GLOB_EVERY = 4
"""Looks between two searches for files of tasks that run on other hosts, and for those that seldom change."""
_SELDOM = ("/failure.json", "/trace.jsonl")

News = Replaced | Changed | Appended


def is_record(path: str) -> bool:
    """Return whether an agent may send a small file of this name."""
    return _RECORD.fullmatch(path) is not None


def grows(path: str) -> bool:
    """Return whether an agent may add to a file of this name."""
    return _GROWS.fullmatch(path) is not None


def is_order(path: str) -> bool:
    """Return whether a launcher may put a file of this name."""
    return _ORDER.fullmatch(path) is not None


class CopiedFiles:
    """The memory of what an agent has told of the files in its run directory."""

    def __init__(self, run_dir: Path, known: dict[str, int]) -> None:
        """Follow nothing yet but the files of the run; `known` bytes of those that grow are told already."""
        self._files = RunFiles(run_dir)
        self._paths: dict[str, str] = {}  # making one costs more than the look at its file
        self._told = {path: size for path, size in known.items() if grows(path)}
        self._growing: dict[str, None] = {"metrics.jsonl": None}
        self._records: dict[str, tuple[int, int, int] | None] = {"spec.json": self._stamp("spec.json")}
        self._fields: dict[str, dict[str, Any]] = {}
        self._looks = 0

    def follow(self, task: TaskId, attempt: int) -> None:
        """Follow the files of one attempt of a task, instead of those of its earlier ones."""
        folder = self._name(self._files.task(task))
        for path in [path for path in self._growing if path.startswith(f"{folder}/")]:
            del self._growing[path]
        self._records.setdefault(self._name(self._files.status(task)), None)
        self._records[self._name(self._files.failure(task, attempt))] = None
        self._growing[self._name(self._files.log(task, attempt))] = None
        self._growing[self._name(self._files.trace(task, attempt))] = None

    def news(self) -> Iterator[News]:
        """Yield what has changed, at most one piece of each file that grows."""
        self._looks += 1
        all_of_them = self._looks % _GLOB_EVERY == 0
        if all_of_them:
            self._find()
        for path in self._growing:
            if (all_of_them or not path.endswith(_SELDOM)) and (piece := self._piece(path)) is not None:
                yield piece
        for path in list(self._records):
            if all_of_them or not path.endswith(_SELDOM):
                yield from self._record(path)

    def rest(self, task: TaskId) -> Iterator[News]:
        """Yield all that a task has left, after its end."""
        folder = f"{self._name(self._files.task(task))}/"
        for path in [path for path in self._growing if path.startswith(folder)]:
            while (piece := self._piece(path)) is not None:
                yield piece
        for path in [path for path in self._records if path.startswith(folder)]:
            yield from self._record(path)

    def _find(self) -> None:
        """Look for records about tasks of other hosts, which the leader writes."""
        root = self._files.directory
        for pattern in ("tasks/*/attempt-*/kill.json", "tasks/worker-*/joined.json"):
            for path in root.glob(pattern):
                self._records.setdefault(self._name(path), None)
                if path.name == "joined.json":
                    self._records.setdefault(self._name(path.with_name("status.json")), None)

    def _path(self, name: str) -> str:
        path = self._paths.get(name)
        if path is None:
            path = self._paths[name] = str(self._files.directory / name)
        return path

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._files.directory))

    def _stamp(self, path: str) -> tuple[int, int, int] | None:
        try:
            facts = os.stat(self._path(path))  # noqa: PTH116 - a Path takes as long as the look itself
        except OSError:
            return None
        return facts.st_ino, facts.st_mtime_ns, facts.st_size

    def _record(self, path: str) -> Iterator[News]:
        stamp = self._stamp(path)
        if stamp is None or stamp == self._records[path] or stamp[2] > RECORD_BYTES_MAX:
            return
        with contextlib.suppress(
            OSError, ValueError, OverflowError
        ):  # in the midst of being written: the next look has it
            data = (self._files.directory / path).read_bytes()
            said = json.loads(data)
            self._records[path] = stamp
            before = self._fields.get(path)
            if not path.endswith("/status.json") or not isinstance(said, dict):
                yield Replaced(path, data)
                return
            self._fields[path] = said
            if before is None or before.keys() != said.keys() or before.get("attempt") != said.get("attempt"):
                yield Replaced(path, data)
            elif fields := {name: value for name, value in said.items() if value != before[name]}:
                yield Changed(path, fields)

    def _piece(self, path: str) -> Appended | None:
        told = self._told.get(path, 0)
        try:
            if os.stat(self._path(path)).st_size <= told:  # noqa: PTH116
                return None
            with open(self._path(path), "rb") as file:
                file.seek(told)
                data = file.read(PIECE_BYTES)
        except OSError:
            return None
        self._told[path] = told + len(data)
        return Appended(path, data)
