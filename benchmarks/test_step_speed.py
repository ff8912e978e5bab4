"""One process, no cluster: a training step (forward, backward, optimizer) beside the same step of TensorFlow
at equal threads.

dtrain's is a step of `fit`, data and all; TensorFlow's is one compiled function on batches that are tensors
already.
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


def step_ms(threads: int, *command: object) -> float:
    """A step by the marks of a program's clock: of the stretches between them the tenth that others disturbed
    least.
    """
    limits = dict.fromkeys(THREAD_LIMITS, str(threads))
    out = subprocess.run(
        [*map(str, command)], env=os.environ | limits, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    steps, seconds = np.array(json.loads(re.search(r"^marks (.*)$", out, re.M)[1])[1:]).T
    return float(np.percentile(np.diff(seconds) / np.diff(steps), 10)) * 1000


@pytest.mark.parametrize(
    ("model", "optimizer", "promised"), [("mlp", "sgd", "<= 1"), ("cnn", "adam", "<= 1.3")]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_one_process(beside, real, runs, tensorflow, model, optimizer, promised, threads):
    if not real and (model, threads) != ("cnn", 1):
        pytest.skip("a short run is that of the CNN with one thread: --real")
    words = [
        "--model",
        model,
        "--optimizer",
        optimizer,
        "--steps",
        500 if real else 3,
        "--every",
        10 if real else 1,
    ]
    ours, theirs = [], []
    for _ in range(runs):
        ours.append(step_ms(threads, sys.executable, PROGRAMS / "train.py", *words))
        if tensorflow:
            theirs.append(
                step_ms(
                    threads, tensorflow, PEERS / "tensorflow_one_process.py", "--threads", threads, *words
                )
            )
    made = beside(
        f"{model}, 1 process, {threads} threads", ours, "ms", {"TensorFlow": theirs}, {"TensorFlow": promised}
    )
    assert made.median > 0
