"""`--strategy pipeline`: a model that spans tasks trains to the bit as one process does, whoever is killed."""

import ast
import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from clusters import staged
from clusters.watching import report_of, saved_steps, step_of, succeeded, tasks_of
from learning.pipeline_reference import reference_step

from dtrain.learning.graphs.networks import Network
from dtrain.learning.losses import MeanSquaredError

STAGED = str(Path(__file__).parent / "staged.py")
COUNTED = str(Path(__file__).parent / "counted_stages.py")
PIPELINE = ("--strategy", "pipeline", "--no-evaluator")
QUICKLY = tuple(word for role in ("chief", "worker") for word in ("--set", f"restart.{role}.backoff_s=0.1"))
TASKS = ("chief:0", "worker:0", "worker:1")


def told(launch, what, tasks=TASKS):
    """The lines of all tasks that begin so, which are the same in all."""
    found = {
        task: re.findall(rf"^{what} (.*)$", launch.log(task) + launch.log(task, 1), re.MULTILINE)
        for task in tasks
    }
    assert len({tuple(lines) for lines in found.values()}) == 1, found
    assert found[tasks[0]]
    return found[tasks[0]]


def test_three_stages_give_the_bits_of_one_process_that_computes_the_microbatches_in_order(launcher):
    """The judge is a loop over layers, with the rule of plain SGD; the last batch and its last microbatch are smaller."""
    saved = launcher.folder / "weights.npz"
    words = ("--stages", "3", *PIPELINE, "--set", "training.microbatches=4", STAGED, "--save", str(saved))
    succeeded(launch := launcher.start(*words))
    network = Network(staged.layers_of())
    weights = dict(network.initial_values(0))
    x, y = staged.data_of()
    batches, step = -(-staged.ROWS // staged.BATCH), 0
    losses = []
    for _ in range(staged.EPOCHS):
        lost = 0.0
        for start in range(0, staged.ROWS, staged.BATCH):
            part, target = x[start : start + staged.BATCH], y[start : start + staged.BATCH]
            words = (0, step, 0, 0, 1)
            gradients, updates, loss = reference_step(
                network, weights, part, target, MeanSquaredError(), 4, words
            )
            lost += loss * len(part) / staged.ROWS
            for name, gradient in gradients.items():
                weights[name] = weights[name] - np.float32(staged.RATE) * gradient
            weights |= updates
            step += 1
        losses.append(lost)
    with np.load(saved) as found:
        assert found.keys() == weights.keys()
        assert all(np.array_equal(found[name], weights[name]) for name in weights)
    [history] = map(json.loads, told(launch, "history"))
    assert history["loss"] == pytest.approx(losses, rel=1e-6)
    assert report_of(launch.run_dir)["global_step"] == staged.EPOCHS * batches


def test_callbacks_several_fits_evaluate_and_checkpoints_do_as_in_one_stage(launcher):
    """One of two stages, named by their layers, and `gpipe`: the History, the weights and `evaluate` are the same."""
    words = (STAGED, "--optimizer", "adam", "--fits", "2", "--assign_at", "4", "--stop_at", "8")
    named = ("--set", "training.stages=[dense, dense_1]", "--set", "training.schedule=gpipe")
    one = launcher.start("--stages", "1", *PIPELINE, *words)
    two = launcher.start(*named, "--set", "cluster.worker=1", *PIPELINE, *words)
    for launch in (one, two):
        succeeded(launch)
    for what in ("history", "weights", "evaluated"):
        assert told(two, what, TASKS[:2]) == told(one, what, TASKS[:1])
    assert saved_steps(two.run_dir) == saved_steps(one.run_dir)


def test_a_stage_with_replicas_trains_as_the_reference_does(launcher):
    """Two replicas compute the first of two stages; the last batch has fewer microbatches than there are."""
    saved = launcher.folder / "weights.npz"
    words = ("--set", "training.stages=[dense, dense_1]", "--set", "training.stage_replicas={0: 2}")
    more = ("--workers", "2", "--set", "training.microbatches=4", STAGED, "--save", str(saved), "--plain")
    succeeded(launch := launcher.start(*words, *PIPELINE, *more))
    network = Network(staged.layers_of(plain=True))
    weights = dict(network.initial_values(0))
    x, y = staged.data_of()
    for step in range(staged.EPOCHS * -(-staged.ROWS // staged.BATCH)):
        start = step * staged.BATCH % (-(-staged.ROWS // staged.BATCH) * staged.BATCH)
        part, target = x[start : start + staged.BATCH], y[start : start + staged.BATCH]
        first = {"dense/kernel": 2, "dense/bias": 2}
        words = (0, step, 0, 0, 1)
        gradients, _, _ = reference_step(network, weights, part, target, MeanSquaredError(), 4, words, first)
        for name, gradient in gradients.items():
            weights[name] = weights[name] - np.float32(staged.RATE) * gradient
    with np.load(saved) as found:
        assert found.keys() == weights.keys()
        assert all(np.array_equal(found[name], weights[name]) for name in weights)
    told(launch, "history")


def test_layers_placed_by_hand_give_the_bits_of_one_task(launcher):
    """Halves that read each other, and a layer of sequences on each task; orders reach tasks that read inputs alone."""
    words = (STAGED, "--optimizer", "adam", "--assign_at", "4", "--stop_at", "12", "--place")
    places = {"left": "worker:0", "right": "/job:worker/task:1", "low": "chief:0", "high": "worker:1"}
    one = launcher.start("--set", "cluster.worker=0", *PIPELINE, *words, "{}")
    three = launcher.start("--set", "cluster.worker=2", *PIPELINE, *words, json.dumps(places))
    for launch in (one, three):
        succeeded(launch)
    for what in ("history", "weights", "evaluated"):
        assert told(three, what) == told(one, what, TASKS[:1])


def test_a_run_goes_on_with_another_number_of_stages(launcher):
    """A checkpoint is one cut through all stages, and has every variable and slot."""
    words = (STAGED, "--optimizer", "adam")
    whole = launcher.start("--stages", "1", *PIPELINE, *words)
    place, run_dir = ("--run-dir", "run"), launcher.folder / "run"
    begun = launcher.start("--stages", "3", *PIPELINE, *place, *words, "--epochs", "1", run_dir=run_dir)
    for launch in (whole, begun):
        succeeded(launch)
    two = ("--stages", "2", "--workers", "1", *PIPELINE)
    again = launcher.start("--resume", *two, *place, *words, run_dir=run_dir)
    succeeded(again)
    assert told(again, "weights", ["worker:0"])[-1:] == told(whole, "weights", ["chief:0"])


SCHEDULES = ("1f1b", "pipedream", "pipedream_2bw")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_example_counts_once_whichever_task_is_killed(launcher, schedule):
    """Two workers and then the leader are killed in the midst of steps; each stage counts each example by itself."""
    launch = launcher.start(
        *("--set", f"training.schedule={schedule}"),
        *("--stages", "3", *PIPELINE, *QUICKLY, "--set", "checkpoint.every_steps=4"),
        *(COUNTED, "--wait_for", "go", "--after", "13"),
    )
    for task in ("worker:1", "worker:0", "chief:0"):
        launch.wait_for(lambda: step_of(launch, "chief:0") >= 12, "12 steps")
        os.kill(launch.pid(task), signal.SIGKILL)
        launch.wait_for(lambda task=task: launch.task(task)["attempt"] == 1, f"a restart of {task}")
    (launcher.folder / "go").touch()
    succeeded(launch)
    for task in TASKS:
        [line] = re.findall(rf"^counts {task} (.*)$", launch.log(task, 1), re.MULTILINE)
        assert ast.literal_eval(line) == [[6.0]] * 3
    assert report_of(launch.run_dir)["global_step"] == 36


def test_a_leader_that_is_started_again_may_cut_the_model_otherwise(launcher):
    """The first layer sleeps in its first process, and the last one in its second: all stages follow it."""
    launch = launcher.start(
        *(
            "--stages",
            "2",
            *PIPELINE,
            *QUICKLY,
            "--set",
            "checkpoint.every_steps=4",
            COUNTED,
            "--stages",
            "3",
        ),
        *("--slow", "0", "2", "--wait_for", "go", "--after", "13"),
    )
    launch.wait_for(lambda: step_of(launch, "chief:0") >= 12, "12 steps")
    begun = {name: task["stage"] for name, task in tasks_of(report_of(launch.run_dir)).items()}
    assert begun == {"chief:0": "counting", "worker:0": "counting_1"}
    os.kill(launch.pid("chief:0"), signal.SIGKILL)
    launch.wait_for(lambda: launch.task("chief:0")["attempt"] == 1, "a restart")
    (launcher.folder / "go").touch()
    succeeded(launch)
    tasks = tasks_of(report_of(launch.run_dir))
    assert {name: tasks[name]["stage"] for name in begun} == {"chief:0": "counting", "worker:0": "counting_2"}
    for attempt, second in enumerate(("counting_1", "counting_2")):
        assert f"stages begin with counting, {second}, by measured time" in launch.log("chief:0", attempt)
    for task, attempt in (("chief:0", 1), ("worker:0", 0)):
        [line] = re.findall(rf"^counts {task} (.*)$", launch.log(task, attempt), re.MULTILINE)
        assert ast.literal_eval(line) == [[6.0]] * 3


def stopped_and_saved(launcher, words, run_dir):
    """A run that is stopped behind its twelfth step has saved its last one, and each of its tasks has ended by itself."""
    begun = launcher.start(*words, run_dir=run_dir)
    begun.wait_for(lambda: step_of(begun, "chief:0") >= 12, "12 steps")
    begun.send(signal.SIGINT)
    assert begun.end() == 130
    begun.wait_gone()
    assert saved_steps(run_dir) == [0, step_of(begun, "chief:0")]
    ended = {name: task["exit_code"] for name, task in tasks_of(report_of(run_dir)).items()}
    assert ended == dict.fromkeys(TASKS, 143), "each task ends by itself"


def test_a_run_that_is_stopped_saves_its_last_step_and_every_example_counts_once_after_a_resume(launcher):
    """Each stage serves until the leader has saved, and those that have voted on a batch hear what became of it."""
    words = (
        *("--stages", "3", *PIPELINE, "--set", "checkpoint.every_s=1000", "--run-dir", "run"),
        *(COUNTED, "--wait_for", "go", "--after", "13"),
    )
    run_dir = launcher.folder / "run"
    stopped_and_saved(launcher, words, run_dir)
    (launcher.folder / "go").touch()
    again = launcher.start("--resume", *words, run_dir=run_dir)
    succeeded(again)
    for task in TASKS:
        [line] = re.findall(rf"^counts {task} (.*)$", again.log(task, 1), re.MULTILINE)
        assert ast.literal_eval(line) == [[6.0]] * 3


@pytest.mark.parametrize("schedule", SCHEDULES[1:])
def test_what_an_asynchronous_pipeline_computes_follows_from_the_program_and_not_from_time(
    launcher, schedule
):
    """Callbacks assign weights and stop in the midst of an epoch; one run saves all the time, the other does not."""
    words = (
        *("--stages", "3", *PIPELINE, "--set", f"training.schedule={schedule}"),
        *(STAGED, "--optimizer", "adam", "--assign_at", "4", "--stop_at", "6"),
    )
    seldom = launcher.start("--set", "checkpoint.every_s=1000", *words)
    often = launcher.start("--set", "checkpoint.every_steps=1", *words)
    for launch in (seldom, often):
        succeeded(launch)
    for what in ("history", "weights", "evaluated"):
        assert told(seldom, what) == told(often, what)
    batches = -(-staged.ROWS // staged.BATCH)
    assert report_of(often.run_dir)["global_step"] < staged.EPOCHS * batches
    counts = tasks_of(report_of(often.run_dir))
    assert [counts[task]["staleness_mean"] for task in TASKS] == sorted(
        (counts[task]["staleness_mean"] for task in TASKS), reverse=True
    )


@pytest.mark.parametrize("schedule", SCHEDULES[1:])
def test_an_asynchronous_pipeline_that_is_stopped_comes_to_rest_saves_and_goes_on(launcher, schedule):
    """A stop comes while batches are in flight; what is saved has each of them in every stage."""
    run_dir, epochs = launcher.folder / "run", 60
    words = (
        *("--stages", "3", *PIPELINE, "--set", "checkpoint.every_s=1000", "--run-dir", "run"),
        *("--set", f"training.schedule={schedule}", "--set", "wait.grace_s=3"),
        *(COUNTED, "--epochs", str(epochs), "--slow", "1", "--slow_s", "0.03"),  # before it is stopped
    )
    stopped_and_saved(launcher, words, run_dir)
    again = launcher.start("--resume", *words, run_dir=run_dir)
    succeeded(again)
    for task in TASKS:
        [line] = re.findall(rf"^counts {task} (.*)$", again.log(task, 1), re.MULTILINE)
        assert ast.literal_eval(line) == [[float(epochs)]] * 3


def test_a_stage_that_fails_for_good_ends_the_run_with_its_own_error(launcher):
    """Nobody waits for it, and what the leader cannot save is said."""
    program = launcher.folder / "failing.py"
    program.write_text(
        """
import os, numpy as np, dtrain as dt
def rows(x, y):
    if os.environ["DTRAIN_TASK"] == "worker:0":
        raise ValueError("a bad row")
    return x, y
with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Dense(4, input_shape=(3,)), dt.layers.Dense(1)])
    model.compile("sgd", "mse")
x, y = np.ones((80, 3), np.float32), np.ones((80, 1), np.float32)
model.fit(dt.data.Dataset.from_tensor_slices((x, y)).batch(8).map(rows), verbose=0)
"""
    )
    launch = launcher.start("--stages", "2", *PIPELINE, str(program))
    assert launch.end() == 1
    launch.wait_gone()
    assert "worker:0 failed" in launch.err
    assert "ValueError: a bad row" in launch.err
