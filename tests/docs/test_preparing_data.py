"""The programs of the guide to preparing data run, and print what stands behind each `print`."""

import contextlib
import io
import re

import pytest
from docs.pages import ROOT, Block, blocks

from dtrain.strategies.single import SingleStrategy

PAGE = ROOT / "docs" / "guide" / "preparing_data.md"
SAID = re.compile(r"print\(.*\)  # (.+)$", re.MULTILINE)


@pytest.mark.parametrize("block", [each for each in blocks("python") if each.page == PAGE], ids=str)
def test_a_program_prints_what_the_page_says(block: Block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), SingleStrategy().scope():
        exec(compile(block.text, str(block), "exec"), {"__name__": "guide"})
    assert printed.getvalue().splitlines() == SAID.findall(block.text)
    assert block.text.count("print(") == len(SAID.findall(block.text))
