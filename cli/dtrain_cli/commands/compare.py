"""`dtrain compare`: a program under several modes, one launch after the other, and one report over all."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from dtrain_cli.commands import command_line
from dtrain_cli.commands.command_line import ProgramCommand, ProgramWords
from dtrain_cli.commands.report import write_page
from dtrain_cli.console.streams import print_json
from dtrain_cli.launch.child import start_launch
from dtrain_cli.targets.signals import STOP_SIGNALS

_BASE = {
    "training.strategy": "parameter_server",
    "training.updates": "sync",
    "training.backup_workers": "0",
    "training.staleness_bound": "null",
}
MODES = {
    "sync": _BASE,
    "backup": _BASE | {"training.backup_workers": "1"},
    "async": _BASE | {"training.updates": "async"},
    "ssp": _BASE | {"training.updates": "async", "training.staleness_bound": "3"},
    "mirrored": _BASE | {"training.strategy": "multi_worker_mirrored", "cluster.ps": "0"},
}
"""The settings that each mode means, whatever the spec says of them."""
_OWN = {"--modes": True, "--out": True, "--name": True, "--runs-dir": True, "--json": False}
"""The options that a launch gets anew or not at all, and whether each has a value."""


@click.command(
    cls=ProgramCommand,
    short_help="Run a program under several modes.",
    epilog="\b\nExamples:\n  dtrain compare examples/digits.py\n"
    "  dtrain compare --modes sync,async --workers 4 examples/digits.py --steps 500\n",
)
@click.option("--modes", default=",".join(MODES), show_default=True, metavar="M1,M2", help="Which, in order.")
@click.option("--out", metavar="FILE", help="The report (default: NAME-compared.html here).")
@command_line.json_option_of("Print one JSON object at the end.")
@command_line.spec_options
@command_line.runs_dir_option
def compare(
    words: ProgramWords,
    modes: str,
    out: str | None,
    as_json: bool,
    runs_dir: Path | None,
    name: str | None,
    **_: Any,
) -> int:
    """Launch PROGRAM under each mode, one after the other; then print a table, and write a page over all.

    SPEC and the options are those of launch, and hold for every mode. A mode that fails is named, and the
    others go on. Ctrl-C stops the present one in order; what there is by then is reported. Exit code: that of
    the first mode that has failed.
    """
    words.check_program()
    assert isinstance(compare, ProgramCommand)
    compare.check_arguments(words)

    from dtrain.runs.files import default_runs_dir
    from dtrain_cli.console.streams import say
    from dtrain_cli.runs.index import new_run_id

    wanted = list(dict.fromkeys(modes.split(",")))
    if unknown := [mode for mode in wanted if mode not in MODES]:
        raise click.UsageError(f"--modes: {unknown[0]!r} is no mode; expected some of {','.join(MODES)}")
    base = name or Path(words.program or words.arguments[0]).stem
    given, _ = click.get_current_context().meta[command_line.GIVEN]
    options = [*_passed_on(given)]
    below = (runs_dir or default_runs_dir()).absolute()
    codes: dict[Path, int] = {}
    child = _Child()
    for mode in wanted:
        directory = below / new_run_id(f"{base}-{mode}", datetime.now())
        sets = [word for each in MODES[mode].items() for word in ("--set", "=".join(each))]
        places = ["--name", f"{base}-{mode}", "--runs-dir", str(below), "--run-dir", str(directory)]
        say(f"{mode}: {len(codes) + 1} of {len(wanted)}")
        codes[directory] = child.run(["launch", *options, *sets, *places, *words.written], quiet=as_json)
        if codes[directory] and not child.stopped:
            say(f"{mode} has failed (exit code {codes[directory]})")
        if child.stopped:
            break
    _show(dict(zip(codes, wanted, strict=False)), out or f"{base}-compared.html", as_json=as_json)
    return next((code for code in codes.values() if code), 0)


def _passed_on(options: Sequence[str]) -> Iterator[str]:
    rest = iter(options)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in _OWN:
            yield word
        elif _OWN[name] and not equals:
            next(rest, None)


class _Child:
    """The launch that runs now. A signal to stop goes to it, and no other launch follows."""

    def __init__(self) -> None:
        self.stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._pass_on)

    def run(self, words: list[str], *, quiet: bool) -> int:
        self._process = start_launch(words, {}, sys.stderr if quiet else None, None)
        if self.stopped:  # the signal came as it was being started
            self._process.terminate()
        return self._process.wait()

    def _pass_on(self, number: int, _: Any) -> None:
        self.stopped = True
        if self._process is not None:
            self._process.send_signal(number)


def _show(modes: dict[Path, str], out: str, *, as_json: bool) -> None:
    """Print the figures of what has run, and write the page over it."""
    from dtrain.runs.files import RunFiles
    from dtrain_cli.console.run_table import stdout_console
    from dtrain_cli.console.run_text import print_table, turned
    from dtrain_cli.runs.history import read_story
    from dtrain_cli.runs.index import KnownRun, own_record
    from dtrain_cli.runs.summary import figures_of, figures_table

    found = {path: record for path in modes if (record := own_record(path)) is not None}
    story = read_story([KnownRun(RunFiles(path), record) for path, record in found.items()])
    told = dict(zip(found, figures_of(story), strict=True))
    figures = [{"mode": mode, **told.get(path, {"state": "not started"})} for path, mode in modes.items()]
    if as_json:
        print_json({"modes": figures, "report": out if found else None})
    else:
        print_table(turned(figures_table(figures)), stdout_console())
    if found:
        write_page(story, out)
