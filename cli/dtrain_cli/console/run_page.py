"""The report of runs as a page: charts that lie over each other, where time went, what happened, spec."""

from collections.abc import Sequence
from html import escape

from dtrain_cli.console import page as pages
from dtrain_cli.console.page import ChartLine, PageChart, folded, table
from dtrain_cli.runs.history import (
    ALL_TASKS,
    EPOCHS,
    EVALUATION,
    REPORTED,
    STEPS,
    TITLES,
    RunHistory,
    Series,
    Story,
)
from dtrain_cli.runs.summary import (
    ReportTable,
    activities,
    numbers_table,
    series_label,
    tables_of,
    time_tables,
)

_AXES = {"step": "global step", "s": "seconds since the start"}
_DASHES = {EVALUATION: [8, 5], EPOCHS: [2, 4]}
"""The dashes of lines that join points far from each other."""
_SAID = ("input", "compute", "wait")
"""The activities that tasks tell over time."""


def run_page(story: Story) -> str:
    """Return the page of one run, or of several that are compared."""
    labels = story.labels
    several = len(labels) > 1
    overview, *others = tables_of(story)
    drawn = [_drawn(name, series, labels) for name, series in story.charts.items()]
    parts = [table(overview.heads, overview.rows), *map(_failure, story.histories)]
    parts += [pages.SWITCH, pages.chart_places(drawn)] if drawn else []
    timed = [history for history in story.histories if history.times]
    for shares, history in zip(time_tables(story), timed, strict=True):
        parts += _times(shares, history)
    parts += [f"<h2>{escape(each.title)}</h2>{table(each.heads, each.rows)}" for each in others]
    for label, history in zip(labels, story.histories, strict=True):
        of = f" of {label}" if several else ""
        parts.append(folded(f"Spec{of}", pages.plain_json(history.spec)))
        parts.append(folded(f"Versions{of}", table(history.versions, [history.versions.values()])))
    marks = [
        {"x": {"step": mark.step, "s": mark.at_s}, "colour": run if several else None, "text": mark.text}
        for run, history in enumerate(story.histories)
        for mark in history.marks
    ]
    only = story.histories[0].report
    title = f"Runs {', '.join(labels)}" if several else f"Run {only['run']}: {only['state']}"
    return pages.page(title, parts, drawn, marks)


def _drawn(name: str, chart: Sequence[Series], labels: Sequence[str]) -> PageChart:
    """Return a chart whose colours are runs, or, of one run, its series."""
    lines = []
    for place, series in enumerate(chart):
        points = series.points
        lines.append(
            ChartLine(
                label=series_label(series, labels),
                colour=place if len(labels) == 1 else series.run,
                x={"step": [point.step for point in points], "s": [point.at_s for point in points]},
                y=[point.value for point in points],
                dots=series.kind in _DASHES or series.kind == REPORTED,
                dash=_DASHES.get(series.kind),
                thin=series.kind not in (STEPS, ALL_TASKS, *_DASHES),
            )
        )
    numbers = numbers_table(chart, labels)
    below = folded(numbers.title, table(numbers.heads, numbers.rows))
    return PageChart(TITLES.get(name, name), _AXES, lines, True, below)


def _failure(history: RunHistory) -> str:
    failure = history.failure
    if failure is None:
        return ""
    facts = [f"exit code {failure.exit_code}" if failure.exit_code is not None else "", failure.time]
    facts += [f"likewise {', '.join(failure.likewise)}" if failure.likewise else "", failure.log or ""]
    more = failure.traceback or "\n".join(failure.standing or failure.last_lines)
    return (
        f'<div class="failure" role="alert"><h2>{escape(failure.task)} failed: {escape(failure.message)}</h2>'
        f"<pre>{escape(more)}</pre><p>{escape('; '.join(filter(None, facts)))}</p></div>"
    )


def _times(shares: ReportTable, history: RunHistory) -> list[str]:
    """Return the bars and the strips of each task beside its shares of time."""
    names = activities(history)
    rows = []
    for (task, *cells), times in zip(shares.rows, history.times.values(), strict=True):
        whole = sum(times.seconds.values()) or 1.0
        shares_of = {each: times.seconds.get(each, 0.0) / whole for each in names}
        bar = pages.stack(shares_of) if names else ""
        rows.append((task, bar, pages.strip(times.bins, _SAID) if any(times.bins) else "", *cells))
    heads = (shares.heads[0], "in all", "over the run", *shares.heads[1:])
    return [
        f"<h2>{escape(shares.title)}</h2>",
        pages.key(dict.fromkeys((*names, *_SAID))),
        table(heads, rows),
    ]
