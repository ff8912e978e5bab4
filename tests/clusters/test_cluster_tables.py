"""Embedding tables on parameter servers: the numbers of one process, learnt by workers that never hold a
table.
"""

import os
import re
import signal
from hashlib import sha256

import numpy as np
from clusters.watching import report_of, saved_steps, step_of, succeeded, tasks_of
from conformance.one_process import train_as_one

PROGRAM = """
import hashlib
import sys

import numpy as np

import dtrain as dt

ROWS = 30_000
ids = np.random.default_rng(0).integers(0, ROWS, (4096, 4))
x, y = ids, np.sin(ids * 0.37).sum(axis=1, keepdims=True).astype(np.float32)

class GoBack(dt.callbacks.Callback):
    kept = None

    def on_train_batch_end(self, batch, logs=None):
        if self.kept is None:
            self.kept = self.model.get_weights()
        elif batch >= 10 and self.kept:
            self.model.set_weights(self.kept)
            self.kept = []

strategy = dt.get_strategy()
with strategy.scope():
    model = dt.Sequential([dt.layers.Embedding(ROWS, 16, input_shape=(4,)), dt.layers.Flatten(), dt.layers.Dense(1)])
    model.compile(optimizer=dt.optimizers.Adagrad(0.3), loss="mse")
if not strategy.evaluates:
    before = model.evaluate((x, y), batch_size=1024)
for _ in range(2):
    model.fit((x, y), batch_size=64, epochs=1, steps_per_epoch=40, shuffle=False, verbose=0, validation_data=(x[:512], y[:512]),
              callbacks=[GoBack()] if sys.argv[1:] else [])
if not strategy.evaluates:
    table = model.arrays["embedding/embeddings"]
    print("table", type(table).__name__, table[ids[0]].shape)
    print("loss", before, model.evaluate((x, y), batch_size=1024))
    print("hash", *[hashlib.sha256(np.ascontiguousarray(value)).hexdigest()[:12] for value in model.get_weights()])
"""
DETERMINISTIC = ("--updates", "sync", "--set", "training.deterministic=true", "--no-evaluator")


def said(text, word):
    return re.findall(rf"{word} (.*)", text)


def test_a_deterministic_table_equals_that_of_one_process_on_any_servers(launcher):
    (launcher.folder / "table.py").write_text(PROGRAM)
    alone = launcher.start("--strategy", "single", "--no-evaluator", "table.py", "go back")
    succeeded(alone)
    assert said(alone.out, "table") == ["ndarray (4, 16)"]
    shards = ("--set", "training.partitioner={fixed_shards: 3}", "--set", "checkpoint.every_steps=15")
    launch = launcher.start("--workers", "0", "--ps", "2", *DETERMINISTIC, *shards, "table.py", "go back")
    succeeded(launch)
    assert said(launch.out, "table") == ["LazyTable (4, 16)"]
    assert said(launch.out, "hash") == said(alone.out, "hash")
    assert said(launch.out, "loss") == said(alone.out, "loss")
    chief = tasks_of(report_of(launch.run_dir))["chief:0"]
    assert chief["bytes_sent"] < 1_500_000, (
        "the table has 1.9 MB, 40 steps moved 40 x 256 rows at most; the rest asked for all rows"
    )


def test_two_workers_and_the_chief_learn_a_table(launcher):
    (launcher.folder / "table.py").write_text(PROGRAM)
    launch = launcher.start("--set", "training.partitioner={fixed_shards: 2}", "table.py")
    succeeded(launch)
    losses = [tuple(map(float, words.split())) for words in said(launch.out, "loss")]
    assert len(losses) == 3
    assert all(after < 0.8 * before for before, after in losses)
    assert len(set(said(launch.out, "hash"))) == 1, "all read the same rows from the servers after training"
    evaluation = report_of(launch.run_dir)["evaluation"]
    assert evaluation["global_step"] == 80
    assert evaluation["loss"] < max(before for before, _ in losses)


SUMMED = """
import hashlib, pathlib, sys, time

import numpy as np

import dtrain as dt

ROWS, STEPS = 6_000, 30
ids = np.random.default_rng(0).integers(0, ROWS, (128 * 32, 4))
x, y = ids, np.sin(ids * 0.37).sum(axis=1, keepdims=True).astype(np.float32)

def made():
    model = dt.Sequential([dt.layers.Embedding(ROWS, 16, input_shape=(4,)), dt.layers.Flatten(), dt.layers.Dense(1)])
    model.compile(optimizer=dt.optimizers.Adagrad(0.3), loss="mse")
    return model

class Wait(dt.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        while batch >= 20 and "wait" in sys.argv and not pathlib.Path("go").exists():
            time.sleep(0.01)
"""
TRAINED = """
strategy = dt.get_strategy()
with strategy.scope():
    model = made()
model.fit((x, y), batch_size=32 * strategy.num_replicas_in_sync, epochs=1, steps_per_epoch=STEPS, shuffle=False, verbose=0,
          callbacks=[Wait()])
print("hash", *[hashlib.sha256(np.ascontiguousarray(value)).hexdigest()[:12] for value in model.get_weights()])
"""


def summed_in_one_process(replicas):
    """What so many replicas make of their parts together."""
    space = {}
    exec(SUMMED, space)
    batches = [
        (space["x"][start : start + 32], space["y"][start : start + 32])
        for start in range(0, len(space["x"]), 32)
    ]
    *_, last = train_as_one(
        space["made"](), [batches[i * replicas : (i + 1) * replicas] for i in range(space["STEPS"])]
    )
    return " ".join(sha256(np.ascontiguousarray(value)).hexdigest()[:12] for value in last)


def test_a_deterministic_table_of_several_replicas_is_what_one_process_computes(launcher):
    """The next test does so on shared memory."""
    (launcher.folder / "table.py").write_text(SUMMED + TRAINED)
    more = ("transport=grpc", "placement=greedy", "partitioner={fixed_shards: 4}")
    sets = [word for each in more for word in ("--set", f"training.{each}")]
    launch = launcher.start("--workers", "2", "--ps", "3", *DETERMINISTIC, *sets, "table.py")
    succeeded(launch)
    assert set(said(launch.out, "hash")) == {summed_in_one_process(3)}


def test_a_table_is_restored_bit_for_bit_after_its_server_s_death_and_in_a_resumed_run(launcher):
    (launcher.folder / "table.py").write_text(SUMMED + TRAINED)
    words = (
        "--run-dir",
        "run",
        "--workers",
        "1",
        "--ps",
        "2",
        *DETERMINISTIC,
        "--set",
        "training.partitioner={fixed_shards: 2}",
    )
    words = (*words, "--set", "checkpoint.every_steps=4", "--set", "restart.ps.backoff_s=0.1")
    first = launcher.start(*words, "table.py", "wait", run_dir=launcher.folder / "run")
    first.wait_for(
        lambda: step_of(first) >= 20 and saved_steps(first.run_dir)[-1] > 0,
        "20 steps, and a checkpoint of some",
    )
    os.kill(first.pid("ps:1"), signal.SIGKILL)
    first.wait_for(lambda: step_of(first, "ps:1", attempt=1) > 0, "the server to be restored")
    first.send(signal.SIGTERM)
    assert first.end() == 143
    assert saved_steps(first.run_dir)[-1] < 30
    second = launcher.start("--resume", *words, "table.py", run_dir=first.run_dir)
    succeeded(second)
    assert set(said(second.out, "hash")) == {summed_in_one_process(2)}
