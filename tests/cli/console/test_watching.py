"""`status --watch`: what keys do to the table and the log, on a screen of any size."""

import re

import pytest
from cli.launch.test_launch_terminal import Terminal
from clusters.watching import DIGITS
from launching import wait_until
from rich.console import Console

from dtrain_cli.console.watching import WatchScreen

LINES = [f"line {number}" for number in range(100)]


def task(name, **measures):
    empty = dict.fromkeys(
        [
            "pid",
            "host",
            "step",
            "loss",
            "examples_per_s",
            "staleness_mean",
            "stale_gradients",
            "stage",
            "local_steps",
            "bytes_sent",
            "bytes_received",
            "cpu_percent",
            "memory_bytes",
            "heartbeat_age_s",
            "waiting_for",
            "waiting_share",
            "input_share",
            "reading_s",
            "exit_code",
            "message",
        ]
    )
    return {**empty, "task": name, "state": "running", "restarts": 0, **measures}


def report(tasks, step=10):
    return {
        "run": "r1",
        "state": "running",
        "started": "2026-11-27T10:00:00+00:00",
        "ended": None,
        "exit_code": None,
        "global_step": step,
        "max_steps": 100,
        "rolled_back_steps": 0,
        "goodput": None,
        "evaluation": {"global_step": 5, "accuracy": 0.5},
        "failure": None,
        "stalled": None,
        "unsaved": None,
        "run_dir": "/runs/r1",
        "tasks": tasks,
    }


class Screen:
    """A screen of so many lines and columns, with what a person sees on it."""

    def __init__(self, tasks, height=24, width=100):
        self.tasks, self.now_s = tasks, 0.0
        self.screen = WatchScreen(lambda name, count: [f"{name} {line}" for line in LINES][-count:])
        self.height, self.width = height, width

    def lines(self, *keys, step=10):
        for _ in (0, 1):  # as in life, where each key comes after a picture
            console = Console(
                width=self.width, height=self.height, file=None, highlight=False, force_terminal=True
            )
            with console.capture() as captured:
                console.print(self.screen.render(report(self.tasks, step), console, self.now_s))
            for key in keys:
                self.screen.press(key, page=5)
            keys = ()
        self.seen = captured.get().splitlines()
        return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in self.seen]

    def names(self, *keys, step=10):
        found = (re.match(r"(chief|worker|ps):\d+", line) for line in self.lines(*keys, step=step))
        return [each[0] for each in found if each]

    @property
    def chosen(self):
        (line,) = (line for line in self.seen if re.match(r"\x1b\[7m(chief|worker|ps):", line))
        return re.match(r"[a-z]+:\d+", line[4:])[0]


FEW = [
    task("chief:0", step=10, examples_per_s=100.0),
    task("worker:0", step=9, examples_per_s=300.0),
    task("worker:1", step=8, examples_per_s=200.0),
]


def test_it_shows_the_whole_throughput_the_evaluation_and_the_time_left():
    screen = Screen(FEW)
    screen.lines(step=10)
    screen.now_s = 10.0
    lines = screen.lines(step=55)
    assert "step 55 of 100" in lines[0]
    assert "600 examples/s  0:10 left" in lines
    assert "evaluation: accuracy 0.5 when evaluated at step 5" in lines
    assert "Enter its log" in lines[-1]


def test_columns_sort_and_their_order_turns_round():
    screen = Screen(FEW)
    assert screen.names() == ["chief:0", "worker:0", "worker:1"]
    assert screen.names("right", "reverse") == ["worker:1", "worker:0", "chief:0"]
    rate = ["right"] * 3  # task, state, step, ex/s
    assert screen.names(*rate) == ["worker:0", "worker:1", "chief:0"]
    assert any("ex/s▼" in line for line in screen.lines())
    assert screen.names("reverse") == ["chief:0", "worker:1", "worker:0"]
    assert screen.names("left") == ["chief:0", "worker:0", "worker:1"], "the highest step first"


def test_tasks_without_a_value_stand_behind_however_it_is_sorted():
    screen = Screen([task("worker:0", step=None), *FEW[1:], task("ps:0")])
    assert screen.names("right", "right", "right")[:1] == ["worker:0"]
    assert screen.names("reverse")[-1:] == ["ps:0"]


def test_the_list_scrolls_with_the_chosen_task_and_no_line_is_too_much():
    screen = Screen([task(f"worker:{number}", step=number) for number in range(50)], height=16)
    screen.names("right")  # by name
    assert len(screen.lines()) <= 16
    assert screen.names()[0] == screen.chosen == "worker:0"
    first = len(screen.names())
    assert screen.names(*["down"] * first)[0] == "worker:1"
    assert screen.chosen == f"worker:{first}"
    assert screen.names(*["page down"] * 20)[-1] == screen.chosen == "worker:49"
    assert screen.names("page up")[-1] == "worker:49"
    assert screen.chosen == "worker:44"
    assert any(f"and {50 - first} more tasks" in line for line in screen.lines())


def test_where_not_all_have_room_those_in_trouble_come_first():
    tasks = [task(f"worker:{number}", step=number + 1) for number in range(50)]
    tasks[31]["state"] = "restarting"
    assert Screen(tasks, height=16).names()[0] == "worker:31"


def test_a_task_that_goes_leaves_the_choice_to_another_one():
    screen = Screen(list(FEW))
    screen.lines("down", "down")
    assert screen.chosen == "worker:1"
    screen.tasks = FEW[:2]
    screen.lines()
    assert screen.chosen == "chief:0"
    screen.tasks = []
    assert screen.names("down", "open") == []


def test_a_log_is_opened_scrolled_and_left():
    screen = Screen(FEW, height=14)
    lines = screen.lines("down", "open")
    assert lines[0].startswith("worker:0")
    assert lines[-2] == "worker:0 line 99"
    assert len(lines) <= 14
    assert screen.lines("page up", "up")[-2] == "worker:0 line 93"
    assert screen.lines(*["page up"] * 100)[1] == "worker:0 line 0"
    assert screen.lines(*["page down"] * 100)[-2] == "worker:0 line 99"
    assert screen.names("back") == ["chief:0", "worker:0", "worker:1"]


@pytest.fixture
def terminal():
    terminal = Terminal()
    yield terminal
    terminal.close()


def test_keys_on_a_terminal_which_is_given_back_as_it_was(launcher, terminal):
    import os
    import termios

    launch = launcher.start("--no-evaluator", "--workers", "1", "--ps", "1", DIGITS, "--steps", "100000")
    launch.wait_running()
    before = termios.tcgetattr(terminal.program)
    ends = {"stdin": terminal.program, "stdout": terminal.program, "stderr": terminal.program}
    watching = launcher.dtrain(
        "status", str(launch.run_dir), "--watch", environment={"TERM": "xterm"}, **ends
    )

    def shows(text):
        wait_until(
            lambda: text in re.sub(r"\x1b\[[0-9;]*m", "", terminal.read().rpartition("\x1b[2J")[2]), text
        )

    shows("Enter its log")
    os.write(terminal.person, b"\x1b[B\r")
    shows("worker:0: what it has printed")
    os.write(terminal.person, b"\x1b")
    shows("Enter its log")
    os.write(terminal.person, b"q")
    assert watching.end() == 0
    assert termios.tcgetattr(terminal.program) == before
    screen = terminal.read()
    assert screen.count("\x1b[?1049h") == screen.count("\x1b[?1049l") == 1
    assert "run " in screen.rpartition("\x1b[?1049l")[2], "the last table stays"
    assert launcher.dtrain("stop", str(launch.run_dir)).end() == 0
