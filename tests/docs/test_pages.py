"""The pages can be followed: links resolve, programs compile, specs are right, commands are the command
line's own.
"""

import ast
import os
import shutil
import subprocess
import sys

import click
import pytest
from docs.pages import PAGES, README, ROOT, Block, anchors, blocks, inline_code, links, name, shell_commands
from row_by_row import every_row

from dtrain.process.tensorflow import read_tf_config
from dtrain_cli.main import cli
from dtrain_cli.spec import read_spec
from dtrain_cli.stories.campaign import read_campaign
from dtrain_cli.study.study import read_study

README_LIMIT_BYTES = 6000
SOURCES = [ROOT, ROOT / "runtime", ROOT / "runtime" / "dtrain"]


def test_the_readme_fits_on_one_screen():
    assert len(README.read_bytes()) <= README_LIMIT_BYTES


@every_row("page", PAGES, ids=name)
def test_every_link_leads_to_a_page_and_an_anchor_that_exist(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        assert not path.startswith("/"), f"{name(page)}: {target} is not relative"
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name(page)}: {target} leads nowhere"
        if anchor:
            assert anchor in anchors(found), (
                f"{name(page)}: {target}: {name(found)} has no heading of that name"
            )


def test_every_page_is_reached_from_the_readme():
    reached, waiting = {README}, [README]
    while waiting:
        page = waiting.pop()
        targets = {(page.parent / target.partition("#")[0]).resolve() for target in links(page)}
        new = {target for target in targets if target.suffix == ".md"} - reached
        reached |= new
        waiting += new
    assert set(PAGES) <= reached


@every_row("page", PAGES, ids=name)
def test_every_file_that_is_named_exists(page):
    for text in inline_code(page):
        path = text.split()[0] if text.split() else ""
        if path.endswith(".py") and "/" in path and path.partition("/")[0] not in ("{", "PROGRAM.py"):
            path = path.replace("cli/", "cli/dtrain_cli/", page.name == "budget.md")
            assert any((source / path).exists() for source in SOURCES), f"{name(page)}: there is no {path}"


@every_row("block", blocks("python"), ids=str)
def test_every_program_compiles(block: Block):
    ast.parse(block.text, str(block))


def test_the_program_of_the_readme_trains():
    program = next(block for block in blocks("python") if block.page == README)
    environment = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
    command = [sys.executable, "-c", program.text]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "epoch 5/5" in done.stdout


@every_row("block", blocks("yaml"), ids=str)
def test_every_spec_is_right(block: Block, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(block.text)
    if "\nparameters:" in block.text:
        read_study(path, foreign=False)
    elif "\nstories:" in block.text:
        shutil.copy(ROOT / "examples" / "digits.py", tmp_path)
        read_campaign(path)
    else:
        read_spec(path, trains=True)


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_every_tf_config_is_one(block: Block):
    _, task = read_tf_config(block.text)
    assert task is not None


@every_row("block", blocks("console", "bash", "sh"), ids=str)
def test_every_dtrain_command_is_one_that_the_command_line_takes(block: Block):
    for words in shell_commands(block):
        if words[:1] == ["dtrain"]:
            parse(words[1:])


def parse(words: list[str]) -> None:
    """Parse a command line as `dtrain` would, without carrying it out."""
    above = click.Context(cli, info_name="dtrain")
    command = cli.get_command(above, words[0])
    assert command is not None, f"there is no `dtrain {words[0]}`"
    try:
        command.make_context(words[0], words[1:], parent=above)
    except click.ClickException as error:
        pytest.fail(f"`dtrain {' '.join(words)}`: {error.format_message()}")


@every_row("page", PAGES, ids=name)
def test_every_command_that_is_named_exists(page):
    for text in inline_code(page):
        first, _, rest = text.partition(" ")
        if first == "dtrain" and rest.partition(" ")[0] != "COMMAND":
            for each in rest.partition(" ")[0].split("|"):
                assert each in cli.commands, f"{name(page)}: `{text}`: there is no `dtrain {each}`"
