"""The way to the task that leads, where another one leads when it has died."""

from collections.abc import Sequence

from dtrain.cluster import TaskId
from dtrain.errors import PeerError
from dtrain.process.clock import SYSTEM, Clock
from dtrain.wire.channel import Channel
from dtrain.wire.connector import ConnectTask

ATTEMPT_S = 1.0
"""The longest attempt to reach a task that may be gone; one on this host says so at once."""
COMES_S = 2.0
"""The first leader may take so long to appear before others are asked."""


class LeaderFinder:
    """Asks the task that led last, and then the others by rank, until one leads.

    Attributes:
        task: to be asked next.
    """

    def __init__(self, candidates: Sequence[TaskId], connect: ConnectTask, clock: Clock = SYSTEM) -> None:
        """Begin with the first of the tasks that may lead.

        Args:
            candidates: by rank, at least one.
            connect: opens a connection to a task.
            clock: the time.
        """
        self._candidates = candidates
        self._connect = connect
        self._clock = clock
        self._others_from_s = clock.now() + COMES_S
        self.task = candidates[0]

    def connect(self, timeout_s: float) -> Channel:
        """Open a connection to the task that is to be asked; where it cannot be reached the next one is.

        Raises:
            PeerError: it cannot be reached within `timeout_s`, or refuses.
        """
        try:
            channel = self._connect(self.task, min(timeout_s, ATTEMPT_S))
        except PeerError:
            if self._clock.now() >= self._others_from_s:
                self.go_on()
            raise
        self._others_from_s = 0.0
        return channel

    def go_on(self) -> None:
        """Ask the next task: this one does not lead, or is gone."""
        place = self._candidates.index(self.task)
        self.task = self._candidates[(place + 1) % len(self._candidates)]

    def led_by_rank(self, rank: int) -> None:
        """Ask the task of a rank next."""
        self.led_by(self._candidates[min(rank, len(self._candidates) - 1)])

    def led_by(self, task: TaskId) -> None:
        """Ask this task next: it leads, as far as is known."""
        self.task = task if task in self._candidates else self._candidates[0]
        self._others_from_s = 0.0
