"""The mean of 32 MB over 2 and 4 processes that stand for hosts, over TCP on loopback: the ring and the ordered
chain, beside gloo's all-reduce in the same processes, operation by operation in turn.

Gloo leaves the sum in the place of the gradient; dtrain keeps the gradient, so that the step can be finished
when a host is lost.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from benchmarks.cluster_run import PROGRAMS

RUNTIME = Path(__file__).parents[1] / "runtime"


def said(python, *words):
    """What the program says, run by a Python that may have PyTorch and needs dtrain's dependencies as well."""
    path = os.pathsep.join([str(RUNTIME), str(Path(msgspec.__file__).parents[1])])
    command = [python, PROGRAMS / "sums_between_hosts.py", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=600)
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("processes", [2, 4])
def test_the_mean_of_32_megabytes(beside, real, runs, torch, processes):
    if not real and processes > 2:
        pytest.skip("a small mean is that of 2 processes: --real")
    megabytes, rounds = (32, 3 * runs) if real else (1, 1)
    gloo = ["--gloo"] if torch else []
    found = said(
        torch or sys.executable,
        *("--processes", processes, "--megabytes", megabytes, "--rounds", rounds, *gloo),
    )
    for way in ("ring", "chain"):
        beside(
            f"{way} of 32 MB, {processes} processes",
            found["ms"][way],
            "ms",
            {"gloo": found["ms"].get("gloo", [])},
            {"gloo": "<= 1"} if way == "ring" else {},
            result=[processes, found["mean"]],
            note=f"CPU {found['cpu_ms'][way]:.4g} ms of all, gloo {found['cpu_ms'].get('gloo', 0):.4g}",
        )
