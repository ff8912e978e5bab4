"""The report of runs in a terminal: charts of characters, and the tables of the page."""

from bisect import bisect_right
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from dtrain.process.plain_text import plain_line
from dtrain_cli.console.live_table import SPARKS, new_table
from dtrain_cli.console.run_console import render
from dtrain_cli.runs.history import ALL_TASKS, EPOCHS, EVALUATION, REPORTED, STEPS, TITLES, Series, Story
from dtrain_cli.runs.summary import ReportTable, series_label, short, tables_of, time_tables

ROWS = 4
WIDTH_MAX = 80
COLUMNS_MAX = 6
"""Runs or tasks that have room side by side."""
_ASCII = ".:|#"
_MARGIN = 11


def print_story(story: Story, console: Console) -> None:
    """Print the report, at most 80 columns wide, in ASCII where the terminal has no UTF-8."""
    console.width = width = min(console.width, WIDTH_MAX)
    overview, *others = tables_of(story)
    print_table(turned(overview) if len(story.labels) <= COLUMNS_MAX else overview, console)
    for failure in (history.failure for history in story.histories):
        if failure is not None and not console.options.ascii_only:
            console.file.write(render(failure, width, colour=False))
        elif failure is not None:
            console.print(Text(plain_line(f"{failure.task} failed: {failure.message}")))
    levels = " " + (_ASCII if console.options.ascii_only else SPARKS)
    for name, chart in story.charts.items():
        whole = [each for each in chart if each.kind in (STEPS, EPOCHS, EVALUATION, REPORTED, ALL_TASKS)]
        if whole:
            console.print(Text(f"\n{plain_line(TITLES.get(name, name))}", style="bold"))
        for series in whole:
            last = f"{short(series.points[-1].value)} at step {series.points[-1].step}"
            label = f"{series_label(series, story.labels)}, last {last}"
            console.print(Text(plain_line(label), style="dim"))
            console.print(Text("\n".join(_drawn(series, width - _MARGIN, levels))))
    for table in (each for each in time_tables(story) if len(each.heads) > 2):
        print_table(turned(table) if len(table.rows) <= COLUMNS_MAX else table, console)
    for table in others:
        print_table(table, console)


def turned(table: ReportTable) -> ReportTable:
    """Return a table whose rows are columns: runs have more figures than a terminal has room for."""
    heads, *rows = zip(table.heads, *table.rows, strict=True)
    return ReportTable(table.title, heads, rows)


def print_table(table: ReportTable, console: Console) -> None:
    console.print(Text(f"\n{plain_line(table.title)}", style="bold"))
    shown = new_table()
    for head in table.heads:
        shown.add_column(plain_line(head), overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(plain_line(cell)) for cell in row))
    console.print(shown)


def _drawn(series: Series, width: int, levels: str) -> Iterator[str]:
    """Yield the lines of a chart over seconds; at each column stands the newest value by then."""
    moments = [point.at_s for point in series.points]
    first_s, last_s = moments[0], moments[-1]
    places = (bisect_right(moments, first_s + (last_s - first_s) * x / (width - 1)) for x in range(width))
    values = [series.points[max(0, place - 1)].value for place in places]
    low, high = min(values), max(values)
    finest = len(levels) - 1
    # The least value has one level, so that it is seen.
    heights = [1 + round((value - low) / ((high - low) or 1.0) * (ROWS * finest - 1)) for value in values]
    for row in reversed(range(ROWS)):
        said = {ROWS - 1: short(high), 0: short(low)}.get(row) or ""
        yield f"{said:>{_MARGIN - 2}} " + "".join(
            levels[min(finest, max(0, height - row * finest))] for height in heights
        )
    yield f"{'':>{_MARGIN - 2}} {f'{first_s:.1f} s':<{width // 2}}{f'{last_s:.1f} s':>{width - width // 2}}"
