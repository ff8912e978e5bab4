"""`dtrain demo`: a launch of the shipped digits, whose spec kills two tasks, explained in plain lines.

Its texts follow from the lines that the launch prints, and from the run's files.
"""

import re
import tempfile
import textwrap
import time
from datetime import datetime
from pathlib import Path

import click

from dtrain.runs.files import default_runs_dir
from dtrain_cli import shipped
from dtrain_cli.console.run_page import run_page
from dtrain_cli.console.streams import say
from dtrain_cli.launch.child import see_to_its_end
from dtrain_cli.runs.history import read_story
from dtrain_cli.runs.index import find_run, new_run_id
from dtrain_cli.runs.report import read_report
from dtrain_cli.targets.signals import SignalInbox, signal_name

WIDTH = 79
OPENING = """\
A cluster of 5 processes on this machine learns to read handwritten digits: a chief and two workers compute
gradients, and two parameter servers hold half of the variables each. A worker and a server will be killed."""
CLOSING = """\
All {steps} steps were made, {again} of them twice because a server had to begin again; {restarted} were
started anew. The program knows nothing of all this: it calls `model.fit`, as it would alone."""
TOLD = {
    r"epoch (\d+)/(\d+) - .* - loss: (\S+) .*val_accuracy: (\S+)": (
        "epoch {0} of {1}: loss {2}, accuracy {3} on digits not seen"
    ),
    r"simulate: (worker:\d+) killed": """\
{0} is killed (kill -9). Whatever it was computing is gone. The others compute its part of the batch, so no
example is lost or counted twice.""",
    r"simulate: (ps:\d+) killed": """\
{0} is killed (kill -9). Half of the variables, and of the optimizer's state, are gone with it.""",
    r"(\S+) killed by SIGKILL.*; (restarting in \d+ s)": "the launcher has seen it: {0} has ended, {1}",
    r"(\S+) had lost .* from step (\d+) to the checkpoint of step (\d+)": """\
{0} is back without its variables. All servers go back from step {1} to the checkpoint of step {2}, so that
both halves fit together, and the steps since then are made again.""",
}
"""By the form of a line that the launch prints, the text that the demo prints for it."""


def run_demo(runs_dir: Path) -> tuple[int, Path]:
    """Run the demo below `runs_dir`; return its exit code and the run's directory."""
    directory, root = runs_dir / new_run_id("demo", datetime.now()), shipped.root()
    spec, program = root / "cluster_specs" / "demo.yaml", root / "examples" / "digits.py"
    words = ["launch", "--runs-dir", str(runs_dir), "--run-dir", str(directory), str(spec), str(program)]
    words += ["--steps", "1500"]
    _print(OPENING)
    began_s, unread = time.monotonic(), b""
    with tempfile.NamedTemporaryFile(prefix="dtrain-demo-") as log:

        def look() -> None:
            nonlocal unread
            *lines, unread = (unread + log.read()).split(b"\n")
            for line in lines:
                for pattern, text in TOLD.items():
                    if found := re.search(pattern, line.decode(errors="replace")):
                        _print(text.format(*found.groups()), f"{time.monotonic() - began_s:5.1f} s  ")

        code, stopped = see_to_its_end(words, Path(log.name), SignalInbox(), look)
        if stopped is not None:
            say(f"{signal_name(stopped)}: the demo has been stopped; nothing of it is left running")
            return 128 + stopped, directory
        if code != 0:
            click.echo(Path(log.name).read_text(errors="replace"), err=True, nl=False)
            return code, directory
    report = read_report(directory)
    restarted = " and ".join(task["task"] for task in report["tasks"] if task["restarts"])
    again = report["rolled_back_steps"]
    _print(CLOSING.format(steps=report["global_step"], again=again, restarted=restarted), first="\n")
    _show_where_to_look(directory)
    return code, directory


def _show_where_to_look(directory: Path) -> None:
    """Write the report of the run beside its files, and print where it is."""
    page, run = directory / "report.html", find_run(str(directory), directory.parent)
    page.write_text(run_page(read_story([run])), encoding="utf-8")
    named = directory.name if directory.parent == default_runs_dir() else str(directory)
    click.echo(f"\nThe report of the run is {page}", err=True)
    click.echo(f"  dtrain report {named} --text   # the same here", err=True)
    click.echo("  dtrain init my-project   # a program of your own to start from", err=True)


def _print(text: str, label: str = "", first: str = "") -> None:
    filled = textwrap.fill(text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label))
    click.echo(first + filled, err=True)
