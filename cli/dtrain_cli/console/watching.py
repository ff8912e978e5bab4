"""`dtrain status --watch` on a terminal: a table as in htop, moved through, sorted and opened by keys.

`WatchScreen` is pure: keys and reports go in, lines come out. `watch` has the terminal: it reads keys one by
one, shows the other screen buffer meanwhile, and gives both back however it ends.
"""

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from dtrain.cluster import TaskId
from dtrain.runs.files import RunFiles
from dtrain.runs.states import LIVE_RUN_STATES
from dtrain_cli.console.live_table import StepPace, pace_of, telling_first, time_left
from dtrain_cli.console.run_table import COLUMNS, cell_of, rows_of, status_table, stdout_console
from dtrain_cli.console.streams import CLEAR, PlainBytes
from dtrain_cli.runs.logs import TaskOutput

EVERY_S = 1.0
KEYS = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "k": "up",
    "j": "down",
    " ": "page down",
    "<": "left",
    ">": "right",
    "\x1b[D": "left",
    "\x1b[C": "right",
    "r": "reverse",
    "\r": "open",
    "\n": "open",
    "l": "open",
    "\x1b": "back",
    "q": "quit",
}
HELP = "↑↓ choose  ←→ sort by another column  r reverse  Enter its log  q quit"
HELP_OF_LOG = "↑↓ PgUp PgDn scroll  Esc back  q quit"
_OTHER_LINES = 5
"""The lines beside those of tasks: two of the heading, one for the number of hidden tasks, one for the keys,
and the last line of the screen, where the cursor stands."""


class WatchScreen:
    """The state of the screen: what is shown, and where the user has moved to.

    Attributes:
        task: the chosen one.
        opened: whether its log is shown instead of the table.
        back: how many lines of the log lie below the screen.
    """

    def __init__(self, lines_of: Callable[[str, int], list[str]]) -> None:
        """`lines_of` returns the last lines that a task has printed, at most so many."""
        self._lines_of = lines_of
        self._order: list[str] = []
        self._columns: list[str] = []
        self._sorted_by = ""
        self._descends = False
        self._pace: StepPace | None = None
        self._first = 0
        self.task: str | None = None
        self.opened = False
        self.back = 0
        self.ends = False

    def press(self, key: str, page: int) -> None:
        """React to a key of KEYS; `page` is the number of lines of a screen."""
        moves = {"up": -1, "down": 1, "page up": -page, "page down": page}
        if key == "quit":
            self.ends = True
        elif key == "back":
            self.opened = False
        elif self.opened:
            self.back = max(0, self.back - moves.get(key, 0))
        elif key == "open":
            self.opened, self.back = self.task is not None, 0
        elif key in ("left", "right"):
            names, turn = ["", *self._columns], 1 if key == "right" else -1
            place = names.index(self._sorted_by) if self._sorted_by in names else 0
            self._sorted_by = names[(place + turn) % len(names)]
            self._descends = self._sorted_by not in ("", "task", "state", "host")
        elif key == "reverse":
            self._descends = not self._descends
        elif key in moves and self.task in self._order:
            place = self._order.index(self.task) + moves[key]
            self.task = self._order[max(0, min(place, len(self._order) - 1))]

    def render(self, report: Mapping[str, Any], console: Console, now_s: float) -> Group:
        """Return what fits on the screen of `console`; `now_s` is of any clock that goes on."""
        step, last = report["global_step"], report["max_steps"]
        if step is not None:
            self._pace = pace_of(self._pace, step, now_s)
        if self.opened and self.task is not None:
            return self._log(self.task, console)
        left = time_left(self._pace, last, now_s) if self._pace and last else ""
        beside = console.render_lines(status_table(report, console.width, (), left=left), pad=False)
        room = max(1, console.height - len(beside) - _OTHER_LINES)
        self._columns = [name for name in COLUMNS if any(cell_of(task, name) for task in report["tasks"])]
        tasks = self._sorted(report, room)
        self._order = [task["task"] for task in tasks]
        if self.task not in self._order:
            self.task = self._order[0] if self._order else None
        chosen = self._order.index(self.task) if self.task else 0
        self._first = max(min(self._first, chosen, len(tasks) - room), chosen - room + 1, 0)
        shown = tasks[self._first : self._first + room]
        by = self._sorted_by, "▼" if self._descends else "▲"
        marked = chosen - self._first if shown else None
        table = status_table(report, console.width, shown, left=left, sorted_by=by, chosen=marked)
        return Group(table, Text(HELP, style="reverse", no_wrap=True, overflow="crop"))

    def _sorted(self, report: Mapping[str, Any], room: int) -> list[dict[str, Any]]:
        """Return the tasks in the order that the user has chosen; those without a value stay behind.

        As long as he has chosen none, tasks in trouble come first where not all have room.
        """
        tasks = {task["task"]: task for task in report["tasks"]}
        if not self._sorted_by:
            rows = rows_of(report)
            order = [str(row.task) for row in (telling_first(rows) if len(rows) > room else rows)]
            return [tasks[name] for name in (reversed(order) if self._descends else order)]
        by_name = sorted(tasks.values(), key=lambda task: TaskId.parse(task["task"]), reverse=self._descends)
        if self._sorted_by == "task":
            return by_name
        known = [task for task in by_name if task[self._sorted_by] is not None]
        known.sort(key=lambda task: task[self._sorted_by], reverse=self._descends)
        return known + [task for task in by_name if task[self._sorted_by] is None]

    def _log(self, task: str, console: Console) -> Group:
        room = max(1, console.height - 3)
        lines = self._lines_of(task, room + self.back)
        self.back = min(self.back, max(0, len(lines) - room))
        end = len(lines) - self.back
        shown = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines[max(0, end - room) : end]]
        head = Text(f"{task}: what it has printed", style="bold", no_wrap=True)
        return Group(head, *shown, Text(HELP_OF_LOG, style="reverse", no_wrap=True, overflow="crop"))


