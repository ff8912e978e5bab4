"""The default cluster, synchronous, while all tasks wait for the chief's second batch: what waiting costs.

Memory is PSS, so what the tasks share is divided among them. CPU is that of every process, launcher and fork
server included.
"""

import time

import psutil
from benchmarks.cluster_run import PROGRAMS

WORKERS = ("worker:0", "worker:1")
DEADLINE_S = 60.0
SETTLE_S = 3.0
WORKER_MB = 20
"""What an idle worker may take. Memory, unlike time, is the same on a busy machine."""


def first_step_done(run, task: str) -> bool:
    """Whether a replica has done its first step."""
    return bool(run.task(task).get("pid")) and "first step done" in run.log(task)


def cpu_s(processes: list[psutil.Process]) -> float:
    """CPU time that they have used so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def test_everybody_waits(cluster, figure, real):
    run = cluster("--updates", "sync", PROGRAMS / "idle.py")
    deadline_s = time.monotonic() + DEADLINE_S
    while not all(first_step_done(run, worker) for worker in WORKERS):
        assert run.under_way, run.end()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    time.sleep(SETTLE_S if real else 0)  # the first evaluation and the checkpoint that it reads
    processes = run.processes()
    begun_s, used_s = time.monotonic(), cpu_s(processes)
    time.sleep(20 if real else 0.2)
    percent = (cpu_s(processes) - used_s) / (time.monotonic() - begun_s) * 100
    memory = [psutil.Process(run.task(worker)["pid"]).memory_full_info().pss / 1e6 for worker in WORKERS]
    run.kill()
    figure("idle worker", memory, "MB PSS", f"<= {WORKER_MB}", note="the two workers of the default cluster")
    figure(
        "idle cluster",
        [percent],
        "% core",
        "<= 2",
        note=f"{len(processes)} processes, launcher and fork server included",
    )
    assert 0 < min(memory) <= max(memory) <= WORKER_MB
