"""The shared parts of the tables of a running launch and of `status` and `runs`: colours, frame, columns."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dtrain.runs.states import RunState

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
    """Return an empty table with a line under its heading."""
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

    Where there is no room, the remarks are cut first; columns are left out when even short remarks have none.

    Args:
        rows: the text of every cell, by column.
        headings: of all columns, in their order.
        numbers: the columns that are set to the right.
        first_to_go: the columns that may be left out, the least important first.
        remark: the column of remarks.
        width: of the table, in characters.
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
    """Return how many characters of a table's width its columns leave free; less than 0: they do not fit."""
    return width - sum(widths.values()) - _GAP * (len(widths) - 1)
