"""The options that change a spec, shared by the commands that read one."""

from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any

import click

RUNS_DIR_HELP = "Where runs are kept (default: DTRAIN_RUNS_DIR, else ~/.local/state/dtrain/runs)."
ENGINES = ("local", "ssh", "slurm", "kubernetes", "vertex")
"""The words of `dtrain.config.choices.On`, whose room this one does not import for every command."""
DIRECTORY = click.Path(path_type=Path, file_okay=False)


class Count(click.IntRange):
    """click calls it an `integer range` when it refuses something."""

    name = "whole number"


class Seconds(click.FloatRange):
    """Likewise; click takes `nan` for a number in any range."""

    name = "number of seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a number of seconds."""
        seconds = super().convert(value, param, ctx)
        return self.fail(f"{value!r} is not a valid {self.name}.", param, ctx) if isnan(seconds) else seconds


_FILE: dict[str, Any] = {"metavar": "FILE"}
SECURITY_OPTIONS: dict[str, dict[str, Any]] = {
    "--secret-file": _FILE | {"help": "The secret that all tasks of the run share."},
    "--tls-ca": _FILE | {"help": "The certificates from which every task's must descend."},
    "--tls-cert": _FILE | {"help": "A task's certificate; {role} and {index} are filled in."},
    "--tls-key": _FILE | {"help": "The key of that certificate; likewise."},
    "--insecure": {"is_flag": True, "default": None, "help": "On a network, do without a secret."},
}
"""The options of `security`, for every command that connects."""
_OPTIONS = (
    click.option(
        "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set any field, e.g. cluster.worker=8."
    ),
    click.option("--workers", type=Count(0), metavar="N", help="Number of workers."),
    click.option("--ps", type=Count(0), metavar="N", help="Number of parameter servers."),
    click.option("--evaluator/--no-evaluator", default=None, help="Whether to evaluate beside the training."),
    click.option("--strategy", metavar="NAME", help="How to distribute, e.g. parameter_server."),
    click.option("--updates", type=click.Choice(["sync", "async"]), help="When gradients are applied."),
    click.option("--backup-workers", type=Count(0), metavar="N", help="sync: do not wait for the N slowest."),
    click.option("--staleness-bound", type=Count(0), metavar="N", help="async: at most N steps ahead."),
    click.option(
        "--start-timeout", type=Seconds(0), metavar="S", help="All tasks must be up by then (default: 60)."
    ),
    click.option(
        "--grace", type=Seconds(0), metavar="S", help="From the order to stop to SIGKILL (default: 10)."
    ),
    click.option("--name", metavar="NAME", help="The run's name."),
    click.option("--hosts", metavar="H1,H2:4", help="The hosts of the tasks, with slots (--on ssh|slurm)."),
    click.option("--on", type=click.Choice(ENGINES), help="Who starts the tasks (default: local)."),
)


def spec_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--set` and the shortcuts; the callback gets `sets` and the names of `spec.file.SHORTCUTS`."""
    security = (click.option(name, **settings) for name, settings in SECURITY_OPTIONS.items())
    for option in reversed((*_OPTIONS, *security)):
        command = option(command)
    return command


def runs_dir_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--runs-dir`; the callback gets `runs_dir`, a Path or None."""
    return click.option("--runs-dir", type=DIRECTORY, metavar="DIR", help=RUNS_DIR_HELP)(command)
