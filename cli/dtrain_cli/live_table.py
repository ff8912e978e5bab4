"""The table under the log lines of a terminal: every task's state, and the run's progress."""

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
    """Renders the table under a run's name; remembers the losses for the sparkline."""

    def __init__(self, headline: str) -> None:
        self._headline = headline
        self._started_s = time.monotonic()
        self._losses: list[float] = []
        self._losses_step = -1

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
        columns = ("task", "state", "step", "loss", "examples/s", "staleness", "waiting for")
        for name in columns:
            table.add_column(name, justify="right" if name in columns[2:6] else "left", no_wrap=True, overflow="ellipsis")
        shown = _most_telling(rows, max(1, height - _OTHER_LINES))
        for row in shown:
            state = f"{row.state} ({row.restarts}x)" if row.restarts else row.state
            table.add_row(str(row.task), Text(state, style=STYLES.get(row.state, "")), *_numbers(row))
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
        shown = min(len(self._losses), width - len(text) - len("  loss   ") - _BAR_MIN)
        if shown > 1:
            text += f"  loss {sparkline(self._losses[-shown:])}"
        bar = min(width - len(text) - 2, _BAR_MAX)
        if step is not None and last and bar >= _BAR_MIN:
            filled = round(bar * min(1.0, step / last))
            text += f"  {'━' * filled}{'─' * (bar - filled)}"
        return text

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
        return ("",) * 5
    status = row.status
    numbers = (
        ("{}", status.step),
        ("{:.4g}", status.loss),
        ("{:,.0f}", status.examples_per_s),
        ("{:.2f}", status.staleness_mean),
    )
    waits_for = status.waiting_for if row.state in ("starting", "running", "stopping") else None
    return (*("" if value is None else form.format(value) for form, value in numbers), waits_for or "")
