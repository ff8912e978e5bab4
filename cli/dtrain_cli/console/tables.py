"""The shared parts of the tables of a running launch and of `status` and `runs`: colours, frame, columns."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

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


def new_table() -> "Table":
    """Return an empty table with a line under its heading."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))


def columns_that_fit(widths: Mapping[str, int], first_to_go: Iterable[str], width: int) -> list[str]:
    """Return the columns that a table of limited width shows, in their order.

    Args:
        widths: of every column, in characters.
        first_to_go: the columns that may be left out, the least important first.
        width: of the table, in characters.
    """
    kept = dict(widths)
    for name in first_to_go:
        if sum(kept.values()) + _GAP * (len(kept) - 1) <= width:
            break
        kept.pop(name, None)
    return list(kept)
