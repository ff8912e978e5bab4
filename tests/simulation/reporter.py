"""A task's account of itself without a reader."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from dtrain.runs.trace import NO_TRACE


class Reporter:
    """As much of `dtrain.runs.reporting.Reporter` as drivers use; `say` hears warnings."""

    bytes_moved: Any = None
    trace = NO_TRACE

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self.status = SimpleNamespace(attempt=0, step=-1, max_steps=0, rolled_back_steps=0)
        self.warn = self.announce = say

    def current(self) -> dict[str, Any]:
        return {}

    def begins(self) -> None: ...
    def slow_down(self, begun_s: None) -> None: ...
    def waiting(self, for_whom: str | None) -> None: ...
    def behind(self, server: str, others: str | None) -> None: ...
    def progress(self, step: int, loss: float | None = None, examples: int = 0) -> None: ...
    def tried_to_save(self, step: int, failure: str | None) -> None: ...