def last_lines(files: RunFiles, task: str, count: int) -> list[str]:
    """Return the last lines of a task's log as plain text."""
    output = TaskOutput(files, TaskId.parse(task))
    output.skip_to_last(count)
    plain = PlainBytes()
    return "".join(plain.text(line).decode() for line in output.lines(ended=True)).splitlines()[-count:]


def watch(reports: Iterator[dict[str, Any]], files: RunFiles) -> dict[str, Any]:
    """Show a run until it ends or the user quits; return the last report.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    screen = WatchScreen(lambda task, count: last_lines(files, task, count))
    with _keys() as read:
        for report in reports:
            until_s = time.monotonic() + EVERY_S
            while True:
                console = stdout_console()
                console.file.write(CLEAR)
                console.print(screen.render(report, console, time.monotonic()))
                console.file.flush()
                left_s = until_s - time.monotonic()
                if screen.ends or report["state"] not in LIVE_RUN_STATES or left_s <= 0:
                    break
                for key in read(left_s):
                    screen.press(key, max(1, console.height - 6))
            if screen.ends or report["state"] not in LIVE_RUN_STATES:
                return report
    raise AssertionError("a run that lives has another report")


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], list[str]]]:
    """Yield a function that waits for keys for so many seconds, with the terminal's other screen shown.

    Where the keys are not this command's (`< /dev/null`), it only waits.
    """
    fd = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = termios.tcgetattr(fd) if fd is not None else []

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        if fd is not None:
            tty.setcbreak(fd)
        _write("\x1b[?1049h\x1b[?25l")
        yield lambda wait_s: _read(fd, wait_s)
    finally:
        _write("\x1b[?25h\x1b[?1049l")
        with contextlib.suppress(termios.error):  # the terminal has gone
            if fd is not None:
                termios.tcsetattr(fd, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _write(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), text.encode())


def _read(fd: int | None, wait_s: float) -> list[str]:
    ready, _, _ = select.select([] if fd is None else [fd], [], [], wait_s)
    if fd is None or not ready:
        return []
    typed = os.read(fd, 1024).decode(errors="ignore")
    if not typed:
        return ["quit"]  # the terminal has gone
    keys = []
    while typed:
        sequence = max((each for each in KEYS if typed.startswith(each)), key=len, default=typed[0])
        keys += [KEYS[sequence]] if sequence in KEYS else []
        typed = typed[len(sequence) :]
    return keys
