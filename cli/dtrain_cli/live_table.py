"""The table under the log lines of a terminal: every task's state, and the run's progress."""

import math
import statistics
import time
from dataclasses import dataclass
from io import StringIO

from dtrain.cluster import TaskId
from dtrain.run_files import TaskStatus, global_step

SPARKS = "▁▂▃▄▅▆▇█"
STYLES = {
    "running": "green",
    "starting": "yellow",
    "restarting": "yellow",
    "stopping": "yellow",
    "failed": "bold red",
    "succeeded": "dim green",
}
SLOW = 2.0
"""A replica that takes so many times the time of the others is called slow."""
_LOSSES_MAX = 24
_OTHER_LINES = 5
_BAR_MIN, _BAR_MAX = 10, 30


@dataclass(frozen=True)
class Row:
    """What the table shows of one task."""

    task: TaskId
    state: str
    restarts: int
    status: TaskStatus | None


class LiveTable:
    """Renders the table under a run's name; remembers the losses for the sparkline, and the first step for the rest of the time."""

    def __init__(self, headline: str) -> None:
        self._headline = headline
        self._started_s = time.monotonic()
        self._losses: list[float] = []
        self._losses_step = -1
        self._first: tuple[float, int] | None = None

    def render(self, rows: list[Row], width: int, height: int, colour: bool) -> str:
        """The table as text with escape codes.

        Args:
            rows: the tasks, in the order of display.
            width: of the terminal, in columns.
            height: of the terminal, in lines; the most telling tasks are shown if not all fit.
            colour: whether escape codes for colour may be used.
        """
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
        columns = ("task", "state", "step", "loss", "ex/s", "staleness", "")
        for name in columns:
            table.add_column(name, justify="right" if name in columns[2:6] else "left", no_wrap=True, overflow="ellipsis")
        shown = _most_telling(rows, max(1, height - _OTHER_LINES))
        slow = slow_replicas(rows)
        for row in shown:
            state = f"{row.state} ({row.restarts}x)" if row.restarts else row.state
            remark = Text(_remark(row, slow.get(row.task)), style="yellow")
            table.add_row(str(row.task), Text(state, style=STYLES.get(row.state, "")), *_numbers(row), remark)
        out = StringIO()
        console = Console(file=out, width=width - 1, force_terminal=True, no_color=not colour, highlight=False)
        console.print(table)
        if len(shown) < len(rows):
            console.print(Text(f"and {len(rows) - len(shown)} tasks more", style="dim"))
        console.print(self._progress(rows, width - 1), no_wrap=True, overflow="ellipsis", crop=True)
        return out.getvalue()

    def _progress(self, rows: list[Row], width: int) -> str:
        statuses = [row.status for row in rows if row.status is not None]
        step = global_step(statuses)
        last = max((status.max_steps for status in statuses if status.max_steps is not None), default=None)
        self._note_loss(statuses, step)
        elapsed_s = time.monotonic() - self._started_s
        text = f"{self._headline}  {int(elapsed_s) // 60}:{int(elapsed_s) % 60:02d}"
        if step is not None:
            text += f"  step {step}" + (f"/{last}" if last else "")
        left = self._time_left(step, last, elapsed_s) if step is not None and last else ""
        shown = min(len(self._losses), width - len(text) - len(left) - len("  loss   ") - _BAR_MIN)
        if shown > 1:
            text += f"  loss {sparkline(_logarithms(self._losses[-shown:]))}"
        bar = min(width - len(text) - len(left) - 2, _BAR_MAX)
        if step is not None and last and bar >= _BAR_MIN:
            filled = round(bar * min(1.0, step / last))
            text += f"  {'━' * filled}{'─' * (bar - filled)}"
        return text + left

    def _time_left(self, step: int, last: int, elapsed_s: float) -> str:
        """``  1:05 left``, at the rate since the first step that was seen; nothing before there is one, or after the last."""
        self._first = self._first or (elapsed_s, step)
        done = step - self._first[1]
        if done <= 0 or step >= last:
            return ""
        left_s = int((last - step) * (elapsed_s - self._first[0]) / done)
        return f"  {left_s // 60}:{left_s % 60:02d} left"

    def _note_loss(self, statuses: list[TaskStatus], step: int | None) -> None:
        losses = [status.loss for status in statuses if status.loss is not None]
        if losses and step is not None and step > self._losses_step:
            self._losses_step = step
            self._losses = [*self._losses, sum(losses) / len(losses)][-_LOSSES_MAX:]


def sparkline(values: list[float]) -> str:
    """A line of bars from the least to the greatest finite value; a space where there is no number."""
    finite = [value for value in values if abs(value) < float("inf")]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0
    return "".join(SPARKS[int((value - low) / span * (len(SPARKS) - 1))] if abs(value) < float("inf") else " " for value in values)


def _logarithms(losses: list[float]) -> list[float]:
    """So that a sparkline shows more than the first fall; as they are if one is not positive."""
    return [math.log(loss) for loss in losses] if min(losses) > 0 else losses


def slow_replicas(rows: list[Row]) -> dict[TaskId, float]:
    """How many times as long as the others' a slow replica's examples take it, the time left out in which it waits for others."""
    took_s = {
        row.task: (1 - (row.status.waiting_share or 0.0)) / row.status.examples_per_s
        for row in rows
        if row.task.trains and row.state == "running" and row.status is not None and row.status.examples_per_s
    }
    factors = {}
    for task, own_s in took_s.items():
        others_s = statistics.median([other_s for other, other_s in took_s.items() if other != task] or [own_s])
        if others_s > 0 and own_s >= SLOW * others_s:
            factors[task] = own_s / others_s
    return factors


def _most_telling(rows: list[Row], count: int) -> list[Row]:
    """All of them, or those in trouble, those that wait, and those furthest behind."""
    if len(rows) <= count:
        return rows

    def calmness(row: Row) -> tuple[bool, bool, int]:
        waits = row.status is not None and row.status.waiting_for is not None
        step = row.status.step if row.status is not None and row.status.step is not None else 1 << 62
        return row.state == "running", not waits, step

    chosen = {row.task for row in sorted(rows, key=calmness)[: count - 1]}
    return [row for row in rows if row.task in chosen]


def _numbers(row: Row) -> tuple[str, ...]:
    if row.status is None:
        return ("",) * 4
    status = row.status
    numbers = (
        ("{}", status.step),
        ("{:.4f}" if status.loss and 1e-3 <= abs(status.loss) < 1e3 else "{:.2e}", status.loss),
        ("{:,.0f}", status.examples_per_s),
        ("{:.2f}", status.staleness_mean),
    )
    return tuple("" if value is None else form.format(value) for form, value in numbers)


def _remark(row: Row, slowness: float | None) -> str:
    if row.status is not None and row.status.waiting_for and row.state in ("starting", "running", "stopping"):
        return f"waits for {row.status.waiting_for}"
    return f"{slowness:.1f} x slower" if slowness else ""
