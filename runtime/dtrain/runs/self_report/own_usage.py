"""The processor and memory that this process uses, for `dtrain status` on another machine."""

import contextlib
import os
from pathlib import Path

EVERY_S = 5.0
"""How often it is measured: the kernel walks all pages for it, which takes a millisecond or two."""
_ROLLUP = Path("/proc/self/smaps_rollup")


class OwnUsage:
    """A meter of this process."""

    def __init__(self, now_s: float) -> None:
        """Begin; `now_s` is of the monotonic clock."""
        self._since_s = now_s
        self._used_s = _processor_s()

    def is_due(self, now_s: float) -> bool:
        """Return whether the last measurement is old enough."""
        return now_s - self._since_s >= EVERY_S

    def measure(self, now_s: float) -> tuple[float, int | None]:
        """Return per cent of one core since the last measurement, and bytes of own memory (PSS)."""
        used_s = _processor_s()
        percent = round(100 * (used_s - self._used_s) / max(now_s - self._since_s, 1e-3), 1)
        self._since_s, self._used_s = now_s, used_s
        return percent, _memory_bytes()


def _processor_s() -> float:
    times = os.times()
    return times.user + times.system


def _memory_bytes() -> int | None:
    """Source: proc_pid_smaps(5), whose sizes are in units of 1024 bytes."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in _ROLLUP.read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return None
