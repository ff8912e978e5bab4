"""How long training stands still when a server or a worker is killed."""

from itertools import pairwise

import pytest
from benchmarks.cluster_run import PROGRAMS, TWO_WORKERS

LINE = (PROGRAMS / "train.py", "--model", "line", "--every", 1)


def steps_done_s(run, task):
    """When a replica's steps were done."""
    return [at_s for _, at_s in run.marks(task)]


def only_for_real(real):
    if not real:
        pytest.skip("tests/clusters kill tasks as well: --real")


@pytest.mark.parametrize("updates", ["async", "sync"])
def test_a_server_is_killed(cluster, figure, real, runs, updates):
    only_for_real(real)
    steps, kill = 12_000, 3000
    words = (
        "--updates",
        updates,
        "--set",
        "checkpoint.every_s=0.5",
        "--set",
        f"simulate.kill=[{{task: ps:1, at_step: {kill}}}]",
    )
    waits, lost = [], []
    for _ in range(runs):
        run = cluster(
            *TWO_WORKERS, *words, "--set", "restart.ps.backoff_s=0.1", *LINE, "--steps", steps
        ).end()
        assert run.status["global_step"] == steps
        again_s = next(event["monotonic_s"] for event in run.events("started") if event["attempt"] == 1)
        waits.append(
            min((at_s for at_s in steps_done_s(run, "worker:0") if at_s > again_s), default=float("nan"))
            - again_s
        )
        lost.append(run.status["rolled_back_steps"])
    note = f"from the start of its second process to the next step; steps made again: {lost}"
    figure(f"server killed, {updates}", waits, "s", "<= 3", result=steps, note=note)
    assert all(lost)


@pytest.mark.parametrize(
    ("updates", "steps", "promised"), [("async", 60_000, "<= 1"), ("sync", 12_000, "<= 5.5")]
)
def test_a_worker_is_killed(cluster, figure, real, runs, updates, steps, promised):
    """Run until the dead worker's lease is over: before that the others wait, as it might still make a step."""
    only_for_real(real)
    kill = 3000
    words = ("--updates", updates, "--set", "training.too_few=shrink", "--set", "restart.worker.policy=never")
    fault = ("--set", f"simulate.kill=[{{task: worker:1, at_step: {kill}}}]")
    waits = []
    for _ in range(runs):
        run = cluster(*TWO_WORKERS, *words, *fault, *LINE, "--steps", steps).end()
        assert run.status["global_step"] == steps
        killed_s = run.events("fault")[0]["monotonic_s"]
        done = steps_done_s(run, "worker:0")
        waits.append(max(later - max(killed_s, earlier) for earlier, later in pairwise(done)))
    lease = "; the lease of 5 s, and a look at it" if updates == "sync" else ""
    figure(
        f"worker killed, {updates}",
        waits,
        "s",
        promised,
        result=steps,
        note=f"the longest step from then on{lease}",
    )
