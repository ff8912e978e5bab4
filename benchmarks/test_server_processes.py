"""32 MB pushed and pulled each step by one worker, on one host, from 1, 2 and 4 servers: how far their
processes share the work.

Milliseconds of one exchange: the worker waits, so the servers have all cores. Beside one server, and beside
    as many bare processes
that make the same passes over memory: what the machine's cores, caches and scheduler allow. Over gRPC one
    server is enough to keep
two cores busy, with both ends of the connection.
"""

import sys

import pytest
from benchmarks.cluster_run import PROGRAMS

ALONE = ("--no-evaluator", "--workers", 1, "--set", "training.chief_trains=false")
BARE = (
    "--workers",
    1,
    "--ps",
    0,
    "--set",
    "cluster.chief=0",
    "--",
    sys.executable,
    PROGRAMS / "bare_servers.py",
)


@pytest.mark.parametrize(("optimizer", "transport"), [("sgd", "local"), ("adam", "local"), ("sgd", "grpc")])
def test_exchange_by_servers(cluster, beside, real, runs, optimizer, transport):
    if not real and (optimizer, transport) != ("sgd", "local"):
        pytest.skip("a small exchange is that of SGD on one host: --real")
    megabytes, steps, counts = (32, 100, (1, 2, 4)) if real else (8, 2, (2,))
    size = ["--megabytes", megabytes, "--steps", steps, "--optimizer", optimizer]
    found, bare = ({servers: [] for servers in counts} for _ in range(2))
    for _ in range(runs):
        for servers in counts:
            words = [
                *ALONE,
                "--ps",
                servers,
                "--set",
                f"training.transport={transport}",
                PROGRAMS / "train.py",
                "--model",
                "bytes",
            ]
            run = cluster(*words, *size).end()
            found[servers].append(run.said("worker:0", "exchange_ms"))
            learned = run.said("chief:0", "sum")
            if transport == "local":
                bare[servers].append(
                    cluster(*BARE, "--servers", servers, *size).end().said("worker:0", "exchange_ms")
                )
    for servers in counts:
        others = {"bare processes": bare[servers]} | ({"1 server": found[1]} if servers > min(counts) else {})
        facts = [megabytes, steps, optimizer, round(learned, -2)]
        beside(
            f"32 MB, {optimizer}, {transport}, {servers} servers",
            found[servers],
            "ms",
            others,
            {},
            result=facts,
        )
    assert min(min(each) for each in found.values()) > 0
