"""The programs of the pages for those who come from Keras and tf.distribute run, and print what the pages say;
their tables name each layer, loss and metric of Keras, and say of it what its error says.

They are written as programs for Keras are, without types; so their blocks are `py`, which test_types.py does not read.
"""

import re
from pathlib import Path

import pytest
from docs.pages import ROOT, Block, blocks

import dtrain as dt
from dtrain.absent_names import hint, instead

GUIDE = ROOT / "docs" / "guide"
KERAS = GUIDE / "coming_from_keras.md"
PAGES = (KERAS, GUIDE / "coming_from_tf_distribute.md")
SAID = re.compile(r"print\(.*\)  # (.+)$", re.MULTILINE)
NAMES = {
    line.split()[0]: line.split()[1:]
    for line in (ROOT / "tests" / "keras" / "tensorflow_names.txt").read_text().splitlines()
    if not line.startswith("#")
}
OF_ALL_MODULES = {"serialize", "deserialize", "get", "experimental"}


@pytest.mark.parametrize("block", [each for each in blocks("py") if each.page in PAGES], ids=str)
def test_a_program_prints_what_the_page_says(block: Block, launcher):
    program = Path(launcher.folder, "program.py")
    program.write_text(block.text)
    # what sets TF_CONFIG is a program that plain Python starts
    command = launcher.run(*([] if "TF_CONFIG" in block.text else ["-m", "dtrain.task"]), program)
    assert command.end() == 0, command.err
    said = [line for each in SAID.findall(block.text) for line in each.split(", then ")]
    assert [line for line in command.out.splitlines() if not re.match(r"epoch \d+/", line)] == said
    assert block.text.count("print(") == len(SAID.findall(block.text)) > 0


def rows(heading: str) -> dict[str, str]:
    """What the table under a heading says of each name."""
    section = KERAS.read_text().partition(f"### {heading}\n")[2].partition("\n#")[0]
    table = re.findall(r"^\| (`.+?) \| (.+) \|$", section, re.MULTILINE)
    return {name: answer for names, answer in table for name in re.findall(r"`(\w+)=?`", names)}


@pytest.mark.parametrize("module", ["layers", "losses", "metrics"])
def test_a_table_has_each_name_of_keras(module):
    owner, said = getattr(dt, module), rows(module.capitalize())
    assert said.keys() == {*NAMES[module]} - OF_ALL_MODULES
    for name, answer in said.items():
        expected = "yes" if hasattr(owner, name) else hint(f"dtrain.{module}", name, ()).removeprefix("; ")
        assert answer == expected, name


def test_the_table_of_arguments_has_each_that_is_answered():
    assert rows("Arguments") == {
        name: use for (where, name), use in instead().items() if where == "arguments"
    }
