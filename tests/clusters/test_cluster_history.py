"""`fit` returns the same History in every task, of all contributions that counted, whatever has happened to
the tasks.
"""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from clusters.counted_examples import FAR_ABOVE
from clusters.watching import report_of, saved_steps, step_of, succeeded, tasks_of

COUNTED = str(Path(__file__).parent / "counted_examples.py")
GATED = ("--wait_for", "go", "--after")
SOON = [word for role in ("chief", "worker", "ps") for word in ("--set", f"restart.{role}.backoff_s=0.1")]
SYNC = ("--updates", "sync")
TASKS = ("chief:0", "worker:0", "worker:1", "evaluator:0")

STALE = """
import numpy as np, dtrain as dt
x = np.random.default_rng(0).normal(size=(64, 2)).astype("f4"); y = x.sum(1, keepdims=True) + 3
m = dt.Sequential([dt.layers.Dense(1)]); m.compile(dt.optimizers.SGD(0.01), "mse")
h = m.fit(x, y, epochs=12, steps_per_epoch=2, verbose=0, callbacks=[dt.callbacks.EarlyStopping("loss", patience=1)])
if m.strategy.is_leader: print("losses", *h.history["loss"])
"""
LATER = """
import time
import numpy as np, dtrain as dt

class Waits(dt.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        deadline_s = time.monotonic() + 60
        while epoch == 2 and 4 not in self.model.strategy.evaluations:
            assert time.monotonic() < deadline_s, "the evaluation of step 4 did not come within 60 s"
            time.sleep(0.01)

x = np.linspace(-1, 1, 16, dtype="f4")[:, None]
with dt.get_strategy().scope():
    m = dt.Sequential([dt.layers.Dense(1)]); m.compile(dt.optimizers.SGD(0.1), "mse")
watching = [Waits(), dt.callbacks.CSVLogger("table.csv"), dt.callbacks.TensorBoard("board")]
h = m.fit(x, 3 * x, epochs=3, steps_per_epoch=2, batch_size=8, validation_data=(x, 3 * x), callbacks=watching)
print("val_loss", *h.history["val_loss"])
"""


def rows(first, epochs=3):
    """What the rule says: an example's weight has grown by 1 in every epoch before, and by 1 more when it is
    validated.
    """
    loss = [FAR_ABOVE - first - epoch for epoch in range(epochs)]
    numbers = {
        "loss": loss,
        "accuracy": [0.0] * epochs,
        "val_loss": [each - 1 for each in loss],
        "val_accuracy": [0.0] * epochs,
    }
    return [list(range(epochs)), numbers]


def histories(text):
    return [json.loads(words) for words in re.findall(r"history (.*)", text)]


def last_log(launch, task):
    attempts = sorted((launch.run_dir / "tasks" / task.replace(":", "-")).glob("attempt-*"))
    return launch.log(task, len(attempts) - 1)


def is_there(launch, task):
    return tasks_of(report_of(launch.run_dir)).get(task, {}).get("waiting_for")


def counts(launch):
    return re.findall(r"counts (.*)", launch.out)


@pytest.fixture(scope="module", autouse=True)
def dead_for_good(early):
    """A run of which a worker is killed and not started again; the others wait until its lease is over."""
    options = ("--no-evaluator", "--set", "training.too_few=shrink", "--set", "restart.worker.policy=never")
    launch = early.start(*SYNC, *options, COUNTED, *GATED, "3")
    launch.wait_for(lambda: step_of(launch) >= 2, "two steps")
    os.kill(launch.pid("worker:1"), signal.SIGKILL)
    (early.folder / "go").touch()
    return launch


@pytest.fixture(scope="module", autouse=True)
def still_for_long(early):
    """Runs of which a worker stands still for longer than its lease."""
    options = ("--set", "training.partitioner={fixed_shards: 2}", "--no-evaluator")
    pause = ("--set", "simulate.pause=[{task: worker:1, at_step: 3, for_s: 6.5}]")
    program = (COUNTED, "--epochs", "2", "--pace_s", "0.1")
    return [
        early.start(*SYNC, *options, "--set", f"training.too_few={too_few}", *pause, *program)
        for too_few in ("wait", "shrink")
    ]


@pytest.mark.parametrize(
    ("updates", "in_sync", "victims"),
    [("sync", "3", ("worker:1", "chief:0", "ps:1")), ("async", "1", ("worker:1", "chief:0"))],
)
def test_kills_change_no_history_of_any_fit_in_any_task(launcher, updates, in_sync, victims):
    """Nothing happens in the first fit. One task after the other is killed in the first epoch of the second;
    after a server's death all go on from a checkpoint.
    """
    shards = ("--set", "training.partitioner={fixed_shards: 2}", "--set", "checkpoint.every_steps=10")
    words = ("--updates", updates, *SOON, *shards, COUNTED, "--fits", "2", *GATED, "2")
    launch = launcher.start(*words)
    launch.wait_for(
        lambda: step_of(launch) > 30 and saved_steps(launch.run_dir)[-1:] > [0], "a step, and a checkpoint"
    )
    for task in victims:
        os.kill(launch.pid(task), signal.SIGKILL)
        launch.wait_for(lambda task=task: step_of(launch, task, attempt=1) > 0, f"{task} to come again")
    (launcher.folder / "go").touch()
    succeeded(launch)
    for task in TASKS:
        first = launch.log(task)
        assert re.findall(r"num_replicas_in_sync (.*)", first) == [in_sync], task
        assert histories(first)[:1] == histories(launch.log("chief:0"))[:1], task
        assert histories(last_log(launch, task))[-1:] == histories(last_log(launch, "chief:0"))[-1:], task
        assert "best 0.0" in last_log(launch, task), task
    [undisturbed, *_] = histories(launch.log("chief:0"))
    disturbed = histories(last_log(launch, "chief:0"))[-1]
    assert undisturbed[0] == disturbed[0] == rows(0)[0]
    assert undisturbed[1].keys() == disturbed[1].keys() == rows(0)[1].keys()
    for name, numbers in rows(0)[1].items():
        # An asynchronous batch may be applied a few steps after those that were dealt after it, in another
        # epoch.
        allowed = 0 if updates == "sync" else 0.5
        assert undisturbed[1][name] == pytest.approx(numbers, rel=0, abs=allowed), name
    if updates == "sync":  # who computes anew what a dead task has computed counts it in another epoch
        assert disturbed[1] == rows(3)[1]
        assert counts(launch) == ["6.0"]


