"""From the command to the first step of every replica. With --real also 1 chief, 96 workers, 2 ps, 1
evaluator.

Beside it `torchrun --nproc-per-node 4` of processes that do nothing, from the command to its end: they import
nothing, train nothing and open no connection.
"""

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from benchmarks.cluster_run import PEERS

PROGRAM = """
import time

import numpy as np

import dtrain as dt


def batches(context):
    def generate():
        x = np.linspace(-1, 1, 32, dtype=np.float32)[:, None]
        yield x, 2 * x + 10
        print("first step", time.monotonic(), flush=True)  # the second batch is asked for when the first step is done
        while True:
            yield x, 2 * x + 10

    return dt.data.Dataset.from_generator(generate)


with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Dense(1)])
    model.compile(optimizer=dt.optimizers.SGD(0.001), loss="mse")
model.fit(batches, epochs=1, steps_per_epoch=1_000_000, verbose=0)
"""


def first_steps_s(launcher, workers: int) -> tuple[list[float], float]:
    """Seconds from the command to each replica's first step, and the memory of all processes (PSS, MiB)
    then.
    """
    (launcher.folder / "program.py").write_text(PROGRAM)
    started_s = time.monotonic()
    launch = launcher.start("--workers", workers, "program.py")
    logs = [f"worker:{index}" for index in range(workers)] + ["chief:0"]
    found = launch.wait_for(
        lambda: len(times := _times(launch, logs)) == len(logs) and times, "the first step of every replica"
    )
    memory = sum(_pss_mib(pid) for pid in [launch.process.pid, *launch.pids()])
    launch.send(signal.SIGINT)
    assert launch.end() == 130
    assert not launch.pids()
    return [at_s - started_s for at_s in found], memory


def _times(launch, logs: list[str]) -> list[float]:
    found = (re.search(r"first step ([\d.]+)", launch.log(name)) for name in logs)
    return [float(match[1]) for match in found if match]


def _pss_mib(pid: int) -> float:
    try:
        return int(re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)[1]) / 1024
    except (OSError, TypeError):  # it has ended, or cannot be read
        return 0.0


def torchrun_s(torch: str | None) -> list[float]:
    """Seconds of one torchrun, as a list that is empty without PyTorch."""
    if torch is None:
        return []
    started_s = time.monotonic()
    command = [torch, "-m", "torch.distributed.run", "--nproc-per-node", "4", PEERS / "nothing.py"]
    subprocess.run(command, check=True, capture_output=True)
    return [time.monotonic() - started_s]


def test_the_default_cluster(launcher, beside, runs, torch):
    ours, torchrun = [], []
    for _ in range(runs):
        ours.append(max(first_steps_s(launcher, workers=2)[0]))
        torchrun += torchrun_s(torch)
    others = {"torchrun of nothing": torchrun}
    made = beside(
        "first step, default cluster",
        ours,
        "s",
        others,
        {},
        promised="<= 1",
        note="of every replica, from the command on",
    )
    assert made.median > 0


def test_a_hundred_tasks(launcher, beside, real, torch):
    if not real:
        pytest.skip("100 processes: --real")
    times, memory = first_steps_s(launcher, workers=96)
    note = f"of all 97 replicas; all processes {memory:.0f} MiB PSS"
    others = {"torchrun of nothing": torchrun_s(torch)}
    beside("first step, 100 tasks", [max(times)], "s", others, {}, promised="<= 6", note=note)
    assert max(times) < 5 * 6
