"""CPU of a step of many replicas without servers, on one host and over four, of one checkout or of several in turn:
`python -m benchmarks.many_replicas TREE... [--replicas 48] [--runs 3]`.

The step is the smallest one, so that what is measured is what the replicas say to each other: the sum over all of them, by
the clock of each process, without the launcher and the start. Hosts are network namespaces, which need root.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

import pytest
from benchmarks.cluster_run import PROGRAMS, ClusterRun, import_path
from benchmarks.pairs import compiled
from security.three_hosts import SwitchedHosts

HOSTS, FIRST_PORT = 4, 4100
SAID = re.compile(r"^step_cpu_ms ([.\de+-]+)$", re.M)


def program(steps: int) -> list[str]:
    """Train one model. Every replica runs this program."""
    every = str(max(1, steps // 10))
    return [str(PROGRAMS / "train.py"), "--model", "line", "--steps", str(steps), "--every", every]


def on_one_host(tree: Path, replicas: int, steps: int, folder: Path) -> float:
    """Return the CPU milliseconds of a step under `dtrain launch`."""
    options = ("--strategy", "multi_worker_mirrored", "--workers", replicas - 1, "--no-evaluator")
    run = ClusterRun(folder / "run", [*options, "--start-timeout", 300, *program(steps)], tree=tree).end()
    return sum(run.said(task, "step_cpu_ms") for task in names(replicas))


def over_hosts(tree: Path, replicas: int, steps: int, folder: Path) -> float:
    """Return the CPU milliseconds of a step of tasks that are started by hand on four hosts."""
    hosts, spec = SwitchedHosts(HOSTS), folder / "spec.json"
    try:
        at = [f"{hosts.ip(rank * HOSTS // replicas)}:{FIRST_PORT + rank}" for rank in range(replicas)]
        cluster = {"chief": at[:1], "worker": at[1:]}
        said = {"training": {"strategy": "multi_worker_mirrored"}, "wait": {"start_s": 300}}
        spec.write_text(json.dumps({"cluster": cluster, **said}))
        running = []
        for rank, task in enumerate(names(replicas)):
            role, _, index = task.partition(":")
            command = [*hosts.on(rank * HOSTS // replicas), sys.executable, "-m", "dtrain_cli.main", role]
            command += ["--spec", str(spec), "--index", index, "--insecure", *program(steps)]
            environment = {**os.environ, "DTRAIN_RUNS_DIR": str(folder / task), **import_path(tree)}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            running.append(subprocess.Popen(command, cwd=folder, env=environment, **pipes))
        ends = [process.communicate() for process in running]
    finally:
        hosts.close()
    failed = [err for process, (_, err) in zip(running, ends, strict=True) if process.returncode]
    assert not failed, failed[0]
    return sum(float(SAID.search(out)[1]) for out, _ in ends)


def names(replicas: int) -> list[str]:
    """Return the tasks in the order of their ranks."""
    return ["chief:0", *(f"worker:{index}" for index in range(replicas - 1))]


def main(words: Sequence[str]) -> int:
    """Print a line for each place: the median of each checkout, and the ratio to the first one, pair by pair."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_replicas", description=__doc__)
    parser.add_argument("tree", type=Path, nargs="+")
    parser.add_argument("--replicas", type=int, default=48)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args(words)
    trees = compiled(parser, args.tree)
    for name, measure in (("one host", on_one_host), (f"{HOSTS} hosts", over_hosts)):
        found: list[list[float]] = [[] for _ in trees]
        try:
            for number in range(args.runs):
                for place in sorted(range(len(trees)), reverse=number % 2 == 1):
                    with tempfile.TemporaryDirectory() as folder:
                        found[place].append(measure(trees[place], args.replicas, args.steps, Path(folder)))
        except pytest.skip.Exception as skipped:
            print(f"{name}: {skipped}")
            continue
        medians = ", ".join(f"{statistics.median(each):.1f} ms" for each in found)
        ratios = [
            statistics.median(one / first for one, first in zip(each, found[0], strict=True))
            for each in found[1:]
        ]
        beside = "".join(f", {ratio:.3f} x" for ratio in ratios)
        print(
            f"CPU of a step, {args.replicas} replicas, {name}: {medians}{beside}, n={args.runs}", flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
