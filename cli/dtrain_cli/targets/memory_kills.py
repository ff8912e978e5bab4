"""The processes of this machine that the kernel has killed for memory, by its own counts."""

import contextlib
import math
import re
from collections.abc import Iterable
from pathlib import Path

LATELY_S = 5.0
"""A process that is killed for memory may need so long to free it and end."""
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/vmstat")
_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class MemoryKills:
    """The kernel's counts of processes that it has killed for memory, here and in the whole machine."""

    def __init__(self) -> None:
        self._files = (*_memory_files(), _MACHINE)
        self._counted = self._count()
        self._rose_s = -math.inf

    def look(self, now_s: float) -> None:
        """Read the counts. To be called often: a kill is as recent as the look that saw it."""
        before = self._counted
        self._counted = self._count()
        if self._counted > before:
            self._rose_s = now_s

    def lately(self, now_s: float) -> bool:
        """Return whether there has been one about now."""
        self.look(now_s)
        return now_s - self._rose_s <= LATELY_S

    def _count(self) -> int:
        counts = [0]
        for path in self._files:
            with contextlib.suppress(OSError):
                counts += map(int, _KILLS.findall(path.read_text()))
        return sum(counts)


def _memory_files() -> Iterable[Path]:
    """Yield the files that count this control group's kills: memory.events (v2), memory.oom_control (v1)."""
    with contextlib.suppress(OSError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                yield _CGROUPS / group.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                yield _CGROUPS / "memory" / group.lstrip("/") / "memory.oom_control"
