"""The table under the log lines of a launch, and what it shares with those of `status` and `runs`."""

import math
import textwrap
import time
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

from dtrain.cluster import Role, TaskId
from dtrain.messages.membership import NEXT_CHECKPOINT, TaskStatus, global_step
from dtrain.process.plain_text import bytes_text, plain_line
from dtrain.runs.states import HAS_PROCESS, RunState, TaskState
from dtrain_cli.runs.advice import Row, advice, slow_replicas, total_examples_per_s

SPARKS = "▁▂▃▄▅▆▇█"
INPUT_BOUND = 0.1
"""The share of its time spent on waiting for batches from which a task is said to be bound by its input."""
INPUT_STALLS_S = 2.0
REMARK = ""
NUMBERS = {"step": "{}", "loss": "{:.4f}", "ex/s": "{:,.0f}", "staleness": "{:.2f}", "too late": "{}"}
NUMBERS |= {"local steps": "{}", "sent": "{}"}
_SMALL_LOSS = "{:.2e}"
_COLUMNS = {name: name for name in ("task", "state", *NUMBERS, REMARK)}
_FIRST_TO_GO = ("too late", "staleness", "ex/s", "loss", REMARK)
_LOSSES_MAX = 24
_OTHER_LINES = 4
"""Lines that are not tasks': the heading, the progress, and one that is not the table's."""
_ROOM = 12
"""The number of lines for tasks from which numbers of the whole run, and advice, may take some of them."""
_BAR_MIN = 10
_BAR_MAX = 30


class StepPace(NamedTuple):
    """The pace of a run: when the first of its steps was seen, that step, and the newest one."""

    since_s: float
    first: int
    step: int


class LiveTable:
    """The table under a run's name; it keeps losses for the sparkline, the first step for the time left."""

    def __init__(self, headline: str) -> None:
        self._headline = headline
        self._started_s = time.monotonic()
        self._losses: list[float] = []
        self._losses_step = -1
        self._pace: StepPace | None = None
        self._slow: dict[TaskId, float] = {}

    def render(self, rows: list[Row], width: int, height: int, colour: bool) -> str:
        """Return the table as text with escape codes; where not all rows fit, it has the most telling."""
        from rich.console import Console
        from rich.text import Text

        step = global_step(row.status for row in rows if row.status is not None)
        self._slow = slow_replicas(rows, self._slow)
        beside = [Text(_numbers(rows, step))] if _numbers(rows, step) else []
        first = next(advice(rows, self._slow, step), "")
        beside += [Text(line, style="yellow") for line in textwrap.wrap(first, width - 1)]
        room = height - _OTHER_LINES
        if len(rows) + len(beside) > room < _ROOM:
            beside = []
        shown = most_telling(rows, room - len(beside))
        cells = [_cells(row, self._slow.get(row.task)) for row in shown]
        table = fitted_table(cells, _COLUMNS, NUMBERS, _FIRST_TO_GO, REMARK, width - 1)
        out = StringIO()
        console = Console(
            file=out, width=width - 1, force_terminal=True, no_color=not colour, highlight=False
        )
        console.print(table)
        if len(shown) < len(rows):
            console.print(Text(f"and {len(rows) - len(shown)} more tasks", style="dim"))
        for line in (*beside, self._progress(rows, step, width - 1)):
            console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        return out.getvalue()

    def _progress(self, rows: list[Row], step: int | None, width: int) -> str:
        statuses = [row.status for row in rows if row.status is not None]
        last = max((status.max_steps for status in statuses if status.max_steps is not None), default=None)
        self._note_loss(statuses, step)
        elapsed_s = time.monotonic() - self._started_s
        text = f"{plain_line(self._headline)}  {duration_text(elapsed_s)}"
        if step is not None:
            in_rounds = any(status.local_steps is not None for status in statuses)
            text += f"  {'round' if in_rounds else 'step'} {step}" + (f"/{last}" if last else "")
        under_way = any(row.state == TaskState.RUNNING for row in rows)
        if step is not None:
            self._pace = pace_of(self._pace, step, elapsed_s)
        left = time_left(self._pace, last, elapsed_s) if self._pace and last and under_way else ""
        left = left and f"  {left}"
        shown = min(len(self._losses), width - len(text) - len(left) - len("  loss   ") - _BAR_MIN)
        if shown > 1:
            losses = self._losses[-shown:]
            # Logarithms show more than the first fall.
            bars = [math.log(loss) for loss in losses] if min(losses) > 0 else losses
            text += f"  loss {sparkline(bars)}"
        bar = min(width - len(text) - len(left) - 2, _BAR_MAX)
        if step is not None and last and bar >= _BAR_MIN:
            filled = round(bar * min(1.0, step / last))
            text += f"  {'━' * filled}{'─' * (bar - filled)}"
        return text + left

    def _note_loss(self, statuses: list[TaskStatus], step: int | None) -> None:
        losses = [status.loss for status in statuses if status.loss is not None]
        if losses and step is not None and step > self._losses_step:
            self._losses_step = step
            self._losses = [*self._losses, sum(losses) / len(losses)][-_LOSSES_MAX:]


