"""`dtrain trace`: what every task of a run did when, for Perfetto."""

import json
import sys
from pathlib import Path

import click

from dtrain.cluster import TaskId
from dtrain.errors import RunError
from dtrain_cli.commands.runs import find
from dtrain_cli.commands.shell_completion import complete_run
from dtrain_cli.commands.spec_options import runs_dir_option


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
    from dtrain_cli.runs.joined_tasks import with_joined
    from dtrain_cli.runs.timeline import timeline

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


COMMANDS = (trace,)
