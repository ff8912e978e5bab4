"""32 MB pushed and pulled each step by one worker, on one host, from 1, 2 and 4 servers: how far their processes share the work.

Milliseconds of one exchange: the worker waits, so the servers have all cores. On a machine of 2 cores two of them work at a time.
"""

from benchmarks.cluster_run import PROGRAMS


def test_exchange_by_servers(cluster, beside, real, runs):
    megabytes, steps, counts = (32, 200, (1, 2, 4)) if real else (8, 4, (1, 2))
    found = {servers: [] for servers in counts}
    for _ in range(runs):
        for servers, milliseconds in found.items():
            words = ["--no-evaluator", "--workers", 1, "--ps", servers, "--set", "training.chief_trains=false"]
            run = cluster(*words, PROGRAMS / "train.py", "--model", "bytes", "--megabytes", megabytes, "--steps", steps).end()
            milliseconds.append(run.said("worker:0", "exchange_ms"))
            learned = run.said("chief:0", "sum")
    one = {"1 server": found[1]}
    for servers in counts[1:]:
        beside(f"32 MB, {servers} servers", found[servers], "ms", one, {}, result=[megabytes, steps, round(learned, -2)])
    assert min(min(each) for each in found.values()) > 0
