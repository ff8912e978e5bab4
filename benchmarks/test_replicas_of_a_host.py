"""Sums and whole steps of 2 and 4 replicas that share the memory of one host, beside gloo and torch.optim (fused) in
the same processes, operation by operation in turn; and the time from a SIGKILL to the end of that very step.

Run it pinned to cores that have nothing else to do, such as `taskset -c 0,1`: woken replicas may otherwise stay on
one core.
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
SMALL = ("--megabytes", 0.1, "--rounds", 1, "--sizes", 8, 100_000)
BARS = {
    2: {"sum of 8 bytes": 8, "sum of 4096 bytes": 10, "step of SGD": 4, "step of Adam": 2},
    4: {"sum of 8 bytes": 8, "sum of 4096 bytes": 10, "step of SGD": 5, "step of Adam": 2},
}  # fmt: skip
COPIES = {"SGD": "<= 1.15", "Adam": "<= 1.3"}


def said(python, *words):
    """What the program says, run by a Python that may have PyTorch and needs dtrain's dependencies as well."""
    path = os.pathsep.join([str(RUNTIME), str(Path(msgspec.__file__).parents[1])])
    command = [python, PROGRAMS / "replicas_of_a_host.py", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=600)
    return json.loads(run.stdout.splitlines()[-1])


def only_two(real, replicas):
    if not real and replicas > 2:
        pytest.skip("a small sum is that of 2 replicas: --real")


@pytest.mark.parametrize("replicas", [2, 4])
def test_sums_and_steps(beside, real, runs, torch, replicas):
    only_two(real, replicas)
    size = ("--rounds", 3 * runs) if real else SMALL
    gloo = ["--gloo"] if torch else []
    found = said(torch or sys.executable, "--replicas", replicas, *size, *gloo)
    for operation, told in found.items():
        ms, others = told["ms"], {"gloo": told["ms"].get("gloo", [])}
        for way in (each for each in ms if each != "gloo" and "without" not in each):
            bar = BARS[replicas].get(operation)
            beside(
                f"{operation}, {way}, {replicas} replicas",
                ms[way],
                "ms",
                others,
                {"gloo": f"<= {1 / bar:.3g}"} if bar else {},
                note=f"CPU {told['cpu_ms'][way]:.4g} ms of all, gloo {told['cpu_ms'].get('gloo', 0):.4g}",
            )
    for name, bar in COPIES.items():
        ms = found[f"step of {name}"]["ms"]
        less = {"in place": ms[f"{name} in place"]}
        beside(f"step of {name} on two sides, {replicas}", ms[name], "ms", less, {"in place": bar})


@pytest.mark.parametrize("replicas", [2, 4])
def test_a_death_in_the_midst_of_an_update(figure, real, runs, replicas):
    only_two(real, replicas)
    size = ("--megabytes", 32, "--rounds", 6) if real else ("--megabytes", 0.1, "--rounds", 1)
    told = [said(sys.executable, "--replicas", replicas, "--death", *size) for _ in range(runs)]
    beyond = [each["ms"] - each["step_ms"] for each in told]
    figure(f"SIGKILL to the end of the step beyond its work, {replicas} replicas", beyond, "ms", "<= 50")
