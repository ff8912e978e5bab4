"""What stands on a terminal: a table that is erased where it is, also after the user has changed the
width.
"""

import io
import os
import signal

import pytest
from rich.console import Console

from dtrain.cluster import TaskId
from dtrain_cli.console import run_console
from dtrain_cli.console.run_console import RunConsole
from dtrain_cli.console.run_table import runs_table


class Screen:
    """In place of an `Outlet` onto a terminal."""

    is_terminal, is_pipe, clogged, idle, closed, trouble, fd = True, False, False, True, False, None, 1

    def __init__(self):
        self.written = ""

    def write(self, text):
        self.written += text

    def flush(self):
        """Nothing is pending."""


@pytest.mark.parametrize(("columns", "lines_erased"), [(80, 3), (120, 3), (50, 5), (20, 8)])
def test_the_whole_table_is_erased_after_the_width_has_changed(monkeypatch, columns, lines_erased):
    monkeypatch.setenv("TERM", "xterm")
    size = [os.terminal_size((80, 24))]
    monkeypatch.setattr(RunConsole, "_size", lambda self: size[0])
    screen = Screen()
    console = RunConsole(
        screen, screen, lambda width, height, colour: f"{'a' * 70}   \n\x1b[32m{'b' * 60}\x1b[0m\n\n"
    )
    console.pump()
    assert f"{'a' * 70}\n" in screen.written, "no blanks at the end, which a terminal would break too"
    size[0], screen.written = os.terminal_size((columns, 24)), ""
    console.say("a word")
    # A terminal that becomes narrower breaks the lines that are there: 70 columns are 4 lines of 20.
    assert screen.written.startswith(f"\r\x1b[{lines_erased}A\x1b[J")


def test_a_launch_that_is_stopped_and_goes_on_while_it_draws_erases_nothing(monkeypatch):
    """The shell has written meanwhile."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(run_console, "TABLE_EVERY_S", 0.0)
    screen, stops = Screen(), []

    def table(*_):
        for number in stops:
            signal.raise_signal(number)
        return "a table"

    console, before = RunConsole(screen, screen, table), signal.getsignal(signal.SIGCONT)
    try:
        console.forget_screen_when_continued()
        console.pump()
        console.pump()
        assert screen.written.count("\x1b[J") == 1, "it erases its own table"
        stops.append(signal.SIGCONT)
        console.pump()
        assert screen.written.count("\x1b[J") == 1
    finally:
        signal.signal(signal.SIGCONT, before)


def test_a_task_that_was_quiet_for_long_is_heard_within_a_second_and_then_at_once(tmp_path, monkeypatch):
    now_s = [1000.0]
    monkeypatch.setattr(run_console.time, "monotonic", lambda: now_s[0])
    log = tmp_path / "output.log"
    log.touch()
    screen = Screen()
    screen.is_terminal = False
    console = RunConsole(screen, screen)
    console.follow(TaskId.parse("worker:0"), log)
    console.pump()
    now_s[0] += 60
    console.pump()
    for text, later_s in (("one", 1.0), ("two", 0.05), ("three", 0.05)):
        with log.open("a") as file:
            file.write(f"{text}\n")
        now_s[0] += later_s
        console.pump()
        now_s[0] += 0.05
        console.pump()
    assert screen.written == "worker:0 | one\nworker:0 | two\nworker:0 | three\n"


def test_a_line_of_a_task_breaks_between_words_and_begins_behind_the_label(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(RunConsole, "_size", lambda self: os.terminal_size((40, 24)))
    path = f"/{'folder/' * 6}file"
    (tmp_path / "output.log").write_text(
        f"  short   line\nepoch 1/40 - 1.2 s - loss: 0.1234\nsaved {path} now\ndtrain: worker:0: waits\n"
    )
    screen = Screen()
    console = RunConsole(screen, screen)
    console.follow(TaskId.parse("worker:0"), tmp_path / "output.log")
    console.finish(None, None, None)
    found = [line.replace("worker:0 ", "").lstrip("| ") for line in screen.written.splitlines()]
    assert found == [
        "short   line",
        "epoch 1/40 - 1.2 s - loss:",
        "0.1234",
        "saved",
        path,
        "now",
        "dtrain: waits",
    ]
    behind = [line for line in screen.written.splitlines() if not line.startswith("worker:0")]
    assert all(line.startswith(" " * screen.written.index("  short")) for line in behind)


def test_the_start_of_a_run_is_whole_at_80_columns():
    run = {
        "run": "20261127-100000-custom_loop-1a2b",
        "name": "custom_loop",
        "state": "succeeded",
        "global_step": 12345,
        "started": "2026-11-27T10:00:00",
        "ended": "2026-11-27T10:12:34",
        "where": "local",
    }
    out = io.StringIO()
    Console(file=out, width=80, color_system=None).print(runs_table([run]))
    assert " 2026-11-27 10:00\n" in out.getvalue()
