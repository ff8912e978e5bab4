"""A step that takes 12 ms to compute and 10 ms to read, read ahead: beside the longer one of the two alone, and
beside tf.data and a torch DataLoader with the same reading and computing.
"""

import json
import os
import subprocess
import sys

import pytest
from benchmarks.cluster_run import PROGRAMS

from dtrain.process.resources import THREAD_LIMITS


def measured(python, of, kind, steps):
    words = [python, PROGRAMS / "input_overlap.py", "--of", of, "--input", kind, "--steps", steps]
    limits = dict.fromkeys(THREAD_LIMITS, "1") | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    environment = os.environ | limits
    if python != sys.executable:
        environment.pop("PYTHONPATH", None)
    done = subprocess.run([*map(str, words)], env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["wait", "work"])
def test_input_and_compute_at_once(figure, real, runs, tensorflow, torch, kind):
    if not real and kind == "work":
        pytest.skip("a short input is that which waits: --real")
    of = {"dtrain": sys.executable, "tf.data": tensorflow, "torch": torch}
    found = {name: [] for name, python in of.items() if python}
    for _ in range(runs):
        for name, ratios in found.items():
            said = measured(of[name], name, kind, 60 if real else 3)
            ratios.append(said["both"] / max(said["input"], said["compute"]))
    for name, ratios in found.items():
        promised = "<= 1.1" if name == "dtrain" else None
        made = figure(f"{name}: step with input ({kind}) / the longer one alone", ratios, "x", promised)
        assert made.median > 0
