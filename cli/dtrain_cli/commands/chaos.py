"""`dtrain chaos` and `trace`: make a cluster behave badly on purpose, and see what every task did when."""

import json
import sys
import time
from pathlib import Path

import click

from dtrain.cluster import TaskId
from dtrain.errors import RunError
from dtrain_cli.commands.command_line import (
    Seconds,
    check_program_file,
    complete_run,
    complete_task,
    json_option,
    runs_dir_option,
)
from dtrain_cli.commands.runs import find
from dtrain_cli.console.streams import print_json


@click.command(
    short_help="Write a timeline of every task.",
    epilog=(
        "\b\nExamples:\n  dtrain launch --set trace=true train.py\n"
        "  dtrain trace\n  dtrain trace digits -o -\n"
    ),
)
@click.argument("run", required=False, shell_complete=complete_run)
@click.option("-o", "--output", metavar="FILE", help="Default: RUN.trace.json here; - is stdout.")
@json_option
@runs_dir_option
def trace(run: str | None, output: str | None, as_json: bool, runs_dir: Path | None) -> None:
    """Write what every task of RUN (default: the newest) did when, as a file for https://ui.perfetto.dev or
    chrome://tracing.

    RUN is an id, a unique prefix of one, a name or a path. A run keeps a trace if its spec says `trace: true`
    or DTRAIN_TRACE=1 was set when it was launched. Exit code: 1 the run has kept none, 3 no such run.
    """
    if as_json and output == "-":
        raise click.UsageError("-o - writes the timeline, which is JSON, to stdout; leave --json away")
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
    events = timeline(traces)
    text = json.dumps({"traceEvents": events})
    if output == "-":
        sys.stdout.write(f"{text}\n")
        return
    path = Path(output or f"{found.record.run}.trace.json")
    path.write_text(text)
    if as_json:
        print_json({"run": found.record.run, "file": str(path), "events": len(events)})
    click.echo(f"{path}: open it in https://ui.perfetto.dev or chrome://tracing", err=True)


ACTIONS = ("kill", "pause", "resume", "slow")
DONE = {"kill": "killed", "pause": "paused", "resume": "resumed"}


@click.command(
    short_help="Kill, pause or slow a task, on purpose.",
    epilog="\b\nExamples:\n  dtrain chaos digits kill worker:0\n  dtrain chaos digits pause ps:0 --for 3\n"
    "  dtrain chaos digits slow worker:1 5\n  dtrain chaos --campaign examples/campaign.yaml\n",
)
@click.argument("run", required=False, shell_complete=complete_run)
@click.argument("action", required=False, type=click.Choice(ACTIONS))
@click.argument("task", required=False, shell_complete=complete_task)
@click.argument("factor", required=False, type=float)
@click.option(
    "--for",
    "for_s",
    type=Seconds(0, min_open=True),
    metavar="S",
    help="pause, slow: undo it S seconds later.",
)
@click.option(
    "--campaign", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Launch its stories."
)
@json_option
@runs_dir_option
def chaos(
    run: str | None,
    action: str | None,
    task: str | None,
    factor: float | None,
    for_s: float | None,
    runs_dir: Path | None,
    as_json: bool,
    campaign: Path | None,
) -> int | None:
    """Do something bad to TASK of the running RUN.

    kill sends SIGKILL to the task and all that it has started, pause and resume stop them and let them go on.
    slow makes the task's own computation take FACTOR times as long, whatever the spec says of it, until the
    task is started anew or FACTOR is 1; it says what that costs a step, if the task has measured its steps.

    With --campaign FILE: launch the program of FILE undisturbed, then once for each story, whose faults are
    those of a spec's `simulate`, and show what each has cost. Its runs are in `campaigns/FILE` below the
    runs directory, and the same command again tells only the stories that are missing there.

    RUN is an id, a unique prefix of one, a name or a path. Exit code: 1 the run has ended or the task is not
    running, or a story has broken a promise, 2 wrong command line or no such task, 3 no such run.
    """
    if campaign is not None and run is None and for_s is None:
        return _campaign(campaign, runs_dir, as_json)
    if campaign is not None or run is None or action is None or task is None:
        raise click.UsageError("expected RUN ACTION TASK, or --campaign FILE alone")
    from dtrain_cli.runs.faults import RunningTask

    _check_words(action, factor, for_s)
    target = RunningTask(find(run, runs_dir).files.directory, TaskId.parse(task))
    if action == "slow":
        cost = target.slow(factor)
        how = "at full speed" if factor == 1 else f"{factor:g} times slower"
        _print(f"{target.task} computes {how}{f': {cost}' if cost else ''}")
    else:
        cost = None
        target.signal(action)
        _print(f"{target.task} {DONE[action]}")
    if for_s is not None:
        try:
            time.sleep(for_s)
        finally:
            target.slow(None) if action == "slow" else target.signal("resume")
        _print(f"{target.task} {'computes as its spec says' if action == 'slow' else DONE['resume']}")
    if as_json:
        done = {"task": str(target.task), "action": action, "factor": factor, "for_s": for_s, "cost": cost}
        print_json(done | {"pid": target.pid})
    return None


def _campaign(file: Path, runs_dir: Path | None, as_json: bool) -> int:
    import msgspec

    from dtrain.runs.files import default_runs_dir
    from dtrain_cli.stories import campaign

    out = (runs_dir or default_runs_dir()).absolute() / "campaigns" / file.stem
    spec = campaign.read_campaign(file)
    check_program_file(Path(spec.program))
    code, results = campaign.run_campaign(spec, out)
    if as_json:
        print_json({"campaign": str(file), "folder": str(out), "stories": msgspec.to_builtins(results)})
    elif results:
        campaign.show(results)
    return code


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
