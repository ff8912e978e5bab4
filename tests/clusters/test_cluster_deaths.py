"""kill -9 of every role: which task is started again, what goes on meanwhile, what is lost, and how far training
comes.
"""

import json
import os
import re
import signal

from clusters.watching import (
    IN_SHARDS,
    LARGE,
    PACED,
    report_of,
    saved_steps,
    step_of,
    succeeded,
    tasks_of,
)

QUICK = (
    *(word for role in ("chief", "worker", "ps") for word in ("--set", f"restart.{role}.backoff_s=0.1")),
    "--no-evaluator",
)
STEPS = 150
PROGRAM = (PACED, "--steps", str(STEPS), "--wait_for", "go", "--after", "30")
"""More steps than a run makes before the death, however late that comes."""


def kill_while_training(launch, task):
    """kill -9 of a task when all are up and some steps are done."""
    launch.wait_for(lambda: launch.record()["state"] == "running" and step_of(launch) >= 12, "12 steps")
    os.kill(launch.pid(task), signal.SIGKILL)


def test_a_worker_and_a_chief_that_are_killed_come_back_and_training_ends_as_planned(launcher):
    """One after the other, in a synchronous and in an asynchronous run, at the same time."""
    words = ("--workers", "2", "--ps", "2", *QUICK)
    launches = [launcher.start(*words, "--updates", updates, *PROGRAM) for updates in ("sync", "async")]
    for task in ("worker:1", "chief:0"):
        for launch in launches:
            kill_while_training(launch, task)
        for launch in launches:
            launch.wait_for(
                lambda launch=launch, task=task: launch.task(task)["restarts"] == 1, f"{task} to come again"
            )
    (launcher.folder / "go").touch()
    for launch in launches:
        succeeded(launch)
        report = report_of(launch.run_dir)
        tasks = tasks_of(report)
        assert (report["global_step"], tasks["ps:0"]["step"], tasks["ps:1"]["step"]) == (STEPS, STEPS, STEPS)
        restarts = {name: found["restarts"] for name, found in tasks.items() if found["restarts"]}
        assert restarts == {"chief:0": 1, "worker:1": 1}
        assert (saved_steps(launch.run_dir)[0], saved_steps(launch.run_dir)[-1]) == (0, STEPS)
        assert launch.err.count("killed by SIGKILL (signal 9); restarting") == 2


def test_with_a_backup_synchronous_training_goes_on_without_a_dead_worker(launcher):
    words = (
        "--workers",
        "2",
        "--ps",
        "2",
        "--updates",
        "sync",
        "--backup-workers",
        "1",
        "--set",
        "restart.worker.policy=never",
    )
    launch = launcher.start(*words, "--no-evaluator", *PROGRAM)
    kill_while_training(launch, "worker:0")
    (launcher.folder / "go").touch()
    succeeded(launch)
    report = report_of(launch.run_dir)
    assert report["global_step"] == STEPS
    assert {
        name: task["state"] for name, task in tasks_of(report).items() if task["state"] != "succeeded"
    } == {"worker:0": "failed"}
    assert "worker:0 has failed: killed by SIGKILL (signal 9); training continues without it" in launch.err


def test_a_killed_server_is_restored_and_the_loss_is_shown(launcher):
    """In a synchronous and in an asynchronous run, at the same time, on one transport each; every gradient for
    a server has 2 MB. In sync the worker has sent one when the server dies, and sends it to the next process.
    """
    steps = 30
    words = ("--workers", "1", "--ps", "2", "--set", "checkpoint.every_steps=10", *IN_SHARDS, *QUICK)
    program = (PACED, *LARGE, "--steps", str(steps), "--wait_for", "go", "--after", "12")
    runs = {"ps:0": ("sync", "grpc"), "ps:1": ("async", "local")}
    waits = {"sync": ("--task", "chief:0"), "async": ()}
    launches = {
        server: launcher.start(
            *words, "--updates", updates, "--set", f"training.transport={way}", *program, *waits[updates]
        )
        for server, (updates, way) in runs.items()
    }
    for server, launch in launches.items():
        kill_while_training(launch, server)
    (launcher.folder / "go").touch()
    for server, launch in launches.items():
        succeeded(launch)
        report = report_of(launch.run_dir)
        tasks = tasks_of(report)
        assert (report["global_step"], tasks["ps:0"]["step"], tasks["ps:1"]["step"]) == (steps, steps, steps)
        assert {name: found["restarts"] for name, found in tasks.items() if found["restarts"]} == {server: 1}
        assert {task["state"] for task in tasks.values()} == {"succeeded"}, "no worker is lost with it"
        lost = (
            rf"{server} had lost all variables: every server goes back from step (\d+) to the checkpoint "
            rf"of step (\d+)"
        )
        said = re.search(lost, launch.out)
        # One that dies just after a checkpoint has lost no step.
        assert report["rolled_back_steps"] == (int(said[1]) - int(said[2]) if said else 0)


