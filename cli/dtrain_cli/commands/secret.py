"""`dtrain secret`: make the secret by which the tasks of a run know each other."""

import re
from pathlib import Path

import click

from dtrain.process.secret import write_secret


@click.command(
    "secret",
    short_help="Make a secret for a run's tasks.",
    epilog="\b\nExample:\n  dtrain secret run.secret\n",
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
def secret(file: Path) -> None:
    """Write a new secret of 256 random bits to FILE, which you alone can read, and its name to the .gitignore
    beside it. An existing file is never overwritten. Copy it to every machine of the run, and give it to
    every task by --secret-file.
    """
    from dtrain_cli.code import keep_from_git

    if str(file) == "-":
        raise click.UsageError("a secret is written to a FILE, such as run.secret, never to stdout")
    write_secret(file)
    keep_from_git(file.parent, "/" + re.sub(r"([\\*?\[ ])", r"\\\1", file.name))
    click.echo(f"a new secret stands in {file}; give every task --secret-file {file}", err=True)


COMMANDS = (secret,)
