"""A run's report, and the list of runs, as tables for people. Which columns there are depends on the room."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from dtrain.cluster import TaskId
from dtrain.config.choices import On
from dtrain.messages.membership import TaskStatus
from dtrain.process.plain_text import bytes_text, plain_data, plain_line
from dtrain.runs.ledger import ledger_text
from dtrain.runs.states import LIVE_RUN_STATES, RunState, TaskState
from dtrain_cli.console.live_table import (
    INPUT_BOUND,
    INPUT_STALLS_S,
    STYLES,
    duration_text,
    evaluation_text,
    fitted_table,
    new_table,
)
from dtrain_cli.console.streams import own_stdout
from dtrain_cli.runs.advice import Row, advice, slow_replicas, total_examples_per_s
from dtrain_cli.runs.index import moment
from dtrain_cli.runs.report import lost_tasks, lost_texts

PIPE_WIDTH = 1000


def stdout_console() -> Console:
    """Return a console as wide as the terminal, or as COLUMNS says; a pipe has room for everything."""
    console = Console(highlight=False, file=own_stdout())
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


def _number(value: float) -> str:
    return f"{value:.4g}"


COLUMNS: Mapping[str, tuple[int, str, Callable[[Any], str]]] = {
    # field of the report: how soon it gives way to others (0: never), heading, how it is written
    "task": (0, "task", str),
    "state": (0, "state", str),
    "pid": (11, "pid", str),
    "host": (12, "host", str),
    "stage": (7, "stage", str),
    "step": (1, "step", str),
    "local_steps": (8, "local steps", str),
    "loss": (2, "loss", _number),
    "examples_per_s": (3, "ex/s", lambda value: f"{value:,.0f}"),
    "staleness_mean": (5, "staleness", lambda value: f"{value:.2f}"),
    "stale_gradients": (6, "too late", lambda count: str(count) if count else ""),
    "bytes_sent": (13, "sent", bytes_text),
    "bytes_received": (14, "received", bytes_text),
    "input_share": (7, "input", lambda share: f"{share:.0%}" if share >= INPUT_BOUND else ""),
    "reading_s": (4, "reads for", lambda age: f"{age:.0f} s" if age >= INPUT_STALLS_S else ""),
    "cpu_percent": (7, "cpu", lambda value: f"{value:.0f}%"),
    "memory_bytes": (8, "memory", bytes_text),
    "restarts": (9, "restarts", lambda count: str(count) if count else ""),
    "heartbeat_age_s": (10, "heartbeat", lambda age: f"{age:.1f} s"),
    "waiting_for": (4, "waiting for", str),
    "exit_code": (9, "exit", str),
}
TRAFFIC_OF_ROUNDS = ("local_steps", "bytes_sent", "bytes_received")
"""The traffic of a replica: a run with local steps shows this column at any width."""
_LEFT = {"task", "state", "host", "waiting_for"}


def rows_of(report: Mapping[str, Any]) -> list[Row]:
    """Return what the live table of a launch knows of each task."""
    fields = {"step", "waiting_for", "examples_per_s", "waiting_share", "input_share"}
    fields |= {"staleness_mean", "stale_gradients"}
    return [
        Row(
            TaskId.parse(task["task"]),
            task["state"],
            task["restarts"],
            TaskStatus(task["task"], 0, "", **{name: task[name] for name in fields}),
        )
        for task in report["tasks"]
    ]


def status_table(
    report: Mapping[str, Any],
    width: int,
    tasks: Sequence[Mapping[str, Any]] | None = None,
    *,
    left: str = "",
    sorted_by: tuple[str, str] = ("", ""),
    chosen: int | None = None,
) -> Group:
    """Return the whole report, at most `width` columns wide.

    Args:
        tasks: those that have a row; None: all of them.
        left: how long the run will take, if that is known.
        sorted_by: the column by which they are sorted, and the mark of its direction.
        chosen: the row that is marked.
    """
    report = plain_data(report)
    known = rows_of(report)
    live = report["state"] in LIVE_RUN_STATES
    rate = total_examples_per_s(known) if live else None
    parts: list[Any] = [_headline(report)]
    tasks = report["tasks"] if tasks is None else plain_data(tasks)
    rows = [{name: cell_of(task, name) for name in COLUMNS} for task in tasks]
    parts += [_table(rows, width, sorted_by, chosen)] if rows else []
    if rows and len(rows) < len(report["tasks"]):
        parts.append(Text(f"and {len(report['tasks']) - len(rows)} more tasks", style="dim"))
    if report["evaluation"]:
        parts.append(Text(f"evaluation: {evaluation_text(report['evaluation'], report['global_step'])}"))
    if text := "  ".join(each for each in (rate and f"{rate:,.0f} examples/s", left) if each):
        parts.append(Text(text))
    for text in advice(known, slow_replicas(known), report["global_step"]) if live else ():
        parts.append(Text(text, style="yellow", overflow="fold"))
    if report["goodput"]:
        parts.append(Text(ledger_text(report["goodput"])))
    if report["unsaved"]:
        parts.append(
            Text(
                f"checkpoints can no longer be saved: {report['unsaved']}",
                style="bold red",
                overflow="fold",
            )
        )
    lost = lost_tasks(report)
    parts += [Text(text, style="red", overflow="fold") for text in lost_texts(lost)]
    if report["failure"] and report["failure"]["task"] not in {task["task"] for task in lost}:
        parts.append(Text(f"{report['failure']['task']} failed: {report['failure']['message']}", style="red"))
    parts.append(Text(f"files in {report['run_dir']}", style="dim", overflow="fold"))
    return Group(*parts)


def runs_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    table = new_table()
    rows: list[tuple[str, ...]] = [tuple(map(plain_line, _run_row(run))) for run in runs]
    headings: tuple[str, ...] = ("run", "name", "state", "step", "took", "started", "where")
    if all(run["where"] == On.LOCAL for run in runs):  # a column that says nothing
        headings, rows = headings[:-1], [row[:-1] for row in rows]
    for heading, *cells in zip(headings, *rows, strict=True):
        whole = max(len(heading), *map(len, cells))
        # The run says the name too: that alone gives way where there is little room.
        is_name = heading == "name"
        justify: Any = "right" if heading in ("step", "took") else "left"
        table.add_column(
            heading,
            justify=justify,
            no_wrap=not is_name,
            overflow="ellipsis",
            min_width=1 if is_name else whole,
        )
    for run_id, name, state, *rest in rows:
        table.add_row(Text(run_id), Text(name), Text(state, style=STYLES.get(state, "")), *rest)
    return table


def _run_row(run: Mapping[str, Any]) -> tuple[str, ...]:
    step = "" if run["global_step"] is None else str(run["global_step"])
    started = moment(run["started"])
    since = started.strftime("%Y-%m-%d %H:%M") if started else ""
    return run["run"], run["name"], run["state"], step, _took(run), since, run["where"]


def _took(run: Mapping[str, Any]) -> str:
    started = moment(run["started"])
    ended = datetime.now(UTC) if run["state"] in LIVE_RUN_STATES else moment(run["ended"])
    return duration_text(max(0.0, (ended - started).total_seconds())) if started and ended else ""


def _headline(report: Mapping[str, Any]) -> Text:
    text = Text.assemble(f"run {report['run']}  ", (report["state"], STYLES.get(report["state"], "")))
    if report["exit_code"]:
        text.append(f" (exit code {report['exit_code']})")
    if report["global_step"] is not None:
        unit = "step" if report.get("local_steps") is None else "round"
        text.append(f"  {unit} {report['global_step']}")
        text.append(f" of {report['max_steps']}" if report["max_steps"] else "")
    if took := _took(report):
        text.append(f"  {took}")
    if report["stalled"]:
        text.append(f"  {report['stalled']}", style="bold red" if report["state"] == RunState.RUNNING else "")
    if report["rolled_back_steps"]:
        text.append(f"  rolled back {report['rolled_back_steps']} steps")
    return text


def cell_of(task: Mapping[str, Any], name: str) -> str:
    """Return the text of a column for a task; "" where it has nothing to say."""
    if name == "exit_code" and (task["state"] == TaskState.SUCCEEDED or not (task[name] or task["message"])):
        return ""  # a task that is stopped after the run's success ends with 143
    return "" if task[name] is None else plain_line(COLUMNS[name][2](task[name]))


def _table(
    rows: Sequence[Mapping[str, str]], width: int, sorted_by: tuple[str, str], chosen: int | None
) -> Table:
    one_host = len({row["host"] for row in rows}) == 1
    headings = {
        name: heading + (sorted_by[1] if name == sorted_by[0] else "")
        for name, (_, heading, _) in COLUMNS.items()
        if not (one_host and name == "host")
    }
    in_rounds = any(row.get("local_steps") for row in rows)
    if in_rounds:
        headings["step"] = headings["step"].replace("step", "round")
    kept = {sorted_by[0], *(TRAFFIC_OF_ROUNDS if in_rounds else ())}
    may_go = [name for name in headings if COLUMNS[name][0] and name not in kept]
    first_to_go = sorted(may_go, key=lambda name: -COLUMNS[name][0])
    table = fitted_table(rows, headings, COLUMNS.keys() - _LEFT, first_to_go, "waiting_for", width)
    if chosen is not None:
        table.rows[chosen].style = "reverse"
    return table
