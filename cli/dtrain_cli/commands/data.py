"""`dtrain data index` and `inspect`: files of data, without a run.

Files are the runtime's business (`dtrain.task.data_command`), which is imported as the command runs.
"""

import os
from typing import Any

import click

from dtrain_cli.commands.command_line import all_of, json_option

KINDS = ("tfrecord", "text", "csv", "tar", "parquet", "npy", "npz")
FILES = (
    "FILES are TFRecord, text, .csv, .tar, Parquet, .npy or .npz; each is known by its name or its first "
    "bytes. Indexes (.dtidx) among them are left out."
)


_options = all_of(
    click.argument("files", nargs=-1, required=True, type=click.Path()),
    click.option("--format", "kind", type=click.Choice(KINDS), help="In place of what names say."),
    click.option(
        "--header/--no-header",
        default=True,
        help="Whether the first row of .csv files names the columns (default: it does).",
    ),
    json_option,
)


@click.group(
    short_help="Index and inspect files of data.",
    epilog="\b\nExamples:\n  dtrain data index data/*.tfrecord\n  dtrain data inspect data/*.tfrecord\n",
)
def data() -> None:
    """Look at files of data, without a run: their indexes, and what is in them."""


@data.command(
    short_help="Build the indexes that a run would build.",
    help=(
        "Build the record indexes of FILES: FILE.dtidx beside each, unless one is there that fits. A run "
        f"then begins at once.\n\n{FILES}\n\nExit code: 1 a file is damaged, cannot have an index, or there "
        "is no place for it; the others are built."
    ),
    epilog="\b\nExample:\n  dtrain data index data/*.tfrecord\n",
)
@_options
def index(**order: Any) -> int:
    """Build indexes."""
    return _do("index", **order)


@data.command(
    short_help="Show rows, columns and indexes of files.",
    help=(
        "Show how many rows FILES have, their columns or features with dtypes and shapes, and whether their "
        f"indexes are there. Nothing is written.\n\n{FILES}\n\nExit code: 1 a file is damaged or cannot be "
        "read."
    ),
    epilog="\b\nExample:\n  dtrain data inspect data/train.tfrecord --json\n",
)
@_options
def inspect(**order: Any) -> int:
    """Show what is in files."""
    return _do("inspect", **order)


def _do(action: str, *, files: tuple[str, ...], **order: Any) -> int:
    from dtrain.task.data_command import DataRequest, main

    return main(DataRequest(action=action, files=[os.fsdecode(path) for path in files], **order))


COMMANDS = (data,)
