"""`dtrain report` and `compare`: runs that tell their story, one or several over each other."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dtrain_cli.commands.command_line import complete_run, json_option_of, runs_dir_option
from dtrain_cli.commands.runs import find
from dtrain_cli.console.streams import print_json

if TYPE_CHECKING:
    from dtrain_cli.runs.history import Story


@click.command(
    short_help="Write a page about runs.",
    epilog="\b\nExamples:\n  dtrain report\n  dtrain report digits-sync digits-async --out both.html\n"
    "  dtrain report digits --text\n",
)
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
@click.option("--out", metavar="FILE", help="Default: RUN.html here; - is stdout.")
@click.option("--text", "as_text", is_flag=True, help="Print it here instead, in charts of characters.")
@json_option_of("Print one JSON object instead.")
@runs_dir_option
def report(
    runs: tuple[str, ...], out: str | None, as_text: bool, as_json: bool, runs_dir: Path | None
) -> None:
    """Write a page about RUN (default: the newest): its curves over steps and seconds, where the time of each
    task went, and restarts, rollbacks and faults as marks. Several runs are laid over each other.

    The page is complete in itself and needs no network. RUN is an id, a unique prefix of one, a name or a
    path. Exit code: 3 no such run.
    """
    if as_text + as_json + (out is not None) > 1:
        raise click.UsageError("expected one of --out, --text and --json")
    from dtrain_cli.runs.history import read_story

    found = [find(name, runs_dir) for name in runs or (None,)]
    story = read_story(found)
    if as_json:
        import msgspec

        from dtrain_cli.runs.summary import figures_of

        print_json({"figures": figures_of(story), "runs": msgspec.to_builtins(story.histories)})
        return
    if as_text:
        from dtrain_cli.console.run_table import stdout_console
        from dtrain_cli.console.run_text import print_story

        print_story(story, stdout_console())
        return
    more = f"+{len(found) - 1}" if len(found) > 1 else ""
    write_page(story, out or f"{found[0].record.run}{more}.html")


def write_page(story: "Story", out: str) -> None:
    from dtrain_cli.console.run_page import run_page

    text = run_page(story)
    if out == "-":
        sys.stdout.write(text)
        return
    Path(out).write_text(text, encoding="utf-8")
    click.echo(f"{out}: open it in a browser", err=True)
