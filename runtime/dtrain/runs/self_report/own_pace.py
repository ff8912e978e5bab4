"""The pace of a task that trains: how long a step takes, and how much of that it computes."""

WINDOW_S = 1.0


class OwnPace:
    """The account of one task, written by the threads that train.

    Attributes:
        computing_s: the mean CPU time of a computation in the last window; None: there was no window yet.
        step_s: the mean time from step to step in it, without the rests by which the task is made slow.
    """

    def __init__(self) -> None:
        self.computing_s: float | None = None
        self.step_s: float | None = None
        self._begin(None)

    def _begin(self, now_s: float | None) -> None:
        self._begun_s = now_s
        self._steps = self._computations = 0
        self._computed_s = self._rested_s = 0.0

    def computed(self, used_s: float, rested_s: float) -> None:
        """Add a computation of so much CPU time, and the rest after it."""
        self._computations += 1
        self._computed_s += used_s
        self._rested_s += rested_s

    def stepped(self, now_s: float) -> None:
        """Add a step that ends now. A window lasts from the end of a step to that of another."""
        self._steps += 1
        if self._begun_s is None:
            self._begin(now_s)
        elif now_s - self._begun_s >= WINDOW_S and self._computations:
            self.computing_s = self._computed_s / self._computations
            rest_s = self._rested_s / self._computations
            self.step_s = (now_s - self._begun_s) / self._steps - rest_s
            self._begin(now_s)
