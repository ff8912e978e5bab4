"""The numbers of a report: a table for each question, which a page and a text show alike."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Any, NamedTuple

from dtrain_cli.runs.history import (
    ALL_TASKS,
    EPOCHS,
    EVALUATION,
    REPORTED,
    STEPS,
    Point,
    RunHistory,
    Series,
    Story,
)
from dtrain_cli.runs.index import moment


class ReportTable(NamedTuple):
    """A table with its question; cells are texts."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]


def figures_of(story: Story) -> list[dict[str, Any]]:
    """Return the figures of each run; None stands for what a run does not have."""
    return [_figures(*each) for each in zip(story.labels, story.histories, strict=True)]


def _figures(label: str, history: RunHistory) -> dict[str, Any]:
    report = history.report
    started, ended = moment(report["started"]), moment(report["ended"])
    took_s = ((ended or datetime.now(UTC)) - started).total_seconds() if started else None
    means = [task["staleness_mean"] for task in report["tasks"] if task["staleness_mean"] is not None]
    series = {(each.chart, each.kind): each.points for each in history.series}
    rates = [point.value for point in series.get(("throughput", ALL_TASKS), ())]
    final: dict[str, float] = {}
    for kind in (STEPS, REPORTED, EPOCHS, EVALUATION):  # the last of them says most
        final |= {chart: points[-1].value for (chart, source), points in series.items() if source == kind}
    told = series.get(("loss", STEPS)) or [Point(0.0, 0, 0.0)]
    pace = told[-1].step - told[0].step, told[-1].at_s - told[0].at_s
    if min(pace) <= 0:  # it was too short, or went back
        pace = report["global_step"] or 0, took_s or 0.0
    return {
        "run": label,
        "state": str(report["state"]),
        "steps": report["global_step"],
        "seconds": took_s,
        "steps_per_s": pace[0] / pace[1] if all(pace) else None,
        "examples_per_s": fmean(rates) if rates else None,
        "final": final,
        "mean_staleness": fmean(means) if means else None,
        "too_late": sum(task["stale_gradients"] or 0 for task in report["tasks"]) or None,
        "restarts": sum(task["restarts"] for task in report["tasks"]) or None,
        "rolled_back_steps": report["rolled_back_steps"] or None,
        "goodput": (report.get("goodput") or {}).get("share"),
    }


def figures_table(figures: Sequence[Mapping[str, Any]]) -> ReportTable:
    """Return figures as rows; a column in which no run has anything is left out."""
    rows: list[dict[str, Any]] = []
    for each in figures:
        named = {name.replace("_per_s", "/s").replace("_", " "): value for name, value in each.items()}
        final, share = named.pop("final", {}), named.pop("goodput", None)
        rows.append({**named, **final, "goodput": None if share is None else f"{share:.1%}"})
    known = dict.fromkeys(head for row in rows for head in row)
    heads = [head for head in known if any(row.get(head) is not None for row in rows)]
    return ReportTable("Runs", tuple(heads), [tuple(short(row.get(head)) for head in heads) for row in rows])


def short(value: Any) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def tables_of(story: Story) -> list[ReportTable]:
    """Return the overview, and what happened, if anything did."""
    several = len(story.labels) > 1
    marks = [
        (*([label] if several else []), f"{mark.at_s:.1f}", str(mark.step), mark.text)
        for label, history in zip(story.labels, story.histories, strict=True)
        for mark in history.marks
    ]
    heads = (*(["run"] if several else []), "second", "step", "what")
    return [
        figures_table(figures_of(story)),
        *([ReportTable("What happened", heads, marks)] if marks else []),
    ]


def time_tables(story: Story) -> list[ReportTable]:
    """Return for each run the share of each activity in each task's time, and for whom it waited."""
    return [
        _time_table(history, f" in {label}" if len(story.labels) > 1 else "")
        for history, label in zip(story.histories, story.labels, strict=True)
        if history.times
    ]


def _time_table(history: RunHistory, where: str) -> ReportTable:
    rows = []
    used = activities(history)
    for task, times in history.times.items():
        whole = sum(times.seconds.values()) or 1.0
        longest = sorted(times.waits.items(), key=lambda each: -each[1])[:3]
        named = [f"{whom} {seconds / whole:.1%}" for whom, seconds in longest if seconds >= whole / 1000]
        shares = (f"{times.seconds.get(name, 0.0) / whole:.1%}" for name in used)
        rows.append((task, *shares, ", ".join(named)))
    heads = ("task", *(name.replace("_", " ") for name in used), "waits most for")
    return ReportTable(f"Where the time of each task{where} went", heads, rows)


def activities(history: RunHistory) -> list[str]:
    """Return the activities on which any task has spent time."""
    known = dict.fromkeys(name for times in history.times.values() for name in times.seconds)
    return [name for name in known if any(times.seconds.get(name) for times in history.times.values())]


def numbers_table(chart: Sequence[Series], labels: Sequence[str]) -> ReportTable:
    """Return the first, least, greatest and last value of each series, and the steps of the latter three."""
    rows = []
    for series in chart:
        ends = (min(series.points, key=_value), max(series.points, key=_value), series.points[-1])
        shown = (f"{short(point.value)} at {point.step}" for point in ends)
        rows.append((series_label(series, labels), short(series.points[0].value), *shown))
    return ReportTable("Numbers", ("series", "first", "least", "greatest", "last"), rows)


def _value(point: Point) -> float:
    return point.value


def series_label(series: Series, labels: Sequence[str]) -> str:
    return series.kind if len(labels) == 1 else f"{labels[series.run]}: {series.kind}"
