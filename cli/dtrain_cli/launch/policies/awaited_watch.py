"""Lines about replicas for which others wait, from the second second on. Pure: the clock is an argument."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from dtrain.messages.status import TaskStatus
from dtrain_cli.launch.policies.awaited_tasks import tasks_in

FIRST_WORD_S = 2.0
REMEMBERED = 5


@dataclass
class AwaitedWatch:
    """Names the replica that has not delivered, and what, at growing distances.

    Where the last waits were all that long, as in a cluster of slow steps, only one that is twice as long as
    these is told.
    """

    _ended_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _whom: str | None = None
    _waited_s: float = 0.0
    _next_s: float = FIRST_WORD_S

    def look(self, statuses: Mapping[str, TaskStatus], now_s: float) -> str | None:
        """Return the line that is due, if any: ``waiting for worker:2, gradient of step 311, 4.1 s``.

        Args:
            statuses: by task, of those that run.
            now_s: the monotonic clock, as in the statuses.
        """
        found = _longest(statuses)
        if found is None or found.waiting_for != self._whom:
            if self._whom is not None and self._waited_s >= FIRST_WORD_S:
                self._ended_s.append(self._waited_s)
            usual_s = max(self._ended_s) if len(self._ended_s) == REMEMBERED else 0.0
            self._next_s = max(FIRST_WORD_S, 2 * usual_s)
            self._whom = None if found is None else found.waiting_for
        if found is None or found.waiting_monotonic_s is None:
            return None
        self._waited_s = now_s - found.waiting_monotonic_s
        if self._waited_s < self._next_s:
            return None
        self._next_s = 2 * self._waited_s
        return f"waiting for {found.waiting_for}, {self._waited_s:.1f} s"


def _longest(statuses: Mapping[str, TaskStatus]) -> TaskStatus | None:
    """Return the one that waits longest for a replica that neither waits itself nor says what it does."""
    free = {task for task, said in statuses.items() if not said.waiting_for and not said.busy_with}
    waiting = [said for said in statuses.values() if free & set(tasks_in(said.waiting_for or ""))]
    return min(waiting, key=lambda said: said.waiting_monotonic_s or 0.0, default=None)
