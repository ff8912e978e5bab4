"""Nothing outlives the launcher: whichever task is killed, whatever the tasks have started, in whatever session."""

import os
import signal

import pytest
from launching import wait_until

SMALL = ("--ps", "1", "--no-evaluator", "--workers", "1")


@pytest.mark.parametrize("foreign", [False, True])
def test_kill_9_of_the_launcher(launcher, foreign):
    launch = launcher.start_family(*SMALL, foreign=foreign, warm=False)
    launch.send(signal.SIGKILL)
    launch.wait_gone()


@pytest.mark.parametrize("warm", [False, True])
def test_kill_9_of_the_fork_server(launcher, warm):
    launch = launcher.start_family(*SMALL, foreign=False, warm=warm)
    os.kill(launch.fork_server(), signal.SIGKILL)
    assert launch.end() == 1
    assert "the fork server" in launch.record()["failure"]["message"]
    launch.wait_gone()


def test_kill_9_of_a_guardian(launcher):
    launch = launcher.start_family(*SMALL, foreign=True)
    os.kill(launch.guardian("worker:0"), signal.SIGKILL)
    assert launch.end() == 137
    assert launch.record()["failure"]["task"] == "worker:0"
    launch.wait_gone()


@pytest.mark.parametrize("foreign", [False, True])
def test_an_ordered_stop_takes_everybody(launcher, foreign):
    launch = launcher.start_family(*SMALL, foreign=foreign)
    launch.send(signal.SIGTERM)
    assert launch.end() == 143
    assert not launch.pids()


def test_a_task_that_ignores_sigterm_says_where_it_stands_and_is_killed_when_the_grace_is_over(launcher):
    program = launcher.program(
        """
        if task == "worker:0":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        status()
        try:
            forever()
        except SystemExit:
            print("saved", flush=True)
        """
    )
    launch = launcher.start(*SMALL, "--grace", "2", program)
    launch.wait_running()
    launch.send(signal.SIGINT)
    assert launch.end() == 130
    assert launch.log("chief:0") == "saved\n", (
        "the chief had its time although the worker before it did not leave"
    )
    assert "in forever" in launch.log("worker:0"), "its stacks, after half of the grace"
    assert "worker:0 has not stopped yet; its stacks are in its log" in launch.err
    told = [(event["task"], event["signal"]) for event in launch.events("told to stop")]
    assert told[:2] == [("worker:0", "SIGTERM"), ("chief:0", "SIGTERM")]
    assert not launch.pids()


def test_what_a_task_leaves_behind_does_not_survive_its_own_end(launcher):
    program = launcher.program(
        """
        status()
        if task == "worker:0":
            subprocess.Popen(["sleep", "1001"])
        else:
            wait_for(run_dir / "go")
        """
    )
    launch = launcher.start(*SMALL, program)
    wait_until(lambda: launch.task("worker:0")["state"] == "succeeded")
    wait_until(lambda: not launch.pids("sleep", "1001"))
    (launch.run_dir / "go").touch()
    assert launch.end() == 0


def test_a_stopped_task_can_still_be_told_to_stop(launcher):
    program = launcher.program("status()\nforever()\n")
    launch = launcher.start(*SMALL, program)
    launch.wait_running()
    os.kill(launch.pid("worker:0"), signal.SIGSTOP)
    launch.send(signal.SIGTERM)
    assert launch.end() == 143
    assert [event["status"] for event in launch.events("exited")] == [143] * 3, "no task had to be killed"
