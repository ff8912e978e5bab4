"""`backup_workers` without servers: a replica that stands still costs nothing, and goes on when it can."""

import os
import signal
from pathlib import Path

import pytest
from clusters.watching import report_of, saved_steps, step_of, succeeded, tasks_of

TOLD = str(Path(__file__).parent / "told_line.py")
LATE = str(Path(__file__).parent / "late_leader.py")
STEPS = 24


def told_by(launch, *tasks):
    """History and weights, as each task tells them."""
    lines = {task: launch.log(task).splitlines() for task in tasks}
    return {
        task: [line for line in told if line.startswith(("history", "weights"))]
        for task, told in lines.items()
    }


@pytest.fixture(scope="module", autouse=True)
def without_its_first_two(early):
    """A run whose leader is killed while the next replica is stopped, which is waited for to the end of its lease."""
    launch = early.start(
        *("--strategy", "multi_worker_mirrored", "--no-evaluator", "--workers", "3", "--backup-workers", "2"),
        *("--set", "restart.chief.policy=never", "--grace", "0.5"),
        *(TOLD, "--wait_for", "go", "--after", "4", "--counts_versions"),
    )
    for task in ("chief:0", "worker:0"):
        launch.wait_for((early.folder / f"go-{task}").exists, f"4 steps of {task}, which computes")
    os.kill(launch.pid("worker:0"), signal.SIGSTOP)
    os.kill(launch.pid("chief:0"), signal.SIGKILL)
    (early.folder / "go").touch()
    return launch


def test_a_stopped_replica_holds_up_neither_steps_nor_one_that_joins_and_knows_all_when_it_goes_on(launcher):
    # A run ends when its leader has ended, and the leader waits shortly for a replica that is stopped.
    words = (
        TOLD,
        "--wait_for",
        "go",
        "--after",
        "4",
        "--counts_versions",
        "--pace_s",
        "0.1",
        "--stay_for",
        "leave",
    )
    launch = launcher.start(
        *("--strategy", "multi_worker_mirrored", "--no-evaluator", "--workers", "2", "--backup-workers", "1"),
        *words,
    )
    launch.wait_for((launcher.folder / "go-worker:1").exists, "4 steps of worker:1, which computes")
    stopped = launch.pid("worker:1")
    os.kill(stopped, signal.SIGSTOP)
    joined = launcher.dtrain("worker", "--join", launch.run_dir, *words)
    launch.wait_for(lambda: (launch.run_dir / "tasks" / "worker-2" / "status.json").exists(), "one more")
    (launcher.folder / "go").touch()
    launch.wait_for(lambda: step_of(launch, "worker:2") == STEPS == step_of(launch, "chief:0"), "all steps")
    assert step_of(launch, "worker:1") < STEPS
    os.kill(stopped, signal.SIGCONT)
    launch.wait_for(lambda: step_of(launch, "worker:1") == STEPS, "the steps of the one that was stopped")
    (launcher.folder / "leave").touch()
    succeeded(launch)
    assert joined.end() == 0, joined.err
    told = told_by(launch, "chief:0", "worker:0", "worker:1", "worker:2")
    assert all(lines == told["chief:0"] for lines in told.values()), told
    assert len(told["chief:0"]) == 2
    assert tasks_of(report_of(launch.run_dir))["worker:1"]["step"] == STEPS
    launch.wait_gone()


def test_when_the_leader_dies_while_the_next_one_is_stopped_another_one_leads(without_its_first_two):
    """It validates, ends the epochs and saves the last step, though the lowest live rank never goes on."""
    launch = without_its_first_two
    succeeded(launch)
    told = told_by(launch, "worker:1", "worker:2")
    assert told["worker:1"] == told["worker:2"]
    assert len(told["worker:1"]) == 2
    assert saved_steps(launch.run_dir)[-1] == STEPS
    states = {task: each["state"] for task, each in tasks_of(report_of(launch.run_dir)).items()}
    assert (states["chief:0"], states["worker:1"], states["worker:2"]) == ("failed", "succeeded", "succeeded")
    assert step_of(launch, "worker:0") < STEPS


def test_a_leader_whose_part_comes_too_late_for_the_last_step_of_an_epoch_ends_the_epoch(launcher):
    launch = launcher.start(
        *("--strategy", "multi_worker_mirrored", "--no-evaluator", "--workers", "3", "--backup-workers", "1"),
        *("--timeout", "60", LATE),
    )
    assert launch.end() == 0, launch.err
    assert "epochs 3" in launch.log("chief:0")
