"""A launch on a terminal: table, colours, collapsed lines; a terminal that is stopped, or goes away."""

import fcntl
import os
import pty
import re
import signal
import struct
import termios
import time

import psutil
import pytest
from clusters.watching import DIGITS, report_of, tasks_of
from launching import wait_until

SMALL = ("--ps", "1", "--no-evaluator", "--workers", "2")
PROGRAM = """
status(step=400, max_steps=410, loss=1 / 400, examples_per_s=1234.5)
wait_for(run_dir / "go")
print("restored step 400", flush=True)
wait_for(run_dir / "end")
"""
TASKS = ("chief:0", "worker:0", "worker:1")


class Terminal:
    """Both ends of a pseudo terminal of 80 columns; a person sees what `read` returns."""

    def __init__(self) -> None:
        self.person, self.program = pty.openpty()
        self.resize(lines=24, columns=80)
        os.set_blocking(self.person, False)
        self.seen = ""

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.program, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self) -> str:
        try:
            while data := os.read(self.person, 1 << 16):
                self.seen += data.decode(errors="replace")
        except OSError:  # nothing now, or the other end is closed
            pass
        return self.seen

    def close(self) -> None:
        os.close(self.person)
        os.close(self.program)


@pytest.fixture
def terminal():
    terminal = Terminal()
    yield terminal
    terminal.close()


def start(launcher, terminal, *words, **environment):
    environment = {"TERM": "xterm-256color", "NO_COLOR": "", **environment}
    return launcher.start(*words, stdout=terminal.program, stderr=terminal.program, environment=environment)


def wait_end(launch, terminal) -> int:
    wait_until(lambda: (terminal.read(), launch.process.poll() is not None)[1])
    terminal.read()
    return launch.process.returncode


def test_the_table_stands_under_collapsed_lines(launcher, terminal):
    launch = start(launcher, terminal, *SMALL, launcher.program(PROGRAM))

    def shown():
        return re.sub(r"\x1b\[[0-9;]*m", "", terminal.read())

    wait_until(lambda: all(re.search(rf"{task} +running +400", shown()) for task in TASKS))
    wait_until(lambda: "\x1b[J" in terminal.read(), "the table drawn again")
    launch.send(signal.SIGSTOP)  # it finds all lines at once, as if they had been printed in one moment
    (launch.run_dir / "go").touch()
    wait_until(lambda: all(launch.log(task) for task in TASKS))
    launch.send(signal.SIGCONT)
    wait_until(lambda: "restored" in shown())
    (launch.run_dir / "end").touch()
    assert wait_end(launch, terminal) == 0
    plain = shown()
    assert "\x1b[32m" in terminal.seen, "running is green"
    assert re.search(r"tasks x3 +\| restored step 400", plain)
    assert "step 400/410" in plain
    assert "\x1b[J" in terminal.seen
    last_screen = plain.rpartition("\x1b[J")[2].splitlines()
    assert last_screen[0].split()[:2] == ["task", "state"], "the last table stays"
    *last_screen, offer = last_screen
    assert offer == f"dtrain: look at it with  dtrain report {launch.run_dir}"
    assert "succeeded after" in last_screen[-1]
    assert all(len(line) < 80 for line in last_screen)


def test_ctrl_s_stops_the_terminal_and_nothing_else(launcher, terminal):
    program = launcher.program(
        """
        status()
        wait_for(run_dir / "go")
        for line in range(20_000):
            print("a line without a reader")
        """
    )
    launch = start(launcher, terminal, *SMALL, program)
    launch.wait_running()
    os.write(terminal.person, b"\x13")
    (launch.run_dir / "go").touch()
    for task in TASKS:
        wait_until(lambda task=task: launch.log(task).count("\n") == 20_000)
    os.write(terminal.person, b"\x11")
    assert wait_end(launch, terminal) == 0
    assert "succeeded after" in terminal.seen


def test_another_program_that_shows_the_lines_has_the_terminal_to_itself(launcher, terminal):
    words = (*SMALL, launcher.program(PROGRAM))
    launch = launcher.start(*words, stderr=terminal.program, environment={"TERM": "xterm-256color"})
    launch.wait_running()
    for name in ("go", "end"):
        (launch.run_dir / name).touch()
    assert wait_end(launch, terminal) == 0
    assert sorted(launch.process.stdout) == [f"{task} | restored step 400\n" for task in TASKS]
    assert "\x1b[J" not in terminal.seen
    assert "succeeded after" in terminal.seen


