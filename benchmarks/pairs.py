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

from benchmarks.cluster_run import BOTH_WORKERS, PROGRAMS, TWO_WORKERS, ClusterRun

SYNC = ("--updates", "sync")
ASYNC = ("--updates", "async")
GRPC = ("--set", "training.transport=grpc")
TRAIN, STRATEGIES = "train.py", "strategies.py"
THREADS = ("--strategy", "mirrored", "--set", "training.replicas=2", "--no-evaluator")
PROCESSES = ("--strategy", "multi_worker_mirrored", "--workers", 1, "--no-evaluator")
WITHOUT_SERVERS = {"single": ("--strategy", "single"), "mirrored": THREADS, "mwm": PROCESSES}
SMALLEST = ("--model", "line", "--batch", 1, "--epochs", 4, "--steps")
MLP = ("--model", "mlp", "--epochs", 4, "--steps", 100)
WIDE = ("--model", "wide", "--batch", 1, "--epochs", 4, "--steps", 20)
CASES: dict[str, tuple[str, Sequence[object], Sequence[object]]] = {
    "line async": (TRAIN, ASYNC, ["--model", "line", "--steps", 20_000]),
    "line sync": (TRAIN, SYNC, ["--model", "line", "--steps", 10_000]),
    "line grpc": (TRAIN, (*ASYNC, *GRPC), ["--model", "line", "--steps", 4_000]),
    "mlp async": (TRAIN, ASYNC, ["--model", "mlp", "--steps", 1_500]),
    "mlp sync": (TRAIN, SYNC, ["--model", "mlp", "--steps", 1_000]),
    "32 MB": (TRAIN, ASYNC, ["--model", "bytes", "--megabytes", 32, "--steps", 200, "--every", 2]),
    "32 MB sync": (TRAIN, SYNC, ["--model", "bytes", "--megabytes", 32, "--steps", 100, "--every", 2]),
    "128 MB": (TRAIN, ASYNC, ["--model", "bytes", "--megabytes", 128, "--steps", 60, "--every", 2]),
    **{f"line {name}": (STRATEGIES, words, (*SMALLEST, 2_000)) for name, words in WITHOUT_SERVERS.items()},
    **{f"mlp {name}": (STRATEGIES, words, MLP) for name, words in WITHOUT_SERVERS.items()},
    **{f"32 MB {name}": (STRATEGIES, words, WIDE) for name, words in WITHOUT_SERVERS.items()},
}
"""By name: a program, options of `dtrain launch`, and arguments of the program. Two workers train with two servers;
of strategies without servers two replicas train, or one.
"""


def measured(tree: Path, case: str, folder: Path) -> tuple[float, float]:
    """Run a case once; return the steps or examples per second, and the CPU seconds of all processes."""
    program, options, arguments = CASES[case]
    options = (*TWO_WORKERS, *options) if program == TRAIN else options
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = ClusterRun(folder / "run", [*options, PROGRAMS / program, *arguments], tree=tree).end()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if program == STRATEGIES:
        return run.said("chief:0", "examples_per_s"), cpu_s
    return run.steps_per_s(*BOTH_WORKERS), cpu_s


def compare(case: str, before: Path, after: Path, runs: int) -> tuple[str, float]:
    """Return one line, by how much `after` is faster than `before` in a case, and the median of the ratios."""
    speeds: list[float] = []
    costs: list[float] = []
    for number in range(runs):
        seen = {}
        for place in (0, 1) if number % 2 == 0 else (1, 0):
            with tempfile.TemporaryDirectory() as folder:
                seen[place] = measured((before, after)[place], case, Path(folder))
        speeds.append(seen[1][0] / seen[0][0])
        costs.append(seen[1][1] / seen[0][1])
    said = (
        f"{case:14} {statistics.median(speeds):.3f} x ({min(speeds):.3f} to {max(speeds):.3f}), "
        f"CPU {statistics.median(costs):.3f} x, n={runs}"
    )
    return said, statistics.median(speeds)


def compiled(parser: argparse.ArgumentParser, trees: Sequence[Path]) -> list[Path]:
    """Compile checkouts, and return their full paths. A folder without the project is a usage error."""
    for tree in trees:
        for package in ("runtime/dtrain", "cli/dtrain_cli"):
            if not (tree / package).is_dir():
                parser.error(f"{tree.resolve()} is no checkout of dtrain: it has no {package}")
            compileall.compile_dir(tree / package, quiet=1)
    return [tree.resolve() for tree in trees]


def main(words: Sequence[str]) -> int:
    """Compare two checkouts in every case that is asked for; return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description="Compare two checkouts.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--runs", type=int, default=7, help="pairs of each case (default 7)")
    parser.add_argument("--case", action="append", choices=CASES, help="only these cases")
    arguments = parser.parse_args(words)
    trees = compiled(parser, [arguments.before, arguments.after])
    medians = []
    for case in arguments.case or CASES:
        said, median = compare(case, *trees, arguments.runs)
        medians.append(median)
        print(said, flush=True)
    print(f"median of all {statistics.median(medians):.3f} x, the least {min(medians):.3f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
