"""Seconds and bytes of local steps beside a push for every step: `python tests/chaos/measured_rounds.py FILE [--runs N]`. Not a test
itself.

Eight replicas in real processes, two of which have a core, compute by sleeping for 20 ms, and one of them five times as
long; together they make `--examples` count. With deaths, a replica is killed for 5% of all rounds of replicas, and at the same shares
of the way where a push is made for every step. The seconds are those of `fit`. What travels is counted over 40 rounds of 20 steps and
over as many steps. A line of JSON a run goes into FILE; the same command goes on where it was stopped, and prints medians, and medians
of the ratios of runs that were made one after the other.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

DTRAIN = str(Path(sys.executable).with_name("dtrain"))
REPLICAS, BACKUPS, OF_ONE, H = 8, 2, 32, 20
PAUSE_S, SLOW = 0.02, 5
DYING = 0.05
"""The share of the rounds of replicas in which one is killed."""
END_S = 300.0
QUORUM = ("--local-steps", str(H), "--backup-workers", str(BACKUPS))
RUNS = {
    "sync": (("--updates", "sync"), REPLICAS, 1),
    "quorum 6": ((*QUORUM, "--set", "training.on_stale=retry_same_batch"), REPLICAS - BACKUPS, H),
    "by speed": (("--local-steps", f"by_speed:{H}"), REPLICAS, H),
}
"""The options, how many parts a step has, and its local steps."""


def launched(words, *program):
    """Launch this file; returns what it printed and the report of its end."""
    with tempfile.TemporaryDirectory() as folder:
        command = (
            DTRAIN,
            "launch",
            "--ps",
            "1",
            "--no-evaluator",
            "--json",
            "--run-dir",
            f"{folder}/run",
            *words,
        )
        done = subprocess.run(
            (*command, __file__, "program", *map(str, program)),
            capture_output=True,
            text=True,
            timeout=END_S,
            check=False,
            cwd=folder,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, json.loads(done.stdout.splitlines()[-1])


def seconds_of(run, examples, deaths):
    words, parts, steps = RUNS[run]
    batches = examples // (OF_ONE * parts)
    rounds = -(-batches // steps)
    kills = [
        f"{{task: worker:{1 + number % (REPLICAS - 2)}, at_step: {max(1, round(rounds * (number + 0.5) / deaths))}}}"
        for number in range(deaths)
    ]
    restart = "restart.worker={policy: on_failure, max: 99, backoff_s: 0.1}"
    more = ["--workers", str(REPLICAS - 1), "--set", restart]
    more += ["--set", f"simulate.kill=[{', '.join(kills)}]"]
    said, _ = launched((*more, *words), OF_ONE * parts, batches, PAUSE_S)
    return float(re.findall(r"seconds ([\d.]+)", said)[-1])


def bytes_of(words, batches):
    _, report = launched(("--workers", "1", *words), OF_ONE * 2, batches, 0.0)
    [worker] = [task for task in report["tasks"] if task["task"] == "worker:0"]
    return worker["bytes_sent"], worker["bytes_received"]


def program(batch, batches, pause_s):
    """What every task runs."""
    import numpy as np

    import dtrain as dt

    slow = os.environ.get("DTRAIN_TASK") == "worker:0"

    class Slow(dt.Sequential):
        def train_step(self, step):
            time.sleep(pause_s * (SLOW if slow else 1))
            return super().train_step(step)

    strategy = dt.get_strategy()
    with strategy.scope():
        layers = [dt.layers.Dense(128, activation="relu", input_shape=(784,)), dt.layers.Dense(10)]
        model = Slow(layers)
        loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(dt.optimizers.SGD(0.01), loss)
    chance = np.random.default_rng(0)
    x, y = chance.normal(size=(batch, 784)).astype(np.float32), chance.integers(0, 10, batch)
    data = dt.data.Dataset.from_tensor_slices((x, y)).batch(batch).repeat()
    begun_s = time.monotonic()
    model.fit(data, epochs=1, steps_per_epoch=batches, verbose=0)
    if strategy.is_leader:
        print("seconds", time.monotonic() - begun_s, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--examples", type=int, default=48_000)
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.file.read_text().splitlines()] if args.file.exists() else []
    dying = round(DYING * REPLICAS * args.examples / (OF_ONE * (REPLICAS - BACKUPS) * H))
    known = {(line["run"], line["deaths"], line["number"]): line["found"] for line in lines}

    def measure(run, deaths, number, found):
        if (run, deaths, number) not in known:
            known[run, deaths, number] = found()
            line = {"run": run, "deaths": deaths, "number": number, "found": known[run, deaths, number]}
            with args.file.open("a") as file:
                file.write(json.dumps({**line, "load": os.getloadavg()[0]}) + "\n")

    kinds = [(run, deaths) for deaths in (0, dying) for run in RUNS]
    for number in range(args.runs):
        for run, deaths in kinds:
            measure(run, deaths, number, partial(seconds_of, run, args.examples, deaths))
    measure("bytes, sync", 0, 0, lambda: bytes_of(("--updates", "sync"), 40 * H))
    measure("bytes, rounds", 0, 0, lambda: bytes_of(("--local-steps", str(H)), 40 * H))
    for run, deaths in kinds:
        every = [known[run, deaths, number] for number in range(args.runs)]
        ratios = [known[run, deaths, number] / known["sync", deaths, number] for number in range(args.runs)]
        print(
            f"{run:10} {deaths} deaths {statistics.median(every):7.2f} s, {statistics.median(ratios):.2f} x sync"
        )
    sent, received = (known["bytes, rounds", 0, 0][way] / known["bytes, sync", 0, 0][way] for way in range(2))
    print(f"bytes of a replica in 40 rounds of {H}: sent {sent:.4f}, received {received:.4f} of sync's")


if __name__ == "__main__":
    if sys.argv[1:2] == ["program"]:
        program(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    else:
        main()
