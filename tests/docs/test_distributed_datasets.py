"""The programs of the guide to distributed datasets run, and print what the page says."""

import os
import subprocess
import sys

import pytest
from docs.pages import ROOT, Block, blocks

PAGE = ROOT / "docs" / "guide" / "distributed_datasets.md"
PRINTED = {
    "sums = strategy.run": "[[0, 1], [2, 3]] 6\n[[4], [5]] 9\n",
    "get_next_as_optional": ("[0 1 2 3]\n[4 5 6 7]\n[8]\nTensorSpec(shape=(None,), dtype='int64')\n"),
    "StringLookup": "[1, 3, 0]\n",
    "replica_id_in_sync_group": f"(0, 1)\n{list(range(1, 48, 2))}\n",
}


@pytest.mark.parametrize("block", [each for each in blocks("python") if each.page == PAGE], ids=str)
def test_a_program_prints_what_the_page_says(block: Block):
    environment = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
    command = [sys.executable, "-c", block.text]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = [printed for words, printed in PRINTED.items() if words in block.text]
    assert [done.stdout] == expected or not expected


def test_what_is_printed_is_on_the_page():
    text = PAGE.read_text()
    first = PRINTED["sums = strategy.run"]
    assert "".join(f"    {line}\n" for line in first.splitlines()) in text
    assert "# (0, 1)" in text
    assert "# 1, 3, 5, ..., 47" in text
