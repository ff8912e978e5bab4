"""What stands on a terminal: a table that is erased where it is, also after the user has changed the
width.
"""

import os

import pytest

from dtrain_cli.console.run_console import RunConsole


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
