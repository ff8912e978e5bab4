"""Compare the speed of two checkouts: `python -m benchmarks.pairs BEFORE AFTER`.

Each run of the one stands beside a run of the other, and they take turns at going first, so that a busy machine
slows both. The figure is the median of the ratios; read the range too. The CPU time of all processes is compared
as well: it says the same with less noise, where nothing waits.

Both trees are compiled first. A tree without cached bytecode is compiled in the process from which all tasks are
forked, and its steps are slower by 5 to 15 % for as long as the run lasts.
"""

import argparse
import compileall
import resource
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cluster_run import PROGRAMS, TWO_WORKERS, ClusterRun

SYNC = ("--updates", "sync")
ASYNC = ("--updates", "async")
GRPC = ("--set", "training.transport=grpc")
CASES: dict[str, tuple[Sequence[str], Sequence[object]]] = {
    "line async": (ASYNC, ["--model", "line", "--steps", 20_000]),
    "line sync": (SYNC, ["--model", "line", "--steps", 10_000]),
    "line grpc": ((*ASYNC, *GRPC), ["--model", "line", "--steps", 4_000]),
    "mlp async": (ASYNC, ["--model", "mlp", "--steps", 1_500]),
    "mlp sync": (SYNC, ["--model", "mlp", "--steps", 1_000]),
    "32 MB": (ASYNC, ["--model", "bytes", "--megabytes", 32, "--steps", 200, "--every", 2]),
    "128 MB": (ASYNC, ["--model", "bytes", "--megabytes", 128, "--steps", 60, "--every", 2]),
}
"""By name: options of `dtrain launch`, and arguments of programs/train.py."""


def measured(tree: Path, case: str, folder: Path) -> tuple[float, float]:
    """Run a case once; return the steps per second of both workers, and the CPU seconds of all processes."""
    options, arguments = CASES[case]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = ClusterRun(
        folder / "run", [*TWO_WORKERS, *options, PROGRAMS / "train.py", *arguments], tree=tree
    ).end()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return run.steps_per_s("worker:0", "worker:1"), cpu_s


def compare(case: str, before: Path, after: Path, runs: int) -> str:
    """Return one line: by how much `after` is faster than `before` in a case."""
    speeds: list[float] = []
    costs: list[float] = []
    for number in range(runs):
        trees = (before, after) if number % 2 == 0 else (after, before)
        seen: dict[Path, tuple[float, float]] = {}
        for tree in trees:
            with tempfile.TemporaryDirectory() as folder:
                seen[tree] = measured(tree, case, Path(folder))
        speeds.append(seen[after][0] / seen[before][0])
        costs.append(seen[after][1] / seen[before][1])
    return (
        f"{case:12} {statistics.median(speeds):.3f} x ({min(speeds):.3f} to {max(speeds):.3f}), "
        f"CPU {statistics.median(costs):.3f} x, n={runs}"
    )


def main(words: Sequence[str]) -> int:
    """Compare two checkouts in every case that is asked for; return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description="Compare two checkouts.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--runs", type=int, default=5, help="pairs of each case (default 5)")
    parser.add_argument("--case", action="append", choices=CASES, help="only these cases")
    arguments = parser.parse_args(words)
    trees = [arguments.before.resolve(), arguments.after.resolve()]
    for tree in trees:
        for package in ("runtime/dtrain", "cli/dtrain_cli"):
            if not (tree / package).is_dir():
                parser.error(f"{tree} is no checkout of dtrain: it has no {package}")
            compileall.compile_dir(tree / package, quiet=1)
    for case in arguments.case or CASES:
        print(compare(case, *trees, arguments.runs), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
