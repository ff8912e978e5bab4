"""Two replicas in threads: a step of `fit` of the MLP at batch 64 a replica, beside TensorFlow's MirroredStrategy
over two logical CPUs, and beside two steps of one process alone.

Wall and CPU time of the same stretches: on a machine that is shared the CPU time says more.
"""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from benchmarks.cluster_run import PEERS, PROGRAMS

from dtrain.process.resources import THREAD_LIMITS


def step_ms(*command: object, threads: int | None = None) -> tuple[float, float]:
    """A step by the marks of a program's clocks: of the stretches between them the tenth that others disturbed
    least, by wall time and by CPU time.
    """
    limits = {} if threads is None else dict.fromkeys(THREAD_LIMITS, str(threads))
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    out = subprocess.run(
        [*map(str, command)], env=os.environ | limits | quiet, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    steps, *clocks = np.array(json.loads(re.search(r"^marks (.*)$", out, re.M)[1])[1:]).T
    wall, cpu = (float(np.percentile(np.diff(clock) / np.diff(steps), 10)) * 1000 for clock in clocks)
    return wall, cpu


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_two_replicas(beside, real, runs, tensorflow, optimizer):
    if not real and optimizer == "adam":
        pytest.skip("a small step is that of SGD: --real")
    words = ["--optimizer", optimizer, "--steps", 300 if real else 3, "--every", 10 if real else 1]
    ours, theirs, alone = [], [], []
    for _ in range(runs):
        ours.append(step_ms(sys.executable, PROGRAMS / "threads.py", *words))
        lone = ["--strategy", "alone", "--replicas", 1]
        alone.append(step_ms(sys.executable, PROGRAMS / "threads.py", *lone, *words, threads=1))
        if tensorflow:
            theirs.append(step_ms(tensorflow, PEERS / "tensorflow_mirrored.py", *words))
    for number, clock in enumerate(("wall", "CPU")):
        others = {"TensorFlow": [each[number] for each in theirs]}
        if clock == "CPU":
            others["two steps alone"] = [2 * each[number] for each in alone]
        made = beside(
            f"mlp, {optimizer}, 2 replicas in threads, {clock}",
            [each[number] for each in ours],
            "ms",
            others,
            {"TensorFlow": "<= 1", "two steps alone": "<= 1.08"},
        )
        assert made.median > 0
