"""The user's view of a run while it runs, and the box with the earliest cause when it has failed.

The tasks' lines go to stdout, everything of dtrain's own to stderr. On a terminal a live table stands under
the lines (unless another program shows them there), and lines that several tasks print at once are shown
once. Nothing here ever waits for a reader (see `streams`).
"""

import os
import re
import signal
import textwrap
import time
from collections.abc import Callable
from datetime import datetime
from io import StringIO
from pathlib import Path

from dtrain.cluster import TaskId
from dtrain.formats.remote_files import masked
from dtrain.process.plain_text import plain
from dtrain.runs.files import FailureRecord
from dtrain.runs.states import FailureKind
from dtrain_cli.console.log_lines import LINE_BYTES_MAX, LogTail, collapse, without_colours
from dtrain_cli.console.streams import Outlet
from dtrain_cli.runs.index import shown_names
from dtrain_cli.runs.report import cut

BATCH_S = 0.2
TABLE_EVERY_S = 0.5
LAST_WORDS_S = {True: 20.0, False: 3.0}
"""The longest wait for a slow reader at the end: a terminal (True) that was stopped, any other (False)."""
_LABEL_COLOURS = {"chief": 36, "worker": 32, "ps": 34, "evaluator": 35}
_PUMP_S = 0.05
_QUIET_S = 5.0
_LOOK_AT_QUIET_S = 1.0
"""How long a log without news counts as quiet, and how often quiet ones are looked at."""

Table = Callable[[int, int, bool], str]
"""Renders the live table for a width, a height, and with or without colour."""


