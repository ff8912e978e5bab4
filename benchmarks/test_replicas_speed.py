"""Two replicas in processes of their own: a step of `fit` of the MLP at batch 64 a replica, beside PyTorch's
DistributedDataParallel over gloo and TensorFlow's MultiWorkerMirroredStrategy over its ring, each launched as two
processes of one thread each.

Pairs of one round; the tenth of the stretches between marks that others disturbed least, by wall time and by CPU
time of the leader.
"""

import json
import re

import numpy as np
import pytest
from benchmarks.cluster_run import PEERS, PROGRAMS

PAIR = ("--no-evaluator", "--workers", 1)
OURS = (*PAIR, "--strategy", "multi_worker_mirrored", PROGRAMS / "threads.py", "--strategy", "cluster")


def step_ms(run) -> tuple[float, float]:
    """A step by the marks of the leader's clocks, without the first: by wall time and by CPU time."""
    text = re.search(r"^marks (.*)$", run.log("chief:0"), re.M)[1]
    steps, *clocks = np.array(json.loads(text)[1:]).T
    wall, cpu = (float(np.percentile(np.diff(clock) / np.diff(steps), 10)) * 1000 for clock in clocks)
    return wall, cpu


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_two_processes(cluster, beside, real, runs, tensorflow, torch, optimizer):
    if not real and optimizer == "adam":
        pytest.skip("a small step is that of SGD: --real")
    words = ("--optimizer", optimizer, "--steps", 300 if real else 3, "--every", 10 if real else 1)
    peers = {}
    if torch:
        peers["PyTorch DDP"] = (torch, PEERS / "torch_ddp.py")
    if tensorflow:
        peers["TensorFlow MultiWorkerMirrored"] = (
            tensorflow,
            PEERS / "tensorflow_mirrored.py",
            "--multi-worker",
        )
    ours, others = [], {name: [] for name in peers}
    for _ in range(runs):
        ours.append(step_ms(cluster(*OURS, *words).end()))
        for name, command in peers.items():
            others[name].append(step_ms(cluster(*PAIR, "--ps", 0, "--", *command, *words).end()))
    for number, clock in enumerate(("wall", "CPU")):
        made = beside(
            f"mlp, {optimizer}, 2 replicas in processes, {clock}",
            [each[number] for each in ours],
            "ms",
            {name: [each[number] for each in theirs] for name, theirs in others.items()},
            {"PyTorch DDP": "<= 0.625", "TensorFlow MultiWorkerMirrored": "<= 0.333"}
            if clock == "wall"
            else {},
        )
        assert made.median > 0
