"""`dtrain data index`, `inspect` and `bench`: files of data, without a run.

Files are the runtime's business: this process only says what is wanted, and becomes `python -m
dtrain.task.data_command`.
"""

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

from dtrain_cli.commands.spec_options import Count, Seconds

KINDS = ("tfrecord", "text", "csv", "tar", "parquet", "npy", "npz")
FILES = (
    "FILES are TFRecord, text, .csv, .tar, Parquet, .npy or .npz; each is known by its name or its first "
    "bytes. Indexes (.dtidx) among them are left out."
)


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        click.option(
            "--header/--no-header",
            default=True,
            help="Whether the first row of .csv files names the columns (default: it does).",
        ),
        click.option("--format", "kind", type=click.Choice(KINDS), help="In place of what names say."),
    ):
        function = option(function)
    return function


@click.group(
    short_help="Index, inspect and measure files of data.",
    epilog="\b\nExamples:\n  dtrain data index data/*.tfrecord\n  dtrain data bench data/*.tfrecord\n",
)
def data() -> None:
    """Look at files of data, without a run: their indexes, what is in them, how fast they are read."""


@data.command(
    short_help="Build the indexes that a run would build.",
    help=(
        "Build the record indexes of FILES: FILE.dtidx beside each, unless one is there that fits. A run "
        f"then begins at once.\n\n{FILES}\n\nExit code: 1 a file is damaged, cannot have an index, or there "
        "is no place for it; the others are built."
    ),
    epilog="\b\nExample:\n  dtrain data index data/*.tfrecord\n",
)
@click.argument("files", nargs=-1, required=True, type=click.Path())
@_options
def index(**order: Any) -> NoReturn:
    """Build indexes."""
    _become("index", **order)


@data.command(
    short_help="Show rows, columns and indexes of files.",
    help=(
        "Show how many rows FILES have, their columns or features with dtypes and shapes, and whether their "
        f"indexes are there. Nothing is written.\n\n{FILES}\n\nExit code: 1 a file is damaged or cannot be "
        "read."
    ),
    epilog="\b\nExample:\n  dtrain data inspect data/train.tfrecord --json\n",
)
@click.argument("files", nargs=-1, required=True, type=click.Path())
@_options
def inspect(**order: Any) -> NoReturn:
    """Show what is in files."""
    _become("inspect", **order)


@data.command(
    short_help="Measure how fast input is read.",
    help=(
        "Measure how fast FILES are read, and parsed where they hold tf.train.Examples, by one thread and by "
        "one for each core. PROGRAM.py:NAME measures a dataset of a program instead, with its own functions "
        "and threads: NAME is a Dataset, or a function of an InputContext that returns one.\n\n"
        f"{FILES} Indexes that are missing are built. Files that were read before come from memory."
    ),
    epilog=(
        "\b\nExamples:\n  dtrain data bench data/*.tfrecord\n  dtrain data bench train.py:make_dataset "
        "--seconds 5\n"
    ),
)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILES... | PROGRAM.py:NAME")
@_options
@click.option(
    "--seconds", type=Seconds(0.01), default=1.0, metavar="S", help="How long each step takes (default: 1)."
)
@click.option(
    "--batch-size", type=Count(1), default=256, show_default=True, metavar="N", help="Rows at a time."
)
def bench(**order: Any) -> NoReturn:
    """Measure reading."""
    _become("bench", **order)


def _become(action: str, *, files: tuple[str, ...], **order: Any) -> NoReturn:
    """Let the runtime do it in this process's place: its output, its exit code, its signals."""
    from dtrain.process.requests.data_request import DataRequest, encode

    argument = encode(DataRequest(action=action, files=[os.fsdecode(path) for path in files], **order))
    os.execv(sys.executable, [sys.executable, "-P", "-m", "dtrain.task.data_command", argument])


COMMANDS = (data,)
