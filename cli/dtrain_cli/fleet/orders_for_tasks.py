"""The orders to single tasks that other commands leave in the launcher's run directory (`dtrain chaos`)."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from dtrain.cluster import TaskId
from dtrain.runs.files import RunFiles
from dtrain_cli.agent.messages import Order, Put, SignalOrder

LOOK_S = 0.5


class OrdersForTasks:
    """The files with orders, each told to the host of its task once."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._folders: dict[tuple[TaskId, int], Path] = {}
        self._told: dict[Path, tuple[int, int] | None] = {}
        self._look_s = 0.0

    def due(
        self, attempts: Mapping[TaskId, int], host_of: Callable[[TaskId], str]
    ) -> Iterator[tuple[str, Order]]:
        """Yield what is new for the present attempts of tasks, with the host that it goes to."""
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
            slow = self._files.slow(task, attempt)
            if self._is_new(slow):
                path = str(slow.relative_to(self._files.directory))
                yield host_of(task), Put(path, slow.read_bytes() if slow.exists() else None)
            asked = self._files.signal(task, attempt)
            if self._is_new(asked):
                number = msgspec.json.decode(asked.read_bytes(), type=int)
                yield host_of(task), SignalOrder(str(task), attempt, number)

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
