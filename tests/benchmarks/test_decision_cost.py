"""Synchronous training, N = T = 2, the smallest step: what it costs that two servers decide as one."""

from benchmarks.cluster_run import PROGRAMS, TWO_WORKERS


def test_two_servers_against_one(cluster, figure, real, runs):
    steps = 4000 if real else 100
    speeds = {1: [], 2: []}
    for _ in range(runs):
        for servers, found in speeds.items():
            words = [*TWO_WORKERS, "--updates", "sync", "--ps", servers, PROGRAMS / "train.py", "--model", "line", "--steps", steps]
            run = cluster(*words).end()
            assert run.status["global_step"] == steps
            found.append(run.steps_per_s("worker:0"))
    one = figure("sync line, 1 server", speeds[1], "steps/s", result=steps)
    figure("sync line, 2 servers", speeds[2], "steps/s", versus={"1 server, no decision to share": one.median}, result=steps)