def _numbers(rows: list[Row], step: int | None) -> str:
    """Return the throughput of all tasks together, and the newest evaluation."""
    rate = total_examples_per_s(rows)
    found = [row.status.evaluation for row in rows if row.status is not None and row.status.evaluation]
    newest = max(found, key=lambda each: each.get("global_step", 0), default=None)
    texts = (
        "" if rate is None else f"{rate:,.0f} examples/s",
        "" if newest is None else f"evaluation: {evaluation_text(newest, step)}",
    )
    return plain_line("  ".join(filter(None, texts)))


def pace_of(before: StepPace | None, step: int, now_s: float) -> StepPace:
    """Return the pace of a run that is at this step now; a rollback begins another."""
    return StepPace(now_s, step, step) if before is None or step < before.step else before._replace(step=step)


def time_left(pace: StepPace, last: int, now_s: float) -> str:
    done = pace.step - pace.first
    if done <= 0 or pace.step >= last:
        return ""
    return f"{duration_text((last - pace.step) * (now_s - pace.since_s) / done)} left"


def duration_text(seconds: float) -> str:
    """Format as ``1:05`` or ``2:00:05``."""
    minutes, rest_s = divmod(int(seconds), 60)
    return f"{minutes}:{rest_s:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest_s:02d}"


def evaluation_text(evaluation: Mapping[str, float], step: int | None) -> str:
    """Return ``loss 0.035, accuracy 0.991``, with the step of the evaluation if it is not `step`."""
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in evaluation.items() if name != "global_step")
    of = evaluation.get("global_step", step)
    return numbers if of == step else f"{numbers} when evaluated at step {of:.0f}"


def sparkline(values: list[float]) -> str:
    """Return a line of bars from the least to the greatest finite value; a space where there is no number."""
    finite = [value for value in values if abs(value) < float("inf")]
    low = min(finite, default=0.0)
    high = max(finite, default=0.0)
    span = (high - low) or 1.0
    return "".join(
        SPARKS[int((value - low) / span * (len(SPARKS) - 1))] if abs(value) < float("inf") else " "
        for value in values
    )


def most_telling(rows: list[Row], lines: int) -> list[Row]:
    """Choose the rows for so many lines; where not all fit, one line is left for the number of the others."""
    if len(rows) <= lines:
        return rows
    chosen = {row.task for row in telling_first(rows)[: max(1, lines - 1)]}
    return [row for row in rows if row.task in chosen]


def telling_first(rows: Iterable[Row]) -> list[Row]:
    """Sort: tasks in trouble, then waiting ones, then one of each role in turn, the slowest worker first."""
    taken: dict[Role, int] = defaultdict(int)
    turns: dict[TaskId, tuple[int, tuple[int, int]]] = {}
    for row in sorted(rows, key=lambda row: (_step(row) if row.task.role is Role.WORKER else 0, row.task)):
        turns[row.task] = taken[row.task.role], row.task.sort_key
        taken[row.task.role] += 1

    def calmness(row: Row) -> tuple[bool, bool, tuple[int, tuple[int, int]]]:
        waits = row.status is not None and row.status.waiting_for not in (None, NEXT_CHECKPOINT)
        return row.state == TaskState.RUNNING, not waits, turns[row.task]

    return sorted(rows, key=calmness)


