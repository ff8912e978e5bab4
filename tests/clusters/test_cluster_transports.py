"""The same training on every transport, with variables of 2.8 MB, so that messages are long and take shared
memory.
"""

import re

import pytest
from clusters.watching import DETERMINISTIC, IN_SHARDS, report_of, succeeded, tasks_of

PROGRAM = """
import hashlib
import os
import sys
import time
import numpy as np
import dtrain as dt

GATE = sys.argv[2:]
seen = 0


class Gated(dt.Sequential):
    '''After so many steps of its own a replica waits for a file.'''

    def train_step(self, step):
        global seen
        seen += 1
        while seen > 30 and not os.path.exists(GATE[0]):
            time.sleep(0.01)
        return super().train_step(step)


rng = np.random.default_rng(0)
x, y = rng.random((640, 200), np.float32), rng.integers(0, 10, 640)
strategy = dt.get_strategy()
with strategy.scope():
    layers = [dt.layers.Dense(1000, "relu", input_shape=(200,)), dt.layers.Dense(500, "relu"), dt.layers.Dense(10)]
    model = (Gated if GATE else dt.Sequential)(layers)
    loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=dt.optimizers.SGD(0.05, momentum=0.9), loss=loss)
model.fit(x, y, batch_size=8, epochs=1, steps_per_epoch=int(sys.argv[1]), verbose=0)
if strategy.is_leader:
    print("weights", hashlib.sha256(b"".join(value.tobytes() for value in model.get_weights())).hexdigest())
"""


@pytest.fixture
def program(launcher):
    (launcher.folder / "wide.py").write_text(PROGRAM)
    return "wide.py"


def test_the_same_results_bit_for_bit(launcher, program):
    found = set()
    for words in (
        ("training.transport=grpc",),
        ("training.transport=local",),
        ("training.transport=local", "training.partitioner={fixed_shards: 2}"),
        ("simulate.network=[{between: [worker:0, ps:0], latency_ms: 1}]",),
    ):
        launch = launcher.start(
            *DETERMINISTIC, *(part for word in words for part in ("--set", word)), program, "6"
        )
        succeeded(launch)
        found.add(re.search(r"^weights (\w+)$", launch.log("chief:0"), re.M)[1])
    assert len(found) == 1


def test_shared_memory_outlives_whoever_is_killed(launcher, program):
    kills = "simulate.kill=[{task: worker:0, at_step: 10}, {task: ps:0, at_step: 40}]"
    words = (
        "--workers",
        "2",
        "--ps",
        "2",
        "--no-evaluator",
        "--set",
        "training.transport=local",
        "--set",
        kills,
    )
    launch = launcher.start(*words, "--set", "checkpoint.every_steps=15", *IN_SHARDS, program, "160", "go")
    for task in ("worker:0", "ps:0"):
        launch.wait_for(
            lambda task=task: launch.task(task).get("restarts"), f"{task} is killed and started again"
        )
    (launcher.folder / "go").touch()
    succeeded(launch)
    report = report_of(launch.run_dir)
    assert report["global_step"] == 160
    restarts = {name: task["restarts"] for name, task in tasks_of(report).items() if task["restarts"]}
    assert restarts == {"worker:0": 1, "ps:0": 1}
    assert {task["state"] for task in tasks_of(report).values()} == {"succeeded"}, (
        "no worker is lost with ps:0"
    )
