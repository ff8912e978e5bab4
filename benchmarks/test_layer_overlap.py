"""Steps that begin before their values are all there, and whose gradients leave layer by layer: 32 MB in 8
layers, over gRPC.

On one host, where workers and servers share the cores; and where the kernel can shape links, in a network
namespace of our own (by root, with tc), with servers that have each a link of so many bits a second either
way. Milliseconds of a step, each kind by turns within one run: the machine's moods are longer than the
difference.
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


@pytest.mark.parametrize(
    ("link", "batch", "steps"), [(None, 64, 400), ("10gbit", 64, 400), ("1gbit", 512, 120)]
)
@pytest.mark.parametrize("updates", ["async", "sync"])
def test_late_values_and_early_gradients(cluster, beside, real, runs, updates, link, batch, steps):
    if link and not (real and can_shape()):
        pytest.skip("with --real, by root, with tc and network namespaces")
    if not real and updates == "async":
        pytest.skip("a short run is that of sync: --real")
    words = (
        ["--batch", batch, "--steps", steps]
        if real
        else ["--batch", 1, "--steps", 8, "--layers", 2, "--turn-s", 0.02]
    )
    found = {"late": [], "both": [], "neither": []} | ({"early": []} if updates == "sync" else {})
    for _ in range(runs):
        through = ["unshare", "-n", LINK, link] if link else []
        settings = [*(SHAPED if link else PLAIN), "--set", f"training.updates={updates}"]
        settings += ["--set", "training.overlap=on"]
        run = cluster(*TWO_WORKERS, *settings, PROGRAMS / "overlap.py", *words, through=through).end()
        assert run.status["global_step"] == int(words[3])
        if real:
            for way, milliseconds in found.items():
                milliseconds.append(run.said("worker:0", f"{way}_ms"))
    neither = {"neither": found.pop("neither")}
    for way, milliseconds in found.items() if real else ():
        beside(f"{way}, {updates}, {link or 'one host'}", milliseconds, "ms", neither, {}, result=words)
