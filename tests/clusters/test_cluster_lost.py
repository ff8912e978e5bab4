"""Replicas that are lost on the way: they are named at once and at the end, with the reason, also when the
run succeeds.
"""

import re

import pytest
from clusters.hand import HandCluster
from clusters.watching import report_of, succeeded, tasks_of

PROGRAM = """
import atexit, json, os, sys, time
import numpy as np, dtrain as dt
place = json.loads(os.environ["TF_CONFIG"])["task"]
fault, seen = sys.argv[1:].pop(place["index"]) if place["type"] == "worker" else "", 0
ways = {"raise": "raise ValueError('bad batch')", "exit": "sys.exit(0)", "abrupt": "os._exit(0)",
        "slowly": "atexit.register(time.sleep, 2); raise ValueError('bad at the end')"}

class Line(dt.Sequential):
    def train_step(self, step):
        global seen
        seen += 1
        time.sleep(0.005)
        if fault and seen == 5:
            exec(ways[fault])
        return {"loss": step.loss_and_gradients(step.x, step.y)}

with dt.get_strategy().scope():
    model = Line([dt.layers.Dense(1, input_shape=(3,))])
    model.compile(dt.optimizers.SGD(0.01), "mse")
model.fit(np.ones((100, 3), "f4"), np.ones((100, 1), "f4"), epochs=1, steps_per_epoch=60, batch_size=8, verbose=0)
"""


@pytest.fixture(scope="module", autouse=True)
def four_lost(early):
    """A run of four workers that are all lost, each in another way; it goes on until the lease of one is
    over.
    """
    (early.folder / "lossy.py").write_text(PROGRAM)
    words = ("--workers", "4", "--ps", "2", "--no-evaluator", "lossy.py")
    return early.start(*words, "raise", "exit", "abrupt", "slowly")


def test_in_sync_the_run_ends_at_once_and_says_who_has_left(launcher):
    (launcher.folder / "lossy.py").write_text(PROGRAM)
    launch = launcher.start("--ps", "2", "--no-evaluator", "--updates", "sync", "lossy.py", "", "exit")
    assert launch.end() == 1
    last_line = next(line for line in launch.err.splitlines() if line.startswith("dtrain: failed after"))
    assert "worker:1 failed at step 4: left before the last step (60), with exit code 0" in last_line
    assert launch.record()["failure"]["task"] == "worker:1"
    launch.wait_gone()


def test_the_leader_of_tasks_that_were_started_by_hand_names_who_was_lost(launcher):
    (launcher.folder / "lossy.py").write_text(PROGRAM)
    cluster = HandCluster(launcher, ps=1, chief=1, worker=3)
    spec = cluster.spec()
    words = ("lossy.py", "raise", "exit", "")
    cluster.start_all(
        lambda task: cluster.start(task, "--spec", spec, "--index", task.partition(":")[2], *words)
    )
    assert cluster.end() == {"ps:0": 0, "chief:0": 0, "worker:0": 1, "worker:1": 0, "worker:2": 0}
    left = "left before the last step (60), with exit code 0"
    said = cluster.commands["chief:0"].err.splitlines()
    for why in (
        r"worker:0 failed at step \d+: ValueError: bad batch",
        rf"worker:1 failed at step \d+: {re.escape(left)}",
    ):
        assert re.search(why, said[-1]), said[-1]
        assert any(re.search(f"chief:0: {why}$", line) for line in said[:-1]), "at once"
    status = cluster.status()
    assert status["state"] == "succeeded"
    assert {task["task"]: (task["state"], task["message"]) for task in status["tasks"]} == {
        "chief:0": ("succeeded", None),
        "worker:0": ("failed", "ValueError: bad batch"),
        "worker:1": ("failed", left),
        "worker:2": ("succeeded", None),
        "ps:0": ("succeeded", None),
    }


def test_every_worker_that_is_lost_is_named_at_once_and_at_the_end(four_lost):
    launch = four_lost
    succeeded(launch)
    left = "left before the last step (60), with exit code 0"
    assert "worker:0 has failed: ValueError: bad batch; training continues without it" in launch.err
    assert f"worker:1 has failed: {left}; training continues without it" in launch.err
    last_line = launch.err.splitlines()[-2]
    for name, why in {"0": "ValueError: bad batch", "[12]": left, "3": "ValueError: bad at the end"}.items():
        assert re.search(rf"worker:{name} failed at step \d+: {re.escape(why)} \(log: /", last_line)
    assert re.search("likewise worker:[12]", last_line)
    report = report_of(launch.run_dir)
    assert report["global_step"] == 60
    assert {name: (task["state"], task["message"]) for name, task in tasks_of(report).items()} == {
        "chief:0": ("succeeded", None),
        "worker:0": ("failed", "ValueError: bad batch"),
        "worker:1": ("failed", left),
        "worker:2": ("failed", left),
        "worker:3": ("failed", "ValueError: bad at the end"),
        "ps:0": ("succeeded", None),
        "ps:1": ("succeeded", None),
    }
    launch.wait_gone()