class RunConsole:
    """Lines, words and table of one launch."""

    def __init__(self, stdout: Outlet, stderr: Outlet, table: Table | None = None) -> None:
        live = stderr.is_terminal and os.environ.get("TERM") != "dumb"
        both = live and stdout.is_terminal
        self._out = stdout
        self._err = stdout if both else stderr  # one queue keeps lines and table in order
        self._colour = live and not os.environ.get("NO_COLOR")
        self._lines_to_terminal = stdout.is_terminal
        self._table = table if live and not stdout.is_pipe else None
        self._table_widths: list[int] = []
        self._next_batch_s = self._next_table_s = 0.0
        self._label_width = 0
        self._tails: dict[TaskId, list[LogTail]] = {}
        self._heard_s: dict[TaskId, float] = {}
        self._lively: list[TaskId] = []
        self._next_look_s = 0.0

    def follow(self, task: TaskId, log: Path) -> None:
        self._label_width = max(self._label_width, len(str(task)))
        # A program reads a JSON object only whole.
        line_bytes_max = LINE_BYTES_MAX if self._lines_to_terminal else None
        self._heard_s[task] = time.monotonic()
        self._next_look_s = 0.0
        self._tails.setdefault(task, []).append(LogTail(task, log, line_bytes_max=line_bytes_max))

    def say(self, text: str) -> None:
        self._show_lines(until_s=0.0)
        self._erase_table()
        self._err.write(self._between_words(f"dtrain: {plain(masked(text))}") + "\n")

    def leave_out_stacks(self) -> None:
        """Show no stacks from now on: those of a cluster are thousands of lines."""
        for tail in (tail for tails in self._tails.values() for tail in tails):
            tail.without_stacks = True

    def forget_screen_when_continued(self) -> None:
        """Let the table begin anew below what the shell has written, whenever this process goes on after
        Ctrl-Z: at once, as it may have been stopped while it draws.
        """
        signal.signal(signal.SIGCONT, lambda *_: self._table_widths.clear())

    def pump(self) -> None:
        now_s = time.monotonic()
        self._out.flush()
        self._err.flush()
        self._report_trouble()
        if now_s >= self._next_batch_s:
            self._next_batch_s = now_s + (BATCH_S if self._lines_to_terminal else 0.0)
            self._show_lines(until_s=now_s + _PUMP_S)
        if self._table and now_s >= self._next_table_s and self._err.idle:
            self._next_table_s = now_s + TABLE_EVERY_S
            self._draw_table()

    def finish(
        self,
        failure: FailureRecord | None,
        last_word: str | None,
        report: str | None,
        way_on: str | None = None,
    ) -> None:
        """Show what is left of the logs, a last table, and the last lines: `failure` is the box on stderr,
        `report` a line on stdout, and `way_on` a command line in one piece, for people copy it.
        """
        deadline_s = time.monotonic() + LAST_WORDS_S[self._err.is_terminal]
        while (
            more := self._show_lines(until_s=deadline_s, to_the_end=True)
        ) and time.monotonic() < deadline_s:
            self._out.flush()
            if self._out.clogged:
                time.sleep(0.005)
        if more and not self._out.closed:
            self.say("the reader of the output is too slow; the last lines are only in the log files")
        self._report_trouble()
        if self._table:
            self._draw_table()
            self._table_widths = []
        if last_word:
            self.say(last_word)
        if way_on:
            self._err.write(f"dtrain: {plain(masked(way_on))}\n")
        if report is not None:
            self._out.write((plain(report) if self._lines_to_terminal else report) + "\n")
        if failure is not None:
            self._err.write(render(failure, self._size().columns, self._colour))
        while not (self._out.idle and self._err.idle) and time.monotonic() < deadline_s:
            self._out.flush()
            self._err.flush()
            time.sleep(0.005)

    def _show_lines(self, until_s: float, to_the_end: bool = False) -> bool:
        more = False
        while not self._out.clogged or self._out.closed:
            tasks = list(self._tails) if to_the_end else self._with_news(time.monotonic())
            batch = [(task, line) for task in tasks for line in self._read(task, to_the_end)]
            more = bool(batch)
            self._print(batch)
            if not more or time.monotonic() >= until_s:
                break
        else:
            more = True
        return more

    def _with_news(self, now_s: float) -> list[TaskId]:
        """Return the tasks whose logs are read now: reading those of idle tasks would cost most."""
        if now_s < self._next_look_s:
            return list(self._lively)
        self._next_look_s = now_s + _LOOK_AT_QUIET_S
        self._lively = [task for task in self._tails if now_s - self._heard_s[task] < _QUIET_S]
        return list(self._tails)

    def _read(self, task: TaskId, to_the_end: bool) -> list[str]:
        """Return new lines of a task; the log of an earlier attempt is read to its end first."""
        tails = self._tails[task]
        while not (lines := tails[0].read(to_the_end or len(tails) > 1)) and len(tails) > 1:
            del tails[0]
        if lines:
            self._heard_s[task] = time.monotonic()
            if task not in self._lively:
                self._lively.append(task)
        return lines

    def _print(self, batch: list[tuple[TaskId, str]]) -> None:
        if not batch:
            return
        if self._lines_to_terminal:
            self._erase_table()
            text = "".join(f"{self._labelled(label, line)}\n" for label, line in collapse(batch))
        else:
            text = "".join(f"{task} | {without_colours(line)}\n" for task, line in batch)
        self._out.write(text)

    def _report_trouble(self) -> None:
        if self._out.trouble:
            text = self._out.trouble
            self._out.trouble = None
            self.say(f"stdout: {text}; the output that is missing there is in the log files")

    def _labelled(self, label: str, line: str) -> str:
        padded = f"{label:<{self._label_width}} |"
        text = self._between_words(f"{padded} {line}", len(padded) + 1)
        if not self._colour:
            return text
        colour = _LABEL_COLOURS.get(label.partition(":")[0].partition(" ")[0], 37)
        return f"\x1b[{colour}m{padded}\x1b[0m{text[len(padded) :]}"

    def _erase_table(self) -> None:
        if self._table_widths:
            columns = self._size().columns  # a terminal that has become narrower has broken the long lines
            height = sum(max(1, -(-width // columns)) for width in self._table_widths)
            self._err.write(f"\r\x1b[{height}A\x1b[J")  # the terminal itself may have written ^C
            self._table_widths = []
            self._next_table_s = 0.0

    def _draw_table(self) -> None:
        if self._table is None:
            return
        size = self._size()
        lines = [line.rstrip() for line in self._table(size.columns, size.lines, self._colour).splitlines()]
        self._erase_table()
        self._err.write("".join(f"{line}\n" for line in lines))
        self._table_widths = [len(without_colours(line)) for line in lines]
        self._next_table_s = time.monotonic() + TABLE_EVERY_S

    def _between_words(self, text: str, indent: int = 8) -> str:
        if not self._err.is_terminal:
            return text
        width = self._size().columns
        if len(without_colours(text)) <= width:
            return text
        return textwrap.fill(
            text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        )

    def _size(self) -> os.terminal_size:
        try:
            columns, lines = os.get_terminal_size(self._err.fd)
        except OSError:
            return os.terminal_size((WIDTH_MAX, 24))
        return os.terminal_size((columns or 80, lines or 24))  # a terminal whose size was never set says 0


WIDTH_MAX = 110
LINES_MAX = 40
LINE_MAX = 500
TITLES = {
    FailureKind.TIMEOUT: "not finished in time",
    FailureKind.START_TIMEOUT: "not started in time",
    FailureKind.LAUNCHER: "the launcher failed",
}
"""Titles of failures that are no task's."""
_MARKS = re.compile(r"[\s|]*[~^]+\s*")
"""The marks under a line of a traceback, which point nowhere when that line is folded."""


def render(failure: FailureRecord, width: int, colour: bool) -> str:
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
        likewise = plain(f"likewise {shown_names(failure.likewise)}")
        parts.append(Text(likewise, style="dim", overflow="fold"))
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


def _shorten(lines: list[str]) -> str:
    lines = [cut(line, LINE_MAX) for line in lines if not _MARKS.fullmatch(line)]
    if len(lines) <= LINES_MAX:
        return "\n".join(lines)
    kept = LINES_MAX // 2
    return "\n".join(
        [*lines[:kept], f"... {len(lines) - 2 * kept} more lines in the log ...", *lines[-kept:]]
    )
