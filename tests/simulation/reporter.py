"""A task's account of itself: its trace goes into the story of the run, and the rest is read by none."""

from collections.abc import Callable
from typing import Any

from dtrain.messages.membership import TaskStatus
from dtrain.runs.events import AnyEvent
from dtrain.runs.trace import Happened, Line, Span, Trace


class VirtualTrace(Trace):
    """A trace whose lines are told with the virtual time; off where no story is listened to."""

    def __init__(self, task: str, network: Any) -> None:
        super().__init__(None, lambda: network.clock.now)
        self.on = network.tells
        self._task = task
        self._network = network
        self.heard: Callable[[AnyEvent], None] = lambda event: None

    def event(self, event: AnyEvent) -> None:
        self.heard(event)
        super().event(event)

    def write(self, line: Line) -> None:
        if isinstance(line, Happened):
            self._network.say(f"{self._task} {line.what}")
        elif isinstance(line, Span):
            whom = f" for {line.whom}" if line.whom else ""
            self._network.say(f"{self._task} {line.name}{whom}: {line.for_s:.3f} s")


class Reporter:
    """As much of `dtrain.runs.reporting.Reporter` as drivers use."""

    bytes_moved: Any = None

    def __init__(self, task: str, network: Any) -> None:
        self.status = TaskStatus(task, pid=0, host="", step=-1, max_steps=0)
        self.trace = VirtualTrace(task, network)
        self._clock = network.clock
        self._waiting: tuple[str, float] | None = None
        self.warn = self.announce = self.refused = lambda text: network.say(f"{task}: {text}")

    def waiting(self, for_whom: str | None) -> None:
        if not self.trace.on:
            return
        if self._waiting is not None and self._waiting[1] < self._clock.now:
            self.trace.span("wait", self._waiting[1], self._clock.now, self._waiting[0])
        self._waiting = None if for_whom is None else (for_whom, self._clock.now)

    def current(self) -> TaskStatus:
        return self.status

    def begins(self) -> float:
        return 0.0

    def slow_down(self, begun_s: float) -> None: ...
    def running(self) -> None: ...
    def fit_ends(self) -> None: ...
    def behind(self, server: str, others: str | None) -> None: ...
    def progress(self, step: int, loss: float | None = None, examples: int = 0) -> None: ...
    def tried_to_save(self, step: int, failure: str | None) -> None: ...
