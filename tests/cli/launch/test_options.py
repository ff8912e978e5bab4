"""The command line with which an interrupted run goes on."""

import shlex
from pathlib import Path

import click
import pytest

from dtrain_cli.commands.command_line import GIVEN
from dtrain_cli.commands.launch import launch
from dtrain_cli.launch.options import LaunchOptions


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["p.py"], "dtrain launch --resume r1 p.py"),
        (
            ["--workers", "3", "s.yaml", "my p.py", "-v"],
            "dtrain launch --resume r1 --workers 3 s.yaml 'my p.py' -v",
        ),
        (["--resume", "old", "p.py", "--", "--resume=old"], "dtrain launch --resume r1 p.py -- --resume=old"),
        (["--name", "n", "--resume", "p.py"], "dtrain launch --resume r1 --name n p.py"),
        (["--run-dir", "d", "p.py"], "dtrain launch --resume --run-dir d p.py"),
        (["--run-dir", "d", "--resume", "p.py"], "dtrain launch --resume --run-dir d p.py"),
        (["--resume", "--from-scratch", "p.py"], "dtrain launch --resume r1 p.py"),
    ],
)
def test_it_is_the_same_with_resume(words, line):
    context = launch.make_context("launch", list(words))
    assert isinstance(context, click.Context)
    options, behind = context.meta[GIVEN]
    given = LaunchOptions(
        run_dir=context.params["run_dir"],
        resume=context.params["resume"],
        from_scratch=context.params["from_scratch"],
        given=options,
        behind=behind,
    )
    assert given.line_to_resume("r1") == line
    again = launch.make_context("launch", shlex.split(line)[2:])
    assert again.params["words"].program == Path(context.params["words"].program)
    assert again.params["resume"] == ("" if given.run_dir else "r1")
