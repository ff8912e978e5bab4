"""What goes wrong is said once, by name, with the exit code that it has; and nothing is left running."""

import os
import signal

import pytest
from clusters.hand import HandCluster
from clusters.watching import PACED, report_of, saved_steps, step_of, succeeded, tasks_of
from launching import wait_until

SMALL = ("--workers", "1", "--ps", "1", "--no-evaluator")


def failed(launch, code):
    """The launch ends with this code and a box, and nothing is left; what stderr says before the box, and the
    box.
    """
    assert launch.end() == code, launch.err
    launch.wait_gone()
    assert launch.err.rstrip().endswith("╯"), "the box is the last thing on stderr"
    before, _, box = launch.err.partition("╭")
    return before, box


@pytest.fixture(scope="module", autouse=True)
def silent_server(early):
    """A launch of which the server answers no more, while all start."""
    launch = early.start(*SMALL, "--start-timeout", "6", PACED, "--wait_for", "go")
    launch.wait_for(lambda: launch.task("ps:0")["state"] == "running", "the server is up")
    os.kill(launch.pid("ps:0"), signal.SIGSTOP)
    (early.folder / "go").touch()
    return launch


def test_a_program_that_raises_in_fit(launcher):
    before, box = failed(launcher.start(*SMALL, PACED, "--trouble", "raise", "--task", "chief:0"), 1)
    assert "chief:0 failed: ValueError: no more data today" in before
    assert "paced_line.py" in box
    assert 'raise ValueError("no more data today")' in box


def test_a_gradient_that_is_not_finite_ends_training_where_the_spec_says_so(launcher):
    launch = launcher.start(
        *SMALL, "--set", "training.nan_policy=fail", PACED, "--trouble", "nan", "--task", "chief:0"
    )
    before, _ = failed(launch, 1)
    assert "chief:0 failed: NonFiniteGradientError: the gradient of chief:0 from version " in before
    assert "holds NaN or infinity" in before


def test_a_gradient_that_is_not_finite_is_refused_by_default_and_training_goes_on(launcher):
    launch = launcher.start(*SMALL, PACED, "--steps", "50", "--trouble", "nan", "--task", "worker:0")
    succeeded(launch)
    assert "the gradient of worker:0 from version" in launch.log("worker:0")
    assert report_of(launch.run_dir)["global_step"] == 50
    assert "nan" not in launch.out


def test_a_model_that_differs_between_tasks(launcher):
    words = ("--set", "success=all_workers", PACED, "--trouble", "other model", "--task", "worker:0")
    before, _ = failed(launcher.start(*SMALL, *words), 1)
    assert "worker:0 failed: PeerRefusedError: " in before
    assert "do all tasks build the same model?" in before


def test_an_address_that_is_taken(launcher):
    cluster = HandCluster(launcher, ps=1, worker=1)
    spec = cluster.spec()
    first = cluster.start("ps:0", "--spec", spec)
    worker = cluster.start("worker:0", "--spec", spec, PACED)
    wait_until((cluster.run_dir / "run.json").exists, "the worker leads")
    second = launcher.dtrain("ps", "--spec", spec)
    assert second.end() == 2
    said = "another process listens there; end it, or give this task another address"
    assert second.err == f"SpecError: cannot listen at {cluster.addresses['ps'][0]}: {said}\n"
    worker.process.terminate()
    assert cluster.end() == {"ps:0": 0, "worker:0": 143}
    assert "Error" not in first.err


@pytest.mark.parametrize("role", ["worker", "chief", "evaluator"])
def test_a_missing_program_is_the_commands_fault(launcher, role):
    cluster = HandCluster(launcher, ps=1, chief=1, worker=1)
    task = launcher.dtrain(role, "--spec", cluster.spec(evaluator=1), "missing.py")
    assert task.end() == 2
    assert "missing.py" in task.err
    assert "Traceback" not in task.err
    assert not task.pids()


# An ordered stop


def test_ctrl_c_during_training(launcher):
    """In a synchronous and in an asynchronous run, at the same time."""
    launches = [
        launcher.start("--workers", "1", "--ps", "1", "--updates", updates, PACED)
        for updates in ("sync", "async")
    ]
    for launch in launches:
        launch.wait_for(
            lambda launch=launch: launch.record()["state"] == "running" and step_of(launch) >= 10, "ten steps"
        )
        launch.send(signal.SIGINT)
    for launch in launches:
        assert launch.end() == 130
        launch.wait_gone()
        assert len(saved_steps(launch.run_dir)) == 2, "the first checkpoint and one of the end"
        assert saved_steps(launch.run_dir)[-1] >= 10
        report = report_of(launch.run_dir)
        assert (report["state"], report["exit_code"], report["failure"]) == ("stopped", 130, None)
        assert {task["state"] for task in tasks_of(report).values()} <= {"stopped", "succeeded"}
        assert "╭" not in launch.err


def test_a_server_that_does_not_answer_while_all_start(silent_server):
    before, _ = failed(silent_server, 125)
    assert "waits for ps:0" in before
