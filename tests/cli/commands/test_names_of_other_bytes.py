"""Names of files that are no UTF-8: one sentence, exit code 2, and nothing is made."""

import os
import sys

import pytest
from cli.commands.running import dtrain

NAME = "caf\udce9"


def refused(tmp_path, *words, **kwargs) -> str:
    before = sorted(os.walk(os.fsencode(tmp_path)))
    done = dtrain("launch", *words, **kwargs)
    assert (done.returncode, done.stdout) == (2, "")
    assert sorted(os.walk(os.fsencode(tmp_path))) == before
    return done.stderr.splitlines()[-1]


@pytest.mark.skipif(sys.getfilesystemencoding() != "utf-8", reason="names are UTF-8 or bytes here")
def test_a_name_that_no_record_can_hold_is_refused_before_anything_is_made(tmp_path):
    folder = tmp_path / NAME
    folder.mkdir()
    for program in (folder / "p.py", tmp_path / "p.py"):
        program.write_text("print('it is executed')\n")
    said = "expected a name in UTF-8; rename it, or choose another"
    at = ascii(str(folder))
    assert refused(tmp_path, "p.py", cwd=folder) == f"dtrain: {at}: {said}"
    assert refused(tmp_path, f"{NAME}/p.py", cwd=tmp_path) == f"dtrain: 'caf\\udce9/p.py': {said}"
    runs = refused(tmp_path, "--runs-dir", tmp_path / f"runs-{NAME}", "p.py", cwd=tmp_path)
    assert runs.startswith(f"dtrain: '{tmp_path}/runs-caf\\udce9/")
    assert runs.endswith(said)
