"""The price of TLS with certificates at both ends, beside plaintext: one worker and one server over gRPC.

Milliseconds of one exchange: 32 MB each way, and 4 bytes each way.
"""

import pytest
from benchmarks.cluster_run import PROGRAMS

GRPC = ("--workers", 1, "--ps", 1, "--no-evaluator", "--set", "training.chief_trains=false")
GRPC += ("--set", "training.transport=grpc")
TLS = ("--set", "security.tls=required")


@pytest.mark.parametrize(
    ("name", "megabytes", "steps", "promised"),
    [("32 MB over mTLS", 32, 50, "<= 1.5"), ("4 bytes over mTLS", 0, 5000, "<= 1.1")],
)
def test_an_exchange_with_certificates(cluster, beside, real, runs, name, megabytes, steps, promised):
    if not real:
        pytest.skip(
            "its program is that of test_exchange_speed.py, and tests/security trains with TLS: --real"
        )
    words = [PROGRAMS / "train.py", "--model", "bytes", "--megabytes", megabytes, "--steps", steps]
    found = {"TLS": [], "plaintext": []}
    sums = set()
    for number in range(runs):
        ways = [("TLS", TLS), ("plaintext", ())]
        for way, options in ways if number % 2 else reversed(ways):
            run = cluster(*GRPC, *options, *words).end()
            found[way].append(run.said("worker:0", "exchange_ms"))
            sums.add(run.said("chief:0", "sum"))
    assert len(sums) == 1, "what was computed depends on the encryption"
    plaintext = {"plaintext": found["plaintext"]}
    beside(name, found["TLS"], "ms", plaintext, {"plaintext": promised}, result=[megabytes])