SEVERAL = """
import numpy as np, pathlib, time
import dtrain as dt

x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(8, 1)

def batches(fit):
    for number in range(1000):
        while fit == 1 and number == 20 and not pathlib.Path("go").exists():
            time.sleep(0.005)
        yield x, 3 * x - 1

with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    model.compile(optimizer=dt.optimizers.Adam(0.1), loss="mse")
for fit in range(3):
    data = lambda context: dt.data.Dataset.from_generator(lambda: batches(fit))
    model.fit(data, epochs=1, steps_per_epoch=50, verbose=0, validation_data=(x, 3 * x - 1))
"""


def test_a_program_of_several_fits_goes_on_in_the_one_under_way_when_its_chief_is_killed_and_when_it_is_resumed(
    launcher,
):
    """A resumed program goes on in the call of `fit` to which its newest checkpoint belongs. Its evaluator does
    not end at the last checkpoint of the launch before.
    """
    (launcher.folder / "several.py").write_text(SEVERAL)
    words = ("--run-dir", "several", "--workers", "1", "--ps", "1", "--set", "restart.chief.backoff_s=0.1")
    first = launcher.start(*words, "several.py", run_dir=launcher.folder / "several")
    first.wait_for(lambda: step_of(first) >= 70, "the second fit")
    os.kill(first.pid("chief:0"), signal.SIGKILL)
    first.wait_for(lambda: step_of(first, "chief:0", attempt=1) >= 70, "the chief takes its place again")
    first.send(signal.SIGTERM)
    assert first.end() == 143
    stopped_at = saved_steps(first.run_dir)[-1]
    assert 70 <= stopped_at < 100
    (launcher.folder / "go").touch()
    second = launcher.start("--resume", *words, "several.py", run_dir=first.run_dir)
    succeeded(second)
    for attempt in (1, 2):
        log = second.log("chief:0", attempt)
        assert "call 1 of fit had ended before this program was started again" in log
        assert "call 2" not in log
    report = report_of(second.run_dir)
    assert (report["global_step"], report["max_steps"], report["rolled_back_steps"]) == (150, 150, 0)
    assert report["evaluation"]["global_step"] == 150


DIE_AT_THE_END = """
import atexit
import os
import signal
import time
from pathlib import Path

import numpy as np

import dtrain as dt

TASK, ATTEMPT = os.environ["DTRAIN_TASK"], os.environ["DTRAIN_ATTEMPT"]
while (TASK, ATTEMPT) == ("evaluator:0", "0"):
    if Path("trained").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
if TASK == "chief:0":
    atexit.register(os.kill, os.getpid(), signal.SIGKILL)  # called behind the functions registered from here on
with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    model.compile(optimizer="sgd", loss="mse")
data = np.ones((40, 1), "f"), np.ones((40, 1), "f")
model.fit(*data, batch_size=4, epochs=1, verbose=0, validation_data=data)
if TASK == "chief:0":
    Path("trained").touch()
"""


def test_whoever_is_killed_at_the_end_the_run_succeeds_with_its_final_evaluation(launcher):
    """The evaluator when training has ended, and the leader when it has said farewell to its servers."""
    (launcher.folder / "dies.py").write_text(DIE_AT_THE_END)
    launch = launcher.start(
        "--workers", "1", "--ps", "1", "--set", "restart.evaluator.backoff_s=1", "dies.py"
    )
    succeeded(launch)
    report = report_of(launch.run_dir)
    assert (tasks_of(report)["evaluator:0"]["restarts"], tasks_of(report)["evaluator:0"]["state"]) == (
        1,
        "succeeded",
    )
    own = json.loads((launch.run_dir / "tasks" / "evaluator-0" / "status.json").read_text())
    assert own["evaluation"]["global_step"] == report["global_step"] == 10
    assert (tasks_of(report)["chief:0"]["restarts"], tasks_of(report)["chief:0"]["state"]) == (0, "succeeded")
    assert (
        "chief:0 was killed by SIGKILL (signal 9) when its program had ended: nothing is lost" in launch.err
    )
    assert "failed" not in launch.err.splitlines()[-2]
