"""The deadline of a start, and what is printed about it meanwhile. Pure: the clock is an argument."""

from collections.abc import Mapping
from dataclasses import dataclass

from dtrain.cluster import TaskId

FIRST_WORD_S = 2.0


@dataclass
class StartWatch:
    """From the second second of a start on it says whom it waits for, at growing distances; at the end, that
    it is over.

    Attributes:
        timeout_s: how long all tasks together may take to be up.
        started_s: when the start began (monotonic).
    """

    timeout_s: float
    started_s: float

    def __post_init__(self) -> None:
        self._next_word_s = FIRST_WORD_S

    def word(self, missing: Mapping[TaskId, str | None], now_s: float) -> str | None:
        """Return the line that is due, if any: ``waiting 2 s for worker:2 (waits for ps:0)``.

        Args:
            missing: the tasks that are not up, with what each says it is waiting for.
            now_s: the monotonic clock.
        """
        waited_s = now_s - self.started_s
        if not missing or waited_s < self._next_word_s:
            return None
        self._next_word_s = waited_s * 2
        return f"waiting {waited_s:.0f} s for {_names(missing)}"

    def failure(self, missing: Mapping[TaskId, str | None], now_s: float) -> str | None:
        """Return why the run must be given up, if it must."""
        if not missing or now_s < self.started_s + self.timeout_s:
            return None
        return f"not up within {self.timeout_s:g} s (--start-timeout): {_names(missing)}"


def _names(missing: Mapping[TaskId, str | None]) -> str:
    shown = [f"{task} (waits for {whom})" if whom else str(task) for task, whom in list(missing.items())[:5]]
    return ", ".join(shown) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