def _step(row: Row) -> int:
    return row.status.step if row.status is not None and row.status.step is not None else 1 << 62


def _cells(row: Row, slowness: float | None) -> dict[str, str]:
    status = row.status or TaskStatus(str(row.task), 0, "")
    numbers = (status.step, status.loss, status.examples_per_s, status.staleness_mean)
    sent = None if status.local_steps is None else bytes_text(status.bytes_sent or 0)
    values = (*numbers, status.stale_gradients or None, status.local_steps, sent)
    forms = NUMBERS | ({} if status.loss is None or 1e-3 <= abs(status.loss) < 1e3 else {"loss": _SMALL_LOSS})
    cells = {
        name: "" if value is None else forms[name].format(value)
        for name, value in zip(NUMBERS, values, strict=True)
    }
    state = f"{row.state} ({row.restarts}x)" if row.restarts else row.state
    return {"task": str(row.task), "state": state, **cells, REMARK: plain_line(_remark(row, slowness))}


def _remark(row: Row, slowness: float | None) -> str:
    if row.status is None or row.state not in HAS_PROCESS:
        return ""
    if row.status.waiting_for == NEXT_CHECKPOINT:
        return "idle"
    waits = f"waits for {row.status.waiting_for}" if row.status.waiting_for else ""
    # A task that waits most of the time computes too little for a comparison.
    slower = f"{slowness:.1f} x slower" if slowness and not waits else ""
    reads = _of_input(row.status) if row.state == TaskState.RUNNING else ""
    return ", ".join(filter(None, (waits, slower, reads)))


def _of_input(status: TaskStatus) -> str:
    if status.reading_monotonic_s is not None:
        reads_s = status.monotonic_s - status.reading_monotonic_s
        if reads_s >= INPUT_STALLS_S:
            return f"reads its next batch for {reads_s:.0f} s"
    share = status.input_share or 0.0
    return f"input {share:.0%}" if share >= INPUT_BOUND else ""


if TYPE_CHECKING:
    from rich.table import Table

STYLES: Mapping[str, str] = {
    RunState.RUNNING: "green",
    RunState.SUCCEEDED: "green",
    RunState.FAILED: "bold red",
    RunState.STALE: "bold red",
    RunState.STOPPED: "yellow",
    RunState.STARTING: "yellow",
    RunState.STOPPING: "yellow",
    "restarting": "yellow",
}
"""Styles by the state of a run or of a task."""
_GAP = 2
_REMARK_MIN = len("9.9 x slower")


def new_table() -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))


def fitted_table(
    rows: Sequence[Mapping[str, str]],
    headings: Mapping[str, str],
    numbers: Container[str],
    first_to_go: Iterable[str],
    remark: str,
    width: int,
) -> "Table":
    """Return a table of the columns that say something, at most `width` characters wide.

    Where there is no room, the `remark` column is cut first, then columns go in the order of `first_to_go`.
    The columns in `numbers` are set to the right.
    """
    from rich.text import Text

    widths = {
        name: max(len(heading), *(len(row[name]) for row in rows))
        for name, heading in headings.items()
        if any(row[name] for row in rows)
    }
    longest = widths.get(remark, 0)
    if remark in widths:
        widths[remark] = min(longest, _REMARK_MIN)
    for name in first_to_go:
        if _room(widths, width) >= 0:
            break
        widths.pop(name, None)
    if remark in widths:
        widths[remark] = min(longest, max(0, _room(widths, width)) + widths[remark])
    table = new_table()
    for name, column in widths.items():
        justify: Any = "right" if name in numbers else "left"
        table.add_column(headings[name], justify=justify, width=column, no_wrap=True, overflow="ellipsis")
    for row in rows:
        styles = {"state": STYLES.get(row["state"].partition(" ")[0], ""), remark: "yellow"}
        table.add_row(*(Text(row[name], style=styles.get(name, "")) for name in widths))
    return table


def _room(widths: Mapping[str, int], width: int) -> int:
    return width - sum(widths.values()) - _GAP * (len(widths) - 1)
