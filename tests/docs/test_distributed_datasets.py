"""The programs of the guide to distributed datasets run, and print what the page says."""

import json
import os
import subprocess
import sys

from docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "guide" / "distributed_datasets.md"
PRINTED = {
    "sums = strategy.run": "[[0, 1], [2, 3]] 6\n[[4], [5]] 9\n",
    "get_next_as_optional": ("[0 1 2 3]\n[4 5 6 7]\n[8]\nTensorSpec(shape=(None,), dtype='int64')\n"),
    "StringLookup": "[1, 3, 0]\n",
    "replica_id_in_sync_group": f"(0, 1)\n{list(range(1, 48, 2))}\n",
}


FORKS = """
import json, os, sys
import dtrain
for number, text in enumerate(json.load(sys.stdin)):
    if os.fork() == 0:
        os.dup2(os.open(f"{number}.out", os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open(f"{number}.err", os.O_WRONLY | os.O_CREAT), 2)
        exec(compile(text, "a program", "exec"), {"__name__": "__main__"})
        sys.exit()
    with open(f"{number}.code", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(os.wait()[1])))
"""
"""Each program in a process of its own, which has imported dtrain already."""


def test_a_program_prints_what_the_page_says(tmp_path):
    programs = [block for block in blocks("python") if block.page == PAGE]
    environment = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
    texts = json.dumps([block.text for block in programs])
    subprocess.run(
        [sys.executable, "-c", FORKS], input=texts, text=True, env=environment, cwd=tmp_path, check=True
    )
    found = []
    for number, block in enumerate(programs):
        code, out, err = ((tmp_path / f"{number}.{end}").read_text() for end in ("code", "out", "err"))
        assert code == "0", f"{block}: {err}"
        words = [each for each in PRINTED if each in block.text]
        assert not words or [out] == [PRINTED[each] for each in words], f"{block}"
        found += words
    assert sorted(found) == sorted(PRINTED), "each of these is a program of the page"


def test_what_is_printed_is_on_the_page():
    text = PAGE.read_text()
    first = PRINTED["sums = strategy.run"]
    assert "".join(f"    {line}\n" for line in first.splitlines()) in text
    assert "# (0, 1)" in text
    assert "# 1, 3, 5, ..., 47" in text
