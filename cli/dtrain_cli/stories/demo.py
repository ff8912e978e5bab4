"""`dtrain demo`: a launch of the shipped digits, whose spec kills two tasks, told in plain lines.

What is told comes from the files of the run alone: the journal's events, and what its leader prints.
"""

import re
import tempfile
import textwrap
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from dtrain.cluster import TaskId
from dtrain.errors import RunNotFoundError
from dtrain.runs.files import RunFiles, default_runs_dir
from dtrain_cli import shipped
from dtrain_cli.console.streams import say
from dtrain_cli.launch.child import see_to_its_end
from dtrain_cli.runs.index import new_run_id
from dtrain_cli.runs.logs import TaskOutput
from dtrain_cli.runs.report import read_report
from dtrain_cli.targets.signals import signal_name

WIDTH = 79
STEPS = "1000"
LEADER = TaskId.parse("chief:0")
_EPOCH = re.compile(r"epoch (\d+)/(\d+) - .*? - loss: (\S+) .*val_accuracy: (\S+)")
_BACK = re.compile(r"(\S+) had lost .* goes back from step (\d+) to the checkpoint of step (\d+)")
OPENING = """\
A cluster of 5 processes on this machine learns to read handwritten digits: a chief and two workers compute
gradients, and two parameter servers hold half of the variables each. A worker and a server will be killed."""
KILLED = {
    "worker": """\
Whatever it was computing is gone. The others compute its part of the batch, so no example is lost or counted
twice. dtrain starts it again.""",
    "ps": """\
Half of the variables, and of the optimizer's state, are gone with it. dtrain starts it again, and every
server goes back to the newest checkpoint, so that both halves fit together.""",
}


def tell(runs_dir: Path) -> tuple[int, Path]:
    """Run the demo below `runs_dir`; return its exit code and the run's directory."""
    directory = runs_dir / new_run_id("demo", datetime.now())
    root = shipped.root()
    spec, program = root / "cluster_specs" / "demo.yaml", root / "examples" / "digits.py"
    words = ["launch", "--run-dir", str(directory), str(spec), str(program), "--steps", STEPS]
    _print(OPENING)
    telling = Telling(RunFiles(directory))
    with tempfile.NamedTemporaryFile(prefix="dtrain-demo-") as log:
        code, stopped = see_to_its_end(words, Path(log.name), telling.look)
        if stopped is not None:
            say(f"{signal_name(stopped)}: the demo has been stopped, and nothing of it is left running")
            return 128 + stopped, directory
        if code != 0:
            click.echo(log.read().decode(errors="replace"), err=True, nl=False)
            return code, directory
    _print(telling.closing(read_report(directory)))
    _show_where_to_look(directory)
    return code, directory


def _show_where_to_look(directory: Path) -> None:
    """Print where the whole story of the run is: the one place that would know of a report."""
    run = directory.name if directory.parent == default_runs_dir() else str(directory)
    _print(f"\nThe files of the run are in {directory}")
    commands = {f"dtrain status {run}": "every task", f"dtrain logs {run}": "what they have printed"}
    commands |= {"dtrain init my-project": "a program of your own to start from"}
    for command, what in commands.items():
        click.echo(f"  {command:{max(map(len, commands))}}  # {what}", err=True)


class Telling:
    """What is told of a run, line after line, and how far it has been read."""

    def __init__(self, files: RunFiles) -> None:
        self.back: list[int] = []
        self._files = files
        self._output = TaskOutput(files, LEADER)
        self._events_read = 0
        self._began_s = time.monotonic()

    def look(self) -> None:
        """Tell what is new."""
        for event in self._new_events():
            if text := self._of_event(event):
                self._tell(text)
        for line in self._output.lines(ended=False):
            text = line.decode(errors="replace")
            if epoch := _EPOCH.search(text):
                number, of, loss, accuracy = epoch.groups()
                read = f"{float(accuracy):.1%} of unseen digits are read"
                self._tell(f"epoch {number:>2} of {of}: loss {loss}; {read}")
            elif back := _BACK.search(text):
                task, reached, saved = back.groups()
                again = int(reached) - int(saved)
                self.back.append(again)
                self._tell(
                    f"{task} is back without its variables: all servers go back from step {reached} to the "
                    f"checkpoint of step {saved}, so {again} steps are made again."
                )

    def closing(self, report: dict[str, Any]) -> str:
        """Return what came out of it."""
        restarts = {task["task"]: task["restarts"] for task in report["tasks"] if task["restarts"]}
        return (
            f"\nAll {report['global_step']} steps were made, {sum(self.back)} of them twice because a server "
            f"had to begin again; {' and '.join(restarts)} were started anew. The program knows nothing of "
            "all this: it calls `model.fit`, as it would alone."
        )

    def _of_event(self, event: dict[str, Any]) -> str | None:
        task = str(event.get("task", ""))
        if event["event"] == "up":
            return "every process is up; training begins"
        if event["event"] == "fault":
            return f"{task} is killed (kill -9){self._step()}. {KILLED[task.partition(':')[0]]}"
        if event["event"] == "started" and event["attempt"]:
            return f"{task} runs again, as process {event['pid']}"
        return None

    def _step(self) -> str:
        try:
            return f" at step {read_report(self._files.directory)['global_step']}"
        except RunNotFoundError:
            return ""

    def _new_events(self) -> Iterator[dict[str, Any]]:
        try:
            lines = self._files.journal.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return
        for line in lines[self._events_read :]:
            if line.endswith(b"\n"):
                self._events_read += 1
                yield msgspec.json.decode(line)

    def _tell(self, text: str) -> None:
        _print(text, f"{time.monotonic() - self._began_s:5.1f} s  ")


def _print(text: str, label: str = "") -> None:
    """Print a text to stderr, of lines of at most `WIDTH` characters, behind its label."""
    for paragraph in text.split("\n"):
        click.echo(
            textwrap.fill(paragraph, WIDTH, initial_indent=label, subsequent_indent=" " * len(label)),
            err=True,
        )
