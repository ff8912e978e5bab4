"""`dtrain chaos` and `trace`: make a cluster behave badly on purpose, and see what every task did when."""

import json
import sys
import time
from pathlib import Path

import click

from dtrain.cluster import TaskId
from dtrain.errors import RunError
from dtrain_cli.commands.command_line import Seconds, complete_run, complete_task, runs_dir_option
from dtrain_cli.commands.runs import find


@click.command(
    short_help="Write a timeline of every task.",
    epilog=(
        "\b\nExamples:\n  dtrain launch --set trace=true train.py\n"
        "  dtrain trace\n  dtrain trace digits -o -\n"
    ),
)
@click.argument("run", required=False, shell_complete=complete_run)
@click.option("-o", "--output", metavar="FILE", help="Default: RUN.trace.json here; - is stdout.")
@runs_dir_option
def trace(run: str | None, output: str | None, runs_dir: Path | None) -> None:
    """Write what every task of RUN (default: the newest) did when, as a file for https://ui.perfetto.dev or
    chrome://tracing.

    RUN is an id, a unique prefix of one, a name or a path. A run keeps a trace if its spec says `trace: true`
    or DTRAIN_TRACE=1 was set when it was launched. Exit code: 1 the run has kept none, 3 no such run.
    """
    from dtrain.runs.trace import read_trace
    from dtrain_cli.runs.logs import timeline
    from dtrain_cli.runs.report import with_joined

    found = find(run, runs_dir)
    files = found.files
    tasks = [TaskId.parse(record.task) for record in with_joined(files, found.record.tasks)]
    traces = {
        task: [
            read_trace(path)
            for attempt in files.attempts(task)
            if (path := files.trace(task, attempt)).exists()
        ]
        for task in tasks
    }
    if not any(traces.values()):
        raise RunError(
            f"{files.directory}: found no trace of any task; launch with `--set trace=true` or DTRAIN_TRACE=1"
        )
    text = json.dumps({"traceEvents": timeline(traces)})
    if output == "-":
        sys.stdout.write(f"{text}\n")
        return
    path = Path(output or f"{found.record.run}.trace.json")
    path.write_text(text)
    click.echo(f"{path}: open it in https://ui.perfetto.dev or chrome://tracing", err=True)


ACTIONS = ("kill", "pause", "resume", "slow")
DONE = {"kill": "killed", "pause": "paused", "resume": "resumed"}


@click.command(
    short_help="Kill, pause or slow a task, on purpose.",
    epilog="\b\nExamples:\n  dtrain chaos digits kill worker:0\n  dtrain chaos digits pause ps:0 --for 3\n"
    "  dtrain chaos digits slow worker:1 5\n",
)
@click.argument("run", shell_complete=complete_run)
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("task", shell_complete=complete_task)
@click.argument("factor", required=False, type=float)
@click.option(
    "--for",
    "for_s",
    type=Seconds(0, min_open=True),
    metavar="S",
    help="pause, slow: undo it S seconds later.",
)
@runs_dir_option
def chaos(
    run: str, action: str, task: str, factor: float | None, for_s: float | None, runs_dir: Path | None
) -> None:
    """Do something bad to TASK of the running RUN.

    kill sends SIGKILL to the task and all that it has started, pause and resume stop them and let them go on.
    slow makes the task's own computation take FACTOR times as long, whatever the spec says of it, until the
    task is started anew or FACTOR is 1; it says what that costs a step, if the task has measured its steps.

    RUN is an id, a unique prefix of one, a name or a path. Exit code: 1 the run has ended or the task is not
    running, 2 wrong command line or no such task, 3 no such run.
    """
    from dtrain_cli.runs.faults import RunningTask

    _check_words(action, factor, for_s)
    target = RunningTask(find(run, runs_dir).files.directory, TaskId.parse(task))
    if action == "slow":
        cost = target.slow(factor)
        how = "at full speed" if factor == 1 else f"{factor:g} times slower"
        _print(f"{target.task} computes {how}{f': {cost}' if cost else ''}")
    else:
        target.signal(action)
        _print(f"{target.task} {DONE[action]}")
    if for_s is not None:
        try:
            time.sleep(for_s)
        finally:
            target.slow(None) if action == "slow" else target.signal("resume")
        _print(f"{target.task} {'computes as its spec says' if action == 'slow' else DONE['resume']}")


def _check_words(action: str, factor: float | None, for_s: float | None) -> None:
    if action == "slow":
        if factor is None:
            raise click.UsageError(
                "slow needs a FACTOR, such as `dtrain chaos RUN slow worker:0 5`; 1 is full speed"
            )
        if not 1 <= factor < float("inf"):
            raise click.UsageError(f"expected a FACTOR of at least 1, found {factor:g}")
    elif factor is not None:
        raise click.UsageError(f"{action} takes no FACTOR; found {factor:g}")
    if for_s is not None and action not in ("pause", "slow"):
        raise click.UsageError(f"--for belongs to pause and slow, not to {action}")


def _print(text: str) -> None:
    click.echo(text, err=True)


COMMANDS = (trace, chaos)
