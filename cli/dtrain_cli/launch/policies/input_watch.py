"""Lines about tasks whose next batch takes long to be read. Pure: the clock is an argument."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dtrain.messages.status import TaskStatus
from dtrain_cli.launch.policies.awaited_tasks import SILENT_S

FIRST_WORD_S = 3.0
TOLD_S = 1.0
"""A read is reported only if the task's own last status shows it as lasting this long: a task that was lost
during a read must not be reported as reading."""


@dataclass
class InputWatch:
    """Names each task that waits long for its input, for each read that lasts longer than those before."""

    _next_s: dict[str, float] = field(default_factory=dict)

    def look(self, statuses: Mapping[str, TaskStatus], now_s: float) -> str | None:
        """Return the line that is due, if any: ``worker:0 reads its next batch for 3.1 s``.

        Args:
            statuses: by task, of those that run.
            now_s: the monotonic clock, as in the statuses.
        """
        for task, said in statuses.items():
            if said.reading_monotonic_s is None or now_s - said.monotonic_s >= SILENT_S:
                continue
            if said.monotonic_s - said.reading_monotonic_s < TOLD_S:
                continue
            reads_s = now_s - said.reading_monotonic_s
            if reads_s >= self._next_s.get(task, FIRST_WORD_S):
                self._next_s[task] = 2 * reads_s
                return f"{task} reads its next batch for {reads_s:.1f} s"
        return None