def test_a_stopped_run_goes_on_with_more_replicas_and_one_that_joins(launcher):
    """Its batches stay cut as they were; nothing is missed or counted twice, and every task returns the
    History of all epochs.
    """
    words = (*SYNC, "--ps", "1", "--no-evaluator", "--set", "training.weighting=examples")
    first = launcher.start(
        *words, "--run-dir", "run", "--workers", "1", COUNTED, *GATED, "14", run_dir=launcher.folder / "run"
    )
    first.wait_for(lambda: step_of(first) >= 13, "the second epoch")
    first.send(signal.SIGTERM)
    assert first.end() == 143
    first.wait_gone()
    second = launcher.start(
        "--resume", *words, "--run-dir", "run", "--workers", "2", COUNTED, *GATED, "0", run_dir=first.run_dir
    )
    second.wait_for(lambda: (second.run_dir / "join.json").exists(), "nothing to join")
    joined = launcher.dtrain("worker", "--join", str(second.run_dir), COUNTED)
    second.wait_for(lambda: is_there(second, "worker:2"), "it did not join")
    (launcher.folder / "go").touch()
    assert joined.end() == 0, joined.err
    succeeded(second)
    tasks = ("chief:0", "worker:0", "worker:1")
    assert all(histories(last_log(second, task)) == [rows(0)] for task in tasks)
    assert histories(joined.out) == [rows(0)]
    assert counts(second) == ["3.0"]
    found = [
        re.findall(r"num_replicas_in_sync (.*)", text)
        for text in (joined.out, *(last_log(second, task) for task in tasks))
    ]
    assert found == [["2"]] * 4, "a program that sizes its batches by it makes those of the beginning"


def test_a_batch_whose_push_a_death_has_halved_counts_once(launcher):
    """worker:1 dies while its push is at ps:0 and on the way to ps:1, and comes again within its lease."""
    link = ("--set", "simulate.network=[{between: [worker:1, ps:1], latency_ms: 100}]")
    faults = (
        "--set",
        "simulate.kill=[{task: worker:1, at_step: 2}]",
        "--set",
        "training.partitioner={fixed_shards: 2}",
    )
    launch = launcher.start(*SYNC, *SOON, "--no-evaluator", *link, *faults, COUNTED, "--epochs", "1")
    succeeded(launch)
    assert launch.task("worker:1")["restarts"] == 1
    assert counts(launch) == ["1.0"]


@pytest.mark.parametrize("run", range(int(os.environ.get("DTRAIN_STALE", "1"))))
def test_no_asynchronous_training_stops_early_while_its_loss_falls(launcher, run):
    """DTRAIN_STALE says how many times."""
    (launcher.folder / "stale.py").write_text(STALE)
    launch = launcher.start("--workers", "3", "--no-evaluator", "stale.py")
    succeeded(launch)
    [losses] = [
        [float(number) for number in words.split()] for words in re.findall(r"losses (.*)", launch.out)
    ]
    assert len(losses) == 12
    assert losses == sorted(losses, reverse=True)


def test_the_evaluators_numbers_join_the_history_when_they_are_there(launcher):
    (launcher.folder / "later.py").write_text(LATER)
    launch = launcher.start(*SYNC, "--set", "training.validation=evaluator", "later.py")
    succeeded(launch)
    found = {task: re.findall(r"^val_loss (.*)", launch.log(task), re.MULTILINE) for task in TASKS}
    assert all(found[task] == found["chief:0"] for task in TASKS)
    [numbers] = [words.split() for words in found["chief:0"]]
    [evaluated] = re.findall(r"evaluation at step 4 - loss: (\S+)", launch.log("evaluator:0"))
    assert len(numbers) == 3
    assert f"{float(numbers[1]):.4f}" == evaluated
    assert numbers[2] == "None"
    assert "epoch 3/3" in launch.log("chief:0")
    assert (launcher.folder / "table.csv").read_text().splitlines()[0] == "epoch,loss,val_loss"


def test_the_parts_of_a_worker_that_is_dead_for_good_are_computed_by_the_others(dead_for_good):
    succeeded(dead_for_good)
    assert report_of(dead_for_good.run_dir)["global_step"] == 30
    assert histories(dead_for_good.log("chief:0")) == histories(dead_for_good.log("worker:0")) == [rows(0)]
    assert counts(dead_for_good) == ["3.0"]


def test_the_examples_of_a_worker_that_stands_still_for_longer_than_its_lease_count_once(still_for_long):
    """Its part comes back, and with `shrink` is computed by others; then its own push comes after all."""
    for launch in still_for_long:
        succeeded(launch)
        assert "worker:1 paused for 6.5 s" in launch.err
        assert counts(launch) == ["2.0"]
