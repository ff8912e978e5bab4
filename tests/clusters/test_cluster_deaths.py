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


def test_a_killed_server_ends_the_run_by_name_and_the_run_can_be_resumed(launcher):
    words = ("--workers", "1", "--ps", "2", "--set", "checkpoint.every_steps=10", "--run-dir", "mine", *QUICK)
    mine = launcher.folder / "mine"
    launch = launcher.start(*words, PACED, run_dir=mine)
    launch.wait_for(lambda: launch.record()["state"] == "running" and saved_steps(mine)[-1] >= 10, "a checkpoint")
    os.kill(launch.task("ps:1")["pid"], signal.SIGKILL)
    assert launch.end() == 1, launch.err
    launch.wait_gone()
    assert "ps:1 holds no variables of generation 1: it was restarted" in launch.err
    assert "ps:1 failed" in launch.err.partition("╭")[2], "the box names the cause, not what followed from it"

    saved = saved_steps(mine)[-1]
    again = launcher.start(*words, "--resume", PACED, "--steps", str(saved + 20), run_dir=mine)
    succeeded(again)
    assert saved_steps(mine)[-1] == saved + 20
