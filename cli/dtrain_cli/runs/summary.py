"""The numbers of a report: a table for each question, which a page and a text show alike."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Any, NamedTuple

from dtrain_cli.runs.history import (
    ALL_TASKS,
    DERIVED,
    EPOCHS,
    EVALUATION,
    SAMPLED,
    THROUGHPUT,
    TOLD,
    Chart,
    History,
    Point,
    Series,
    Story,
)
from dtrain_cli.runs.index import moment


class Table(NamedTuple):
    """A table with its question; cells are texts."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]


def overview(story: Story) -> list[dict[str, Any]]:
    """Return the figures of each run; None stands for what a run does not have."""
    return [_figures(run, history, story.charts) for run, history in enumerate(story.histories)]


def _figures(run: int, history: History, charts: Sequence[Chart]) -> dict[str, Any]:
    report = history.report
    means = [task["staleness_mean"] for task in report["tasks"] if task["staleness_mean"] is not None]
    rates = [point.value for each in _of(run, charts, THROUGHPUT, ALL_TASKS) for point in each.points]
    last: dict[str, float] = {}
    for chart in charts:
        for kind in (SAMPLED, TOLD, EPOCHS, EVALUATION):  # the later ones say more
            for series in _of(run, charts, chart.name, kind):
                last[chart.name] = series.points[-1].value
    goodput = report.get("goodput") or {}
    return {
        "run": report["run"],
        "state": str(report["state"]),
        "global_step": report["global_step"],
        "seconds": _seconds(report) or history.length_s,
        "steps_per_s": _pace(history),
        "examples_per_s": fmean(rates) if rates else None,
        "staleness_mean": fmean(means) if means else None,
        "stale_gradients": sum(task["stale_gradients"] or 0 for task in report["tasks"]),
        "restarts": sum(task["restarts"] for task in report["tasks"]),
        "rolled_back_steps": report["rolled_back_steps"],
        "goodput": goodput.get("share"),
        "final": last,
    }


def _of(run: int, charts: Sequence[Chart], name: str, kind: str) -> list[Series]:
    found = [each for chart in charts if chart.name == name for each in chart.series]
    return [each for each in found if (each.run, each.kind) == (run, kind) and each.points]


def _seconds(report: Mapping[str, Any]) -> float | None:
    started, ended = moment(report["started"]), moment(report["ended"])
    return ((ended or datetime.now(UTC)) - started).total_seconds() if started else None


def _pace(history: History) -> float | None:
    """Return the steps per second between the first and the last numbers that tasks have told."""
    made = history.lines[-1]["global_step"] - history.lines[0]["global_step"] if history.lines else 0
    for_s = history.lines[-1]["at_s"] - history.lines[0]["at_s"] if history.lines else 0.0
    if made > 0 and for_s > 0:
        return float(made / for_s)
    return history.report["global_step"] / history.length_s if history.report["global_step"] else None


def tables_of(story: Story) -> list[Table]:
    """Return the overview, and what happened, if anything did."""
    several = len(story.labels) > 1
    found = [overview_table(overview(story))]
    marks = [
        (*([label] if several else []), f"{mark.at_s:.1f}", str(mark.step), mark.text)
        for label, history in zip(story.labels, story.histories, strict=True)
        for mark in history.marks
    ]
    if marks:
        found.append(Table("What happened", (*(["run"] if several else []), "second", "step", "what"), marks))
    return found


def overview_table(figures: Sequence[Mapping[str, Any]]) -> Table:
    """Return the figures of runs as rows; a column in which no run has anything is left out."""
    metrics = dict.fromkeys(name for each in figures for name in each["final"])
    rows = [_overview_row(each, [name for name in metrics if name not in DERIVED]) for each in figures]
    heads = [head for head in rows[0] if any(row[head] is not None for row in rows)] if rows else []
    texts = [tuple("" if row[head] is None else str(row[head]) for head in heads) for row in rows]
    return Table("Runs", tuple(heads), texts)


def _overview_row(each: Mapping[str, Any], metrics: Sequence[str]) -> dict[str, Any]:
    return {
        "mode": each.get("mode"),
        "run": each["run"],
        "state": each["state"],
        "steps": each["global_step"],
        "seconds": None if each["seconds"] is None else f"{each['seconds']:.1f}",
        "steps/s": short(each["steps_per_s"]),
        "examples/s": short(each["examples_per_s"]),
        **{name: short(each["final"].get(name)) for name in metrics},
        "staleness": short(each["staleness_mean"]),
        "too late": each["stale_gradients"] or None,
        "restarts": each["restarts"] or None,
        "rolled back": each["rolled_back_steps"] or None,
        "goodput": None if each["goodput"] is None else f"{each['goodput']:.1%}",
    }


def short(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def time_tables(story: Story) -> list[Table]:
    """Return for each run the share of each activity in each task's time, and for whom it waited."""
    return [
        _time_table(history, f" in {label}" if len(story.labels) > 1 else "")
        for history, label in zip(story.histories, story.labels, strict=True)
        if history.times
    ]


def _time_table(history: History, where: str) -> Table:
    rows = []
    used = activities(history)
    for task, times in history.times.items():
        whole = sum(times.seconds.values()) or 1.0
        longest = sorted(times.waits.items(), key=lambda each: -each[1])[:3]
        named = [f"{whom} {seconds / whole:.1%}" for whom, seconds in longest if seconds >= whole / 1000]
        shares = (f"{times.seconds.get(name, 0.0) / whole:.1%}" for name in used)
        rows.append((task, *shares, ", ".join(named)))
    heads = ("task", *(name.replace("_", " ") for name in used), "waits most for")
    return Table(f"Where the time of each task{where} went, by {history.source}", heads, rows)


def activities(history: History) -> list[str]:
    """Return the activities on which any task has spent time."""
    known = dict.fromkeys(name for times in history.times.values() for name in times.seconds)
    return [name for name in known if any(times.seconds.get(name) for times in history.times.values())]


def numbers_table(chart: Chart, labels: Sequence[str]) -> Table:
    """Return the first, least, greatest and last value of each series, with the steps of the latter three."""

    def at(point: Point) -> str:
        return f"{short(point.value)} at {point.step}"

    rows = [
        (
            series_label(series, labels),
            short(series.points[0].value) or "",
            *(at(pick(series.points, key=lambda point: point.value)) for pick in (min, max)),
            at(series.points[-1]),
        )
        for series in chart.series
    ]
    return Table(chart.title, ("series", "first", "least", "greatest", "last"), rows)


def series_label(series: Series, labels: Sequence[str]) -> str:
    return series.kind if len(labels) == 1 else f"{labels[series.run]}: {series.kind}"
