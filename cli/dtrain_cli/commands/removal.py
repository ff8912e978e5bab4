"""`dtrain rm`: removing runs that have ended."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from dtrain.errors import RunInUseError, SpecError
from dtrain_cli.commands.runs import find, runs_text
from dtrain_cli.commands.shell_completion import complete_run
from dtrain_cli.commands.spec_options import Count, runs_dir_option

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Age(click.ParamType[timedelta]):
    """A time such as ``7d``."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Read a whole number and a unit."""
        match = re.fullmatch(r"(\d{1,6})([smhdw])", str(value))
        if match is None:
            self.fail(f"{value!r} is not an age such as 90m, 12h, 7d or 4w.", param, ctx)
        return timedelta(**{_UNITS[match[2]]: int(match[1])})


@click.command(
    "rm",
    short_help="Remove runs that have ended.",
    epilog=(
        "\b\nExamples:\n  dtrain rm 20261121-094500-digits-ab12\n  dtrain rm --older-than 7d\n  dtrain "
        "rm --keep 20 --dry-run\n"
    ),
)
@click.argument("names", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
@click.option(
    "--older-than", type=Age(), metavar="AGE", help="Only runs that ended longer ago, e.g. 12h, 7d, 4w."
)
@click.option("--keep", type=Count(0), metavar="N", help="Spare the newest N.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@runs_dir_option
def rm(
    names: tuple[str, ...],
    older_than: timedelta | None,
    keep: int | None,
    dry_run: bool,
    runs_dir: Path | None,
) -> None:
    """Remove the files of each RUN (an id, a unique prefix of one, a name, which is its newest run, or a
    path).

    With --older-than or --keep and no RUN: of all runs that this machine knows. A run that lives is never
    removed. What a run has left on the hosts where its tasks ran goes too, and with it the code that was sent
    and that no other run uses. A host that cannot be reached is named, and the exit code is 1.
    """
    if not names and older_than is None and keep is None:
        raise SpecError(
            "expected the runs to remove, or --older-than AGE, or --keep N; `dtrain runs` lists them"
        )

    from dtrain.runs.files import default_runs_dir
    from dtrain_cli.console.own_line import say
    from dtrain_cli.console.run_table import bytes_text
    from dtrain_cli.launch.cleaning import clean_hosts
    from dtrain_cli.runs.index import known_runs
    from dtrain_cli.runs.removal import alive_text, bytes_of, old_runs, remove_run
    from dtrain_cli.runs.report import is_alive

    directory = runs_dir or default_runs_dir()
    named = {run.files.directory: run for run in (find(name, runs_dir) for name in names)}
    chosen = old_runs(list(named.values()) or known_runs(directory), older_than, keep or 0, datetime.now(UTC))
    lives = [run for run in chosen if is_alive(run.files, run.record)]
    if lives and named:
        raise RunInUseError(alive_text(lives[0]))
    freed = 0
    gone = [run for run in chosen if run not in lives]
    left = [] if dry_run else clean_hosts(gone)
    for run in gone:
        used = bytes_of(run, directory)
        click.echo(f"{'would remove' if dry_run else 'removing'} {run.files.directory}  {bytes_text(used)}")
        if not dry_run:
            remove_run(run, directory)
        freed += used
    spared = f"; {runs_text(len(lives))} still running, not removed" if lives else ""
    click.echo(
        f"{runs_text(len(gone))} {'would be ' if dry_run else ''}removed, {bytes_text(freed)}{spared}",
        err=True,
    )
    for sentence in left:
        say(sentence)
    if left:
        click.get_current_context().exit(1)


COMMANDS = (rm,)
