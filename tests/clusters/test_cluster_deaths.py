"""kill -9 of a chief and of workers: who is started again, what goes on meanwhile, and how far training comes."""

import os
import signal

import pytest
from clusters.watching import PACED, report_of, saved_steps, step_of, succeeded, tasks_of

QUICK = ("--set", "restart.chief.backoff_s=0.1", "--set", "restart.worker.backoff_s=0.1", "--no-evaluator")
STEPS = 400


def kill_while_training(launch, task):
    """kill -9 of a task when all are up and some steps are done; the step."""
    launch.wait_for(lambda: launch.record()["state"] == "running" and step_of(launch) >= 20, "20 steps")
    step = step_of(launch)
    os.kill(launch.task(task)["pid"], signal.SIGKILL)
    return step


@pytest.mark.parametrize("updates", ["sync", "async"])
@pytest.mark.parametrize("task", ["chief:0", "worker:1"])
def test_whoever_is_killed_comes_back_and_training_ends_as_planned(launcher, updates, task):
    launch = launcher.start("--workers", "2", "--ps", "2", "--updates", updates, *QUICK, PACED, "--steps", str(STEPS))
    kill_while_training(launch, task)
    succeeded(launch)
    report = report_of(launcher, launch.run_dir)
    tasks = tasks_of(report)
    assert (report["global_step"], tasks["ps:0"]["step"], tasks["ps:1"]["step"]) == (STEPS, STEPS, STEPS)
    assert {name: found["restarts"] for name, found in tasks.items() if found["restarts"]} == {task: 1}
    assert (saved_steps(launch.run_dir)[0], saved_steps(launch.run_dir)[-1]) == (0, STEPS)
    assert "killed by SIGKILL (signal 9); restarting" in launch.err


def test_with_a_backup_synchronous_training_goes_on_without_a_dead_worker(launcher):
    words = ("--workers", "2", "--ps", "2", "--updates", "sync", "--backup-workers", "1", "--set", "restart.worker.policy=never")
    launch = launcher.start(*words, "--no-evaluator", PACED, "--steps", str(STEPS))
    kill_while_training(launch, "worker:0")
    succeeded(launch)
    report = report_of(launcher, launch.run_dir)
    assert report["global_step"] == STEPS
    assert {name: task["state"] for name, task in tasks_of(report).items() if task["state"] != "succeeded"} == {
        "worker:0": "failed"
    }
    assert "worker:0 has failed: killed by SIGKILL (signal 9); training goes on without it" in launch.err
