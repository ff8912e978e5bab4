"""kill -9 of the tuner of a study, or of all that it has started, at moments drawn from a seed.

After the last resume every trial that was asked has ended once, those that were killed under way have gone on
from their checkpoints, and no process is left. DTRAIN_CHAOS=N runs N seeds, DTRAIN_CHAOS=FROM:TO those.
"""

import contextlib
import json
import os
import signal
from collections import Counter
from random import Random

import pytest
from chaos.seeds import seeds
from launching import wait_until
from row_by_row import NIGHT, by_night

TRIALS = 5
KILLS_MAX = 5 if NIGHT else 3
STUDY = f"""\
name: search
metric: {{accuracy: maximize}}
parameters: {{x: {{min: 0, max: 1}}}}
max_trial_count: {TRIALS}
parallel_trial_count: 2
resources: {{cores: 0.5}}
pruner: {{successive_halving: {{min_resource: 8, reduction_factor: 2}}}}
trial:
  cluster: {{chief: 1}}
  training: {{strategy: single}}
  checkpoint: {{every_steps: 4}}
"""
PROGRAM = """
import argparse
import time
import numpy as np
import dtrain as dt

parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
x = parser.parse_args().x
inputs = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
targets = (inputs.sum(axis=1) > 0).astype("int64")


class Work(dt.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)


with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Dense(2)])
    model.compile(dt.optimizers.SGD(x), "sparse_categorical_crossentropy", metrics=["accuracy"])
data = {"validation_data": (inputs, targets)} if x > 0.2 else {}
model.fit(inputs, targets, batch_size=16, epochs=6, verbose=0, callbacks=[Work()], **data)
"""
"""A trial with a small x reports no accuracy, and so fails."""


@pytest.mark.parametrize("seed", seeds(3, *by_night(8)))
def test_whenever_the_tuner_dies_no_trial_is_lost_doubled_or_left_running(launcher, seed):
    chance = Random(seed)
    (launcher.folder / "study.yaml").write_text(STUDY + f"sampler: {{random: {{seed: {seed}}}}}\n")
    (launcher.folder / "program.py").write_text(PROGRAM)
    journal = launcher.folder / "runs" / "studies" / "search" / "events.jsonl"

    def lines():
        return journal.read_bytes().splitlines() if journal.exists() else []

    def wait_for_lines(tuner, count):
        wait_until(lambda: len(lines()) >= count or tuner.process.poll() is not None, f"line {count}")

    words, kills = ["study.yaml", "program.py"], 0
    while True:
        tuner, before = launcher.dtrain("tune", *words), len(lines())
        if kills == KILLS_MAX:
            break
        wait_for_lines(tuner, before + chance.randint(1, 9))
        victims = tuner.pids() if chance.random() < 0.5 else []
        print(f"seed {seed}: kill {kills} at line {len(lines())}, of {len(victims) + 1} processes")
        tuner.send(signal.SIGKILL)
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        tuner.end()
        tuner.wait_gone()
        kills += 1
        words = ["--resume", "search"]
    assert tuner.end() in (0, 1), tuner.err  # 1: no trial is complete
    tuner.wait_gone()
    events = [json.loads(line) for line in lines()]
    ends = Counter(event["trial"] for event in events if event["event"] == "ended")
    assert ends == Counter(range(TRIALS)), tuner.err
    asked = [event["trial"] for event in events if event["event"] == "asked"]
    assert asked == list(range(TRIALS))
    status = launcher.dtrain("tune", "status", "search", "--json")
    status.end()
    counts = json.loads(status.out)["counts"]
    assert counts["complete"] + counts["pruned"] + counts["failed"] == TRIALS
    assert counts["asked"] == counts["running"] == 0
    runs = journal.parent / "trials"
    assert sorted(path.name for path in runs.iterdir()) == [f"search-{n:04d}" for n in range(TRIALS)]
    for number in range(TRIALS):
        steps = [
            event["step"] for event in events if event["event"] == "reported" and event["trial"] == number
        ]
        assert len(set(steps)) <= 6, "steps of a run from its checkpoints, or from the first"
