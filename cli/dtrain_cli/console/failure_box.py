"""The last thing on stderr when a run has failed: one box with the earliest cause."""

import re
from datetime import datetime
from io import StringIO

from dtrain.process.plain_text import plain
from dtrain.runs.files import FailureRecord
from dtrain.runs.states import FailureKind

WIDTH_MAX = 110
LINES_MAX = 40
LINE_MAX = 500
NAMED_MAX = 5
TITLES = {
    FailureKind.TIMEOUT: "not finished in time",
    FailureKind.START_TIMEOUT: "not started in time",
    FailureKind.LAUNCHER: "the launcher failed",
}
"""Titles of failures that are no task's."""
_MARKS = re.compile(r"[\s|]*[~^]+\s*")
"""The marks under a line of a traceback, which point nowhere when that line is folded."""


def render(failure: FailureRecord, width: int, colour: bool) -> str:
    """Return task, time, message, traceback or last lines, and where the log is, as text with a frame.

    Args:
        failure: the cause.
        width: of the terminal, in columns.
        colour: whether escape codes may be used.
    """
    from rich.box import ROUNDED
    from rich.console import Console, Group
    from rich.panel import Panel
    from rich.text import Text

    message = failure.message.partition("\n")[0] if failure.traceback else failure.message
    parts = [Text(_shorten(message.splitlines()), style="bold", overflow="fold")]
    if failure.standing:
        parts += [
            Text("\nwhere each task stood:", style="dim"),
            Text(_shorten(failure.standing), overflow="fold"),
        ]
    if failure.likewise:
        more = f" and {len(failure.likewise) - NAMED_MAX} more" if len(failure.likewise) > NAMED_MAX else ""
        parts.append(
            Text(
                plain(f"likewise {', '.join(failure.likewise[:NAMED_MAX])}{more}"),
                style="dim",
                overflow="fold",
            )
        )
    if failure.traceback:
        parts += [Text(), Text(_shorten(failure.traceback.rstrip().splitlines()), overflow="fold")]
    elif lines := [line for line in failure.last_lines if line != message]:
        parts += [Text("\nlast lines of its output:", style="dim"), Text(_shorten(lines), overflow="fold")]
    facts = [f"exit code {failure.exit_code}"] if failure.exit_code is not None else []
    if failure.peak_memory_bytes:
        facts.append(f"peak memory {failure.peak_memory_bytes / 2**20:.0f} MiB")
    if failure.attempt:
        facts.append(f"attempt {failure.attempt}")
    if failure.log:
        facts.append(f"log: {failure.log}")
    if facts:
        parts.append(Text(plain("\n" + "\n".join(facts)), style="dim", overflow="fold"))
    when = (
        f" at {datetime.fromisoformat(failure.time).astimezone():%Y-%m-%d %H:%M:%S}" if failure.time else ""
    )
    title = Text(f" {TITLES.get(failure.kind) or plain(f'{failure.task} failed')}{when} ", style="bold red")
    panel = Panel(Group(*parts), title=title, title_align="left", border_style="red", box=ROUNDED)
    out = StringIO()
    console = Console(
        file=out,
        width=min(width, WIDTH_MAX),
        force_terminal=colour,
        no_color=not colour,
        highlight=False,
        legacy_windows=False,
    )
    console.print(panel)
    return out.getvalue()


def _cut(line: str) -> str:
    """Return a line that is short enough for a box and leaves the terminal as it is."""
    line = plain(line)
    return line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]} ..."


def _shorten(lines: list[str]) -> str:
    """Return the beginning and the end of a text that is too long for a box."""
    lines = [_cut(line) for line in lines if not _MARKS.fullmatch(line)]
    if len(lines) <= LINES_MAX:
        return "\n".join(lines)
    kept = LINES_MAX // 2
    return "\n".join(
        [*lines[:kept], f"... {len(lines) - 2 * kept} more lines in the log ...", *lines[-kept:]]
    )
