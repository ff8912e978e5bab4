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

pytestmark = pytest.mark.night("it tests these tests, and runs a third of them twice")
HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden"
PERTURBED = GOLDEN / "perturbed"
FAILED = re.compile(r"^FAILED tests/conformance/(\w+)\.py::(\w+)", re.M)
SOME = 12
"""So many of the trainings of file m1, which are not perturbed."""
ROUNDS = rounds(EXPECTATIONS)


WORDS = ["-q", "-n0", "--tb=no", "-p", "no:cacheprovider", "-rf"]


def golden_files(folder):
    """The perturbed files, and those that are not perturbed; as a folder."""
    shutil.copytree(GOLDEN, folder, ignore=shutil.ignore_patterns("perturbed"))
    shutil.copytree(PERTURBED, folder, dirs_exist_ok=True)
    trainings = folder / "m1_mirrored_fit.json"
    golden = json.loads(trainings.read_text())
    golden["cases"] = golden["cases"][:: len(golden["cases"]) // SOME + 1]
    trainings.write_text(json.dumps(golden))
    return folder


def words_of_others():
    """Pytest's words for every module that reads a perturbed file."""
    others = {path.stem for path in PERTURBED.iterdir()} | {"trajectories", "m1_mirrored_fit"}
    paths = [path for path in HERE.glob("test_*.py") if path != Path(__file__)]
    modules = [str(path) for path in paths if any(name in path.read_text() for name in others)]
    return [*WORDS, *modules, "-k", "not cluster"]


def words_of_round(altered):
    """Pytest's words for the tests that compare what is altered."""
    nodes = {str(HERE / "{}.py::{}".format(*each.test.split("::"))): None for each in altered}
    return [*WORDS, "-p", "conformance.first_failures", *nodes]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What pytest says: of other inputs, then of every round."""
    folders = [golden_files(tmp_path_factory.mktemp("golden") / "files") for _ in range(len(ROUNDS) + 1)]
    for folder, altered in zip(folders[1:], ROUNDS, strict=True):
        for expectation in altered:
            assert alter(folder, expectation), f"nothing stands at {expectation}"
    words = [words_of_others(), *map(words_of_round, ROUNDS)]
    runs = [[str(folder), each] for folder, each in zip(folders, words, strict=True)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    }
    command = [sys.executable, "-m", "conformance.rounds"]
    asked = {"input": json.dumps(runs), "cwd": HERE.parents[1], "env": environment}
    return json.loads(subprocess.run(command, **asked, stdout=subprocess.PIPE, text=True, check=True).stdout)


@pytest.mark.long("runs a third of these tests")
def test_other_inputs_pass_with_their_own_expectations(said):
    assert not FAILED.findall(said[0]), said[0]
    assert int(re.search(r"(\d+) passed", said[0])[1]) > 50, said[0]


def test_every_altered_expectation_is_noticed(said):
    for altered, out in zip(ROUNDS, said[1:], strict=True):
        failed = {"::".join(found) for found in FAILED.findall(out)}
        assert {str(each) for each in altered if each.test not in failed} == set(), out
