"""The programs of the documentation and the examples are right by their types: `mypy --strict` takes them."""

import shutil
import subprocess
import sys

import pytest
from docs.pages import ROOT, blocks, name

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
OWN_STRATEGIES = [
    ROOT / "tests" / "strategies" / f"{name}.py" for name in ("averaging", "every_second", "two_models")
]


def test_every_program_and_every_example_is_typed(tmp_path):
    """One run for all of them, beside the cache of the house's own runs."""
    pytest.importorskip("mypy", reason="mypy comes with dtrain[dev]")
    programs = []
    for block in blocks("python"):
        page = name(block.page).removesuffix(".md").replace("/", "_")
        programs.append(tmp_path / f"program_{page}_{block.line}.py")
        programs[-1].write_text(block.text)
    for path in (*EXAMPLES, *OWN_STRATEGIES):
        programs.append(shutil.copy(path, tmp_path))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", ROOT / "pyproject.toml", *programs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
