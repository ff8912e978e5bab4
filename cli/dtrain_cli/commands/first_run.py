"""`dtrain demo`, `init` and `examples`: a first run from an installed package, and files to start from."""

import sys
from pathlib import Path

import click

from dtrain.errors import DtrainError
from dtrain_cli.commands.command_line import DIRECTORY, json_option, runs_dir_option
from dtrain_cli.console.streams import answer, print_json


@click.command(
    short_help="Train digits on a cluster, kill two tasks, watch.",
    epilog="\b\nExamples:\n  dtrain demo\n  dtrain demo --runs-dir /tmp/runs\n",
)
@json_option
@runs_dir_option
def demo(as_json: bool, runs_dir: Path | None) -> int:
    """Train the shipped digits on a cluster of this machine, kill a worker and a parameter server on the way,
    and say what happens and why the training goes on.

    It takes 10 to 15 seconds, needs no network and no files, and leaves one run. Ctrl-C stops all of it.
    Exit code: that of the launch.
    """
    if sys.platform != "linux":
        raise DtrainError("demo needs Linux")
    from dtrain.runs.files import default_runs_dir
    from dtrain_cli.runs.report import read_report
    from dtrain_cli.stories.demo import run_demo

    code, directory = run_demo(runs_dir or default_runs_dir())
    if as_json and directory.exists():  # else it was stopped before there was a run
        print_json(read_report(directory))
    return code


NEXT = """\
  python train.py                       # one process trains
  dtrain launch cluster.yaml train.py   # a cluster trains
  dtrain check cluster.yaml             # what is wrong with the spec
then put your data into load_data and your layers into make_model of train.py"""


@click.command(
    short_help="Write a program and a cluster spec to start from.",
    epilog="\b\nExamples:\n  dtrain init\n  dtrain init my-project --json\n",
)
@click.argument("folder", metavar="[DIR]", type=DIRECTORY, default=Path())
@json_option
def init(folder: Path, as_json: bool) -> None:
    """Write train.py and cluster.yaml to DIR (default: here), and say what to do next.

    Another file of such a name is never overwritten. Exit code: 2 there is one; nothing is written then.
    """
    from dtrain_cli import shipped

    files = {Path(name): shipped.root() / shipped.START / name for name in ("train.py", "cluster.yaml")}
    written = shipped.copy(files, folder)
    go_there = f"  cd {folder}\n" if folder != Path() else ""
    text = f"{' and '.join(map(str, written))} are there; next:\n{go_there}{NEXT}"
    answer({"files": list(map(str, written))}, text, as_json)


@click.command(
    short_help="List the examples, or copy one.",
    epilog="\b\nExamples:\n  dtrain examples\n  dtrain examples digits\n  dtrain examples digits --to try\n",
)
@click.argument("name", required=False)
@click.option("--to", type=DIRECTORY, metavar="DIR", help="Where to (default: here).")
@json_option
def examples(name: str | None, to: Path | None, as_json: bool) -> None:
    """List the examples that come with dtrain, or copy NAME with the data, modules and specs that it needs.

    A copy has the folders examples/ and cluster_specs/. Another file of such a name is never overwritten.
    Exit code: 2 there is one, or no such example; nothing is written then.
    """
    from dtrain_cli import shipped

    if name is None:
        if to is not None:
            raise click.UsageError("--to needs the NAME of an example; `dtrain examples` lists them")
        found = shipped.examples()
        lines = [f"{key:{max(map(len, found))}}  {text}" for key, text in found.items()]
        listed = [{"name": key, "about": text} for key, text in found.items()]
        answer({"examples": listed}, "\n".join(lines), as_json)
        click.echo("`dtrain examples NAME` copies one, with what it needs", err=True)
        return
    example = name.removesuffix(".py").rpartition("/")[2]
    files = shipped.files_of(example)
    written = list(map(str, shipped.copy({path: shipped.root() / path for path in files}, to or Path())))
    answer({"files": written}, "\n".join(written), as_json)
    command = "launch" if files[0].suffix == ".py" else "chaos --campaign"
    click.echo(f"next: {f'cd {to} && ' if to else ''}dtrain {command} {files[0]}", err=True)


COMMANDS = (demo, init, examples)
