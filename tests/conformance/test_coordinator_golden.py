"""What a coordinator and its closures do, as TensorFlow's: golden file m8, alone and on a cluster."""

import json
import math
import subprocess
import sys
from functools import cache
from pathlib import Path

from conformance.golden import golden_dir, load_json
from conformance.left_out import LEFT_OUT
from row_by_row import every_row

PROGRAM = Path(__file__).parent / "coordinator_cases.py"
CASES = load_json("m8_coordinator.json")["cases"]
COMPARED = [case for case in CASES if not any(map(case["what"].startswith, LEFT_OUT["m8_coordinator.json"]))]
PATIENCE_S = 120.0


def printed(out):
    """What the program has found, by case."""
    line = next(line for line in out.splitlines() if "CASES " in line)
    return json.loads(line.partition("CASES ")[2])


@cache
def found_alone():
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return printed(done.stdout)


def differs(expected, found):
    """Whether TensorFlow's answer is another one; of errors their classes are compared."""
    if isinstance(expected, dict) and set(expected) == {"error"}:
        return not isinstance(found, dict) or expected["error"]["class"] not in found.get("error", ())
    if isinstance(expected, dict):
        return (
            not isinstance(found, dict)
            or expected.keys() != found.keys()
            or any(differs(expected[key], found[key]) for key in expected)
        )
    if isinstance(expected, list):
        return (
            not isinstance(found, list)
            or len(found) != len(expected)
            or any(differs(*pair) for pair in zip(expected, found, strict=True))
        )
    if isinstance(expected, float) and isinstance(found, float):
        return not math.isclose(expected, found, rel_tol=1e-6)
    return expected != found or isinstance(expected, bool) is not isinstance(found, bool)


def answer(case):
    return {"error": case["error"]} if "error" in case else case["value"]


@every_row("case", COMPARED, ids=lambda case: case["what"][:60])
def test_the_answer_is_tensorflows(case):
    found = found_alone()[case["what"]]
    assert not differs(answer(case), found), found


def test_on_a_cluster_the_answers_are_tensorflows(launcher, monkeypatch):
    monkeypatch.setenv("DTRAIN_GOLDEN", str(golden_dir().resolve()))
    launch = launcher.start("--workers", "1", "--ps", "1", "--no-evaluator", str(PROGRAM))
    assert launch.end() == 0, launch.err
    found = printed(launch.out)
    wrong = [case["what"] for case in COMPARED if differs(answer(case), found[case["what"]])]
    assert not wrong
    launch.wait_gone()


def test_every_case_that_is_left_out_is_there():
    names = [case["what"] for case in CASES]
    assert all(any(name.startswith(key) for name in names) for key in LEFT_OUT["m8_coordinator.json"])
    assert len(COMPARED) == len(CASES) - len(LEFT_OUT["m8_coordinator.json"])
