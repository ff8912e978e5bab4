"""`dtrain tune`: search for values of a program's flags, and look at such searches."""

import shlex
import sys
from pathlib import Path

import click

from dtrain.errors import DtrainError, SpecError
from dtrain_cli.commands.command_line import Count, ProgramCommand, ProgramWords, json_option, runs_dir_option
from dtrain_cli.console.streams import print_json
from dtrain_cli.targets import cold_start

VIEWS = ("status", "best", "report")


@click.command()
@click.argument("view", type=click.Choice(VIEWS))
@click.argument("name", required=False)
@json_option
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Of report: write a page.")
@click.option(
    "--hparams",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Of report: write TensorBoard's HParams.",
)
@runs_dir_option
def look_at(
    view: str, name: str | None, as_json: bool, out: Path | None, hparams: Path | None, runs_dir: Path | None
) -> None:
    """Show study NAME: its trials as they were asked (status), the best first (report), or the best alone.

    Without NAME, `status` shows the first line of every study.
    """
    from dtrain_cli.study.study import all_studies, best_of, lines_of, look, study_files

    if name is None:
        if view != VIEWS[0]:
            raise click.UsageError(
                f"expected the NAME of a study behind {view}; `dtrain tune status` lists them"
            )
        found = [look(files) for files in all_studies(runs_dir)]
        lines = [next(lines_of(each, ranked=False)) for each in found] or ["there are no studies yet"]
        print_json({"studies": found}) if as_json else click.echo("\n".join(lines))
        return
    report = look(files := study_files(name, runs_dir))
    if out is not None or hparams is not None:
        from dtrain_cli.study.study_page import study_page, write_hparams

        if out is not None:
            out.write_text(study_page(report, files.read().spec), encoding="utf-8")
        if hparams is not None:
            write_hparams(report, hparams)
        return
    alone = best_of(report) if view == VIEWS[1] else None
    if as_json:
        print_json(alone or report)
    elif alone is not None:
        click.echo(f"trial {alone['trial']:04d}: {alone['value']:.6g} at step {alone['step']}")
        click.echo(f"dtrain launch {shlex.join(alone['command'])}")
    else:
        for line in lines_of(report, ranked=view == VIEWS[2]):
            click.echo(line)


@click.command(
    cls=ProgramCommand,
    short_help="Search for the best values of a program's flags.",
    epilog="\b\nExamples:\n"
    "  dtrain tune study.yaml examples/tuned_trial.py --data FOLDER\n"
    "  dtrain tune --resume mnist-search\n"
    "  dtrain tune --resume mnist-search --steps 5000 --top 3\n"
    "  dtrain tune status mnist-search\n"
    "  dtrain tune best mnist-search --json\n"
    "  dtrain tune report mnist-search --out search.html --hparams logs\n",
)
@click.option("--resume", metavar="NAME", help="Go on with a study, also after kill -9 or a reboot.")
@click.option("--steps", type=Count(1), metavar="N", help="With --resume: train the best on, with --steps N.")
@click.option("--top", type=Count(1), default=1, show_default=True, metavar="K", help="How many of the best.")
@runs_dir_option
def tune(
    words: ProgramWords, resume: str | None, steps: int | None, top: int, runs_dir: Path | None
) -> int | None:
    """Run trials of PROGRAM, each a launch with other values of its flags, as a study's file SPEC says.

    `tune status NAME`, `tune best NAME` and `tune report NAME` show a study, `tune status` lists all; each
    has --json. A study that was stopped or killed goes on with `tune --resume NAME`.
    """
    if str(words.program) in VIEWS and words.spec is None and resume is None:
        look_at.main([str(words.program), *words.arguments], "dtrain tune", standalone_mode=False)
        return None
    if steps is not None and resume is None:
        raise click.UsageError("--steps belongs to --resume")
    if sys.platform != "linux":
        raise DtrainError("tune needs Linux")
    cold_start.prepare()

    from dtrain_cli.study.study import begin, go_on, study_files

    if resume is not None:
        if words.program is not None or words.foreign:
            raise SpecError("--resume: the study knows its program; leave PROGRAM and its arguments away")
        return go_on(study_files(resume, runs_dir), words.spec, steps, top)
    if words.spec is None:
        raise SpecError("expected the file of a study, such as `dtrain tune STUDY.yaml PROGRAM.py`")
    path = words.spec
    words.check_program()
    assert isinstance(tune, ProgramCommand)
    words = tune.check_arguments(words)
    return begin(path, words.program, words.arguments, runs_dir)


COMMANDS = (tune,)
