"""Steps that begin before their values are there, beside steps that wait for all of them: 32 MB in 8 layers, over gRPC.

On one host, where workers and servers share the cores; and where the kernel can shape links, in a network namespace of our own (by
root, with tc), with servers that have each a link of so many bits a second either way. Milliseconds of a step, both kinds by turns
within one run: the machine's moods are longer than the difference.
"""

import shutil
import subprocess

import pytest
from benchmarks.cluster_run import PROGRAMS, TWO_WORKERS

LINK = PROGRAMS / "shaped_link.sh"
SHAPED = ("--set", "cluster.ps=[127.0.0.2:7301,127.0.0.3:7302]", "--set", "training.transport=grpc")
PLAIN = ("--set", "training.transport=grpc")


def can_shape():
    return (
        shutil.which("tc") is not None
        and not subprocess.run(["unshare", "-n", LINK, "1gbit", "true"], capture_output=True).returncode
    )


@pytest.mark.parametrize(("link", "batch", "steps"), [(None, 64, 400), ("10gbit", 64, 400), ("1gbit", 512, 120)])
@pytest.mark.parametrize("updates", ["async", "sync"])
def test_late_values(cluster, beside, real, runs, updates, link, batch, steps):
    if link and not (real and can_shape()):
        pytest.skip("with --real, by root, with tc and network namespaces")
    words = ["--batch", batch, "--steps", steps] if real else ["--batch", 1, "--steps", 40, "--layers", 3, "--turn-s", 0.2]
    early, whole = [], []
    for _ in range(runs):
        through = ["unshare", "-n", LINK, link] if link else []
        settings = [*(SHAPED if link else PLAIN), "--set", f"training.updates={updates}"]
        run = cluster(*TWO_WORKERS, *settings, PROGRAMS / "overlap.py", *words, through=through).end()
        assert run.status["global_step"] == int(words[3])
        if real:
            early.append(run.said("worker:0", "early_ms"))
            whole.append(run.said("worker:0", "whole_ms"))
    if real:
        beside(f"late values, {updates}, {link or 'one host'}", early, "ms", {"waiting for all": whole}, {}, result=words)
