"""Where dtrain's options end and the program's begin."""

from pathlib import Path

import click
import pytest
from row_by_row import every_row

from dtrain.errors import SpecError
from dtrain_cli.commands.command_line import ProgramCommand, ProgramWords, Seconds


def parse(line: str, takes_spec: bool = True) -> tuple[ProgramWords, dict]:
    params = [
        click.Option(["--workers"], type=int),
        click.Option(["--set", "sets"], multiple=True),
        click.Option(["--resume"]),
        click.Option(["--json", "as_json"], is_flag=True),
    ]
    command = ProgramCommand("launch", params=params, takes_spec=takes_spec, optional_values=["--resume"])
    context = command.make_context("launch", line.split())
    return context.params.pop("words"), {name: value for name, value in context.params.items() if value}


@every_row(
    "line, words, options",
    [
        ("p.py", ProgramWords(None, Path("p.py")), {}),
        (
            "p.py --workers 3 -- x.yaml",
            ProgramWords(None, Path("p.py"), ("--workers", "3", "--", "x.yaml")),
            {},
        ),
        ("--workers 3 s.yaml p.py -v", ProgramWords(Path("s.yaml"), Path("p.py"), ("-v",)), {"workers": 3}),
        (
            "s.toml --workers=3 p.py s.yaml",
            ProgramWords(Path("s.toml"), Path("p.py"), ("s.yaml",)),
            {"workers": 3},
        ),
        (
            "--set a=1 --json --set b=2 s.json p.py",
            ProgramWords(Path("s.json"), Path("p.py")),
            {"sets": ("a=1", "b=2"), "as_json": True},
        ),
        ("-- python p.py --json", ProgramWords(None, None, ("python", "p.py", "--json"), True), {}),
        (
            "--json s.yml -- ./x -- y",
            ProgramWords(Path("s.yml"), None, ("./x", "--", "y"), True),
            {"as_json": True},
        ),
        ("--", ProgramWords(None, None, (), True), {}),
        ("s.yaml t.yaml p.py", ProgramWords(Path("s.yaml"), Path("t.yaml"), ("p.py",)), {}),
        ("--resume p.py", ProgramWords(None, Path("p.py")), {}),
        ("--resume old p.py --resume", ProgramWords(None, Path("p.py"), ("--resume",)), {"resume": "old"}),
        ("--resume=old s.yaml p.py", ProgramWords(Path("s.yaml"), Path("p.py")), {"resume": "old"}),
        ("--set", None, None),
        ("--nonsense p.py", None, None),
    ],
)
def test_the_grammar(line, words, options):
    if words is None:
        with pytest.raises(click.UsageError):
            parse(line)
    else:
        assert parse(line) == (words, options)


def test_resume_without_a_run_is_told_from_no_resume():
    assert parse("--resume --json p.py")[1] == {"as_json": True}
    command = ProgramCommand("x", params=[click.Option(["--resume"])], optional_values=["--resume"])
    assert command.make_context("x", ["--resume", "p.py"]).params["resume"] == ""
    assert command.make_context("x", ["p.py"]).params["resume"] is None


def test_a_role_command_takes_no_spec_by_position():
    assert parse("s.yaml p.py", takes_spec=False)[0] == ProgramWords(None, Path("s.yaml"), ("p.py",))


def test_a_working_directory_that_is_gone_is_said(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SpecError, match="the working directory does not exist any more"):
        ProgramWords(None, tmp_path / "p.py").check_program()


@pytest.mark.parametrize("text", ["nan", "-1", "soon"])
def test_seconds_are_a_number_of_at_least_0(text):
    with pytest.raises(click.BadParameter):
        Seconds(0).convert(text, None, None)
    assert Seconds(0).convert("1.5", None, None) == 1.5


def test_what_is_to_be_run_is_looked_for(tmp_path):
    good = tmp_path / "p.py"
    good.touch()
    ProgramWords(None, good).check_program()
    ProgramWords(None, None, ("sh", "-c", "true"), True).check_program()
    for words, said in [
        (ProgramWords(), "expected a program, such as"),
        (ProgramWords(foreign=True), "expected a command after --"),
        (ProgramWords(None, None, ("no-such-thing",), True), "no-such-thing: no such executable"),
        (ProgramWords(None, tmp_path / "no.py"), "no.py: cannot read the program: No such file"),
        (ProgramWords(None, tmp_path / "run.sh"), "write `-- "),
        (
            ProgramWords(None, tmp_path / "b.yaml"),
            "b.yaml: expected a Python program PROGRAM.py, found a second spec",
        ),
        (ProgramWords(None, tmp_path), "expected a Python program"),
    ]:
        with pytest.raises(SpecError) as caught:
            words.check_program()
        assert said in str(caught.value)
