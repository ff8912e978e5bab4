"""The `wait` section."""

from collections.abc import Iterator
from dataclasses import dataclass

from dtrain.config.problems import Problem, at_least

GRACE_S = {True: 10.0, False: 25.0}
"""Under a launcher, and without one: an engine that stops machines gives their tasks 30 s."""


@dataclass(frozen=True)
class WaitSection:
    """Deadlines for waits on other tasks, in seconds.

    Attributes:
        start_s: for tasks to appear, from the start on.
        server_s: for a server that was lost to come back.
        leader_s: for the leader to come back, from the end of its lease on; the servers then end.
        grace_s: how long a task may take to end by itself after the order to stop; None: see `grace`.
    """

    start_s: float = 60.0
    server_s: float = 60.0
    leader_s: float = 60.0
    grace_s: float | None = None

    def problems(self) -> Iterator[Problem]:
        """Yield the mistakes that types do not exclude."""
        yield from at_least(self, 0, "start_s", "server_s", "leader_s", "grace_s")

    def grace(self, launched: bool) -> float:
        """Return the time from the order to stop to SIGKILL, under a launcher or without one."""
        return GRACE_S[launched] if self.grace_s is None else self.grace_s
