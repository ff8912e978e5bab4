"""The conformance tests follow the golden files: other inputs pass with their own expectations, an altered
expectation fails.

tests/golden/perturbed holds other shapes, weights, rates and seeds, computed by TensorFlow
(`conformance/perturb.py`).
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conformance.alter import EXPECTATIONS, alter, rounds

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden"
PERTURBED = GOLDEN / "perturbed"
FAILED = re.compile(r"^FAILED tests/conformance/(\w+)\.py::(\w+)", re.M)
SOME = 12
"""So many of the trainings of file m1, which are not perturbed."""
ROUNDS = rounds(EXPECTATIONS)


@pytest.fixture
def folder(tmp_path):
    """The perturbed files, and those that are not perturbed."""
    copy = tmp_path / "golden"
    shutil.copytree(GOLDEN, copy, ignore=shutil.ignore_patterns("perturbed"))
    shutil.copytree(PERTURBED, copy, dirs_exist_ok=True)
    trainings = copy / "m1_mirrored_fit.json"
    golden = json.loads(trainings.read_text())
    golden["cases"] = golden["cases"][:: len(golden["cases"]) // SOME + 1]
    trainings.write_text(json.dumps(golden))
    return copy


def run(folder, *words):
    """Pytest's output over the files in `folder`."""
    environment = {**os.environ, "DTRAIN_GOLDEN": str(folder)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n0",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-rf",
        *words,
    ]
    return subprocess.run(
        command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, check=False
    ).stdout


def test_other_inputs_pass_with_their_own_expectations(folder):
    others = {path.stem for path in PERTURBED.iterdir()} | {"trajectories", "m1_mirrored_fit"}
    paths = [path for path in HERE.glob("test_*.py") if path != Path(__file__)]
    modules = [str(path) for path in paths if any(name in path.read_text() for name in others)]
    out = run(folder, *modules, "-k", "not cluster")
    assert not FAILED.findall(out), out
    assert int(re.search(r"(\d+) passed", out)[1]) > 300, out


@pytest.mark.parametrize("altered", ROUNDS, ids=range(len(ROUNDS)))
def test_an_altered_expectation_is_noticed(altered, folder):
    for expectation in altered:
        assert alter(folder, expectation), f"nothing stands at {expectation}"
    tests = {expectation.test: str(expectation) for expectation in altered}
    nodes = [str(HERE / "{}.py::{}".format(*test.split("::"))) for test in tests]
    out = run(folder, "-p", "conformance.first_failures", *nodes)
    failed = {"::".join(found) for found in FAILED.findall(out)}
    assert {tests[test] for test in tests if test not in failed} == set(), out
