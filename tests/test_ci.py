"""What CI makes of tests that fail: one that passes alone is named, one that fails again fails the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN_TESTS = Path(__file__).parents[1] / ".ci" / "run_tests.py"
UNSTABLE = """
import pathlib
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    been = pathlib.Path(f"been-{{number}}")
    if not been.exists():
        been.touch()
        pytest.fail("for the first time")
"""
BROKEN = "def test_broken():\n    assert False\n"


@pytest.mark.parametrize(
    ("files", "code", "last_lines"),
    [
        ({"unstable": UNSTABLE.format(count=1)}, 0, ["unstable:", "test_unstable.py::test_it[0]"]),
        (
            {"unstable": UNSTABLE.format(count=1), "broken": BROKEN},
            1,
            ["failed again when run alone:", "test_broken.py::test_broken"],
        ),
        ({"unstable": UNSTABLE.format(count=4)}, 1, ["4 tests failed; at most 3", *["test_unstable.py"] * 4]),
    ],
)
def test_what_failed_is_run_once_more_alone(tmp_path, files, code, last_lines):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    plain = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist"}
    ended = subprocess.run(
        [sys.executable, RUN_TESTS], cwd=tmp_path, env=plain, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code, ended.stdout
    found = ended.stdout.splitlines()[-len(last_lines) :]
    assert all(line.strip().startswith(each) for line, each in zip(found, last_lines, strict=True)), found