def test_ctrl_z_and_fg(launcher, terminal):
    program = launcher.program("status(step=1)\nwait_for(run_dir / 'go')\n")
    launch = start(launcher, terminal, *SMALL, program)
    launch.wait_running()
    wait_until(lambda: "running" in terminal.read())
    launch.send(
        signal.SIGSTOP
    )  # what Ctrl-Z comes to; SIGTSTP itself stops no process where no shell has started the tests
    wait_until(lambda: psutil.Process(launch.process.pid).status() == psutil.STATUS_STOPPED)
    before = len(terminal.read())
    time.sleep(1.0)  # longer than the launcher would have waited
    launch.send(signal.SIGCONT)
    wait_until(lambda: "worker:1" in terminal.read()[before:])
    assert "\x1b[J" not in terminal.seen[before:].partition("worker:1")[0], (
        "what the shell wrote meanwhile is not erased"
    )
    (launch.run_dir / "go").touch()
    assert wait_end(launch, terminal) == 0


@pytest.mark.parametrize("columns", [0, 40])
def test_a_narrow_terminal_or_one_of_no_known_size(launcher, terminal, columns):
    terminal.resize(columns // 2, columns)
    launch = start(
        launcher, terminal, "--ps", "0", "--workers", "0", "--", "sh", "-c", "echo why; exit 3", NO_COLOR="1"
    )
    assert wait_end(launch, terminal) == 3
    lines = re.sub(r"\x1b\[[0-9;]*[A-Zm]", "", terminal.seen).replace("\r", "").splitlines()
    assert any(line.startswith("task  ") for line in lines)
    assert any(line.startswith("\u2502 exited with code 3") for line in lines)
    whole = [line for line in lines if str(launch.run_dir) not in line]
    assert all(len(line) <= (columns or 80) for line in whole)


def test_a_terminal_that_goes_away_stops_the_run_in_order(launcher, terminal):
    launch = start(launcher, terminal, *SMALL, launcher.program("status()\nforever()\n"))
    launch.wait_running()
    launch.send(signal.SIGHUP)
    assert wait_end(launch, terminal) == 129
    assert not launch.pids()


def test_the_table_of_a_real_run_says_how_fast_how_stale_how_slow_and_who_waits_for_whom(launcher, terminal):
    """Of the default cluster, with a slow worker that the others wait for, an idle evaluator, and a worker that
    has joined: at the usual widths of a terminal, and in `status`.
    """
    slow = ("--set", "simulate.slow.worker:1=2000", "--staleness-bound", "2")
    launch = start(launcher, terminal, *slow, DIGITS, "--steps", "100000", NO_COLOR="1")
    launch.wait_for(lambda: (launch.run_dir / "join.json").exists(), "nothing to join")
    joined = launcher.dtrain("worker", "--join", str(launch.run_dir), DIGITS, "--steps", "100000")
    launch.wait_for(lambda: tasks_of(report_of(launch.run_dir)).get("worker:2", {}).get("step"), "no join")
    step, loss, rate, staleness = r" +\d+", r" +\d\S+", r" +[\d,]+", r" +\d+\.\d\d"
    trains = f"running{step}{loss}{rate}{staleness}"
    sights = (
        r"task +state +step +loss +ex/s +staleness",
        rf"chief:0 +{trains}",
        rf"worker:1 +{trains} +\d+\.\d x slower",
        rf"worker:[02] +{trains} +waits for worker:1",
        rf"worker:2 +{trains}",
        r"evaluator:0 +running +\d+ +idle",
    )
    for columns in (80, 100, 120):
        before = len(terminal.read())
        terminal.resize(lines=30, columns=columns)

        def missed(before=before, columns=columns):
            frames = re.sub(r"\x1b\[[0-9;]*m", "", terminal.read()[before:]).split("\x1b[J")[1:]
            headed = [re.search(rf"^.*{sights[0]}\s*$", frame, re.MULTILINE) for frame in frames]
            tables = [found.string[found.start() :] for found in headed if found]  # below lines that wrap
            assert not [line for table in tables for line in table.splitlines() if len(line) >= columns]
            return [sight for sight in sights if not any(re.search(sight, table) for table in tables)]

        launch.wait_for(lambda missed=missed: not missed(), f"{missed()} in {columns} columns")
    status = launcher.dtrain("status", str(launch.run_dir))
    assert status.end() == 0
    table = status.out.partition("\nevaluation: ")[0].splitlines()[1:]
    assert [line.split()[0] for line in table[2:]][3] == "worker:2"
    assert not [line for line in table if "/" in line.replace("ex/s", "")]
    assert launcher.dtrain("stop", str(launch.run_dir)).end() == 0
    assert wait_end(launch, terminal) == joined.end() == 143
    assert "\x1b[32m" not in terminal.seen, "NO_COLOR is set"
    assert re.search(r"worker:2 +stopped", terminal.seen.rpartition("\x1b[J")[2])
