"""Many stories of local steps: `python tests/chaos/local_steps.py N FILE [--from SEED]` tells those of N seeds, two at a time.

A story draws how replicas are merged, H, the servers, who is killed at which rounds, whether the run is stopped and
resumed, and whether a worker joins. Every example has a weight of its own, which says how often it has counted. A line
of JSON a story goes into FILE, and the same command goes on where it was stopped. The exit code is 1 if one is not as promised.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

COUNTED = str(Path(__file__).parents[1] / "clusters" / "counted_examples.py")
DTRAIN = (str(Path(sys.executable).with_name("dtrain")),)
EPOCHS, ROUNDS_EARLY = 5, 6
TOLERANCE = 1e-3
END_S = 120.0
MERGES = {
    "sync": ((), 3),
    "by speed": (("--set", "simulate.slow.worker:0=4"), 3),
    "backups": (("--backup-workers", "1", "--set", "training.on_stale=retry_same_batch"), 2),
    "async": (
        ("--updates", "async", "--set", "training.outer={learning_rate: 3, momentum: 0, delayed: true}"),
        3,
    ),
}


def words_of(random, merge):
    """The options of a story's launch, and the deaths in it."""
    servers, steps = random.randint(1, 2), random.randint(2, 7)
    tasks = ["chief:0", "worker:0", "worker:1", *(f"ps:{index}" for index in range(servers))]
    deaths = [
        (random.choice(tasks), random.randint(1, ROUNDS_EARLY)) for _ in range(random.choice((0, 1, 1, 2, 3)))
    ]
    kills = ", ".join(f"{{task: {task}, at_step: {step}}}" for task, step in deaths)
    words = [
        "--workers",
        "2",
        "--ps",
        str(servers),
        "--no-evaluator",
        "--local-steps",
        f"by_speed:{steps}" if merge == "by speed" else str(steps),
        *MERGES[merge][0],
    ]
    for role in ("chief", "worker", "ps"):
        words += ["--set", f"restart.{role}={{policy: on_failure, max: 9, backoff_s: 0.1}}"]
    return [*words, "--set", f"simulate.kill=[{kills}]", "--set", "checkpoint.every_s=0.3"], deaths


def told(seed):
    """Tell the story of a seed; returns its line."""
    random = Random(seed)
    merge = random.choice(sorted(MERGES))
    words, deaths = words_of(random, merge)
    stops_s = random.uniform(0.8, 2.0) if random.random() < 0.3 else None
    joins = random.random() < 0.25
    program = (COUNTED, "--epochs", str(EPOCHS), "--pace_s", "0.04")
    with tempfile.TemporaryDirectory(prefix="dtrain-local-") as folder:
        run = str(Path(folder) / "run")

        def launch(*more):
            return subprocess.Popen(
                (*DTRAIN, "launch", *words, "--run-dir", run, *more, *program),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=folder,
            )

        process, joined = launch(), None
        if joins:
            time.sleep(0.7)
            joined = subprocess.Popen(
                (*DTRAIN, "worker", "--join", run, *program),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
            )
        if stops_s is not None:
            time.sleep(stops_s)
            subprocess.run((*DTRAIN, "stop", run), capture_output=True, cwd=folder, check=False)
            said, _ = process.communicate(timeout=END_S)
            if process.returncode == 143:
                process = launch("--resume")
        out, _ = (
            process.communicate(timeout=END_S)
            if process.stdout and not process.stdout.closed
            else (said, None)
        )
        if joined is not None:
            joined.wait(END_S)
    found = re.findall(r"counts ([\d. ]+)", out)
    counts = [float(count) for count in found[-1].split()] if found else []
    good = process.returncode == 0 and counts and all(abs(count - EPOCHS) < TOLERANCE for count in counts)
    line = {
        "seed": seed,
        "merge": merge,
        "deaths": deaths,
        "stopped": stops_s,
        "joins": joins,
        "counts": counts,
    }
    return {**line, "good": bool(good), "code": process.returncode, "out": "" if good else out[-4000:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, metavar="N")
    parser.add_argument("file", type=Path)
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED")
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.file.read_text().splitlines()] if args.file.exists() else []
    known = {line["seed"]: line for line in lines}
    seeds = range(args.first, args.first + args.count)
    with ThreadPoolExecutor(2) as threads:
        for line in threads.map(told, [seed for seed in seeds if seed not in known]):
            known[line["seed"]] = line
            with args.file.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(
                line["seed"], line["merge"], "as promised" if line["good"] else "NOT AS PROMISED", flush=True
            )
    bad = [seed for seed in seeds if not known[seed]["good"]]
    print(f"{len(seeds) - len(bad)} of {len(seeds)} as promised", *(["; not:", *bad] if bad else []))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
