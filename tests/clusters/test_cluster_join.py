"""`dtrain worker --join`: one more worker for a run that is training, and one that leaves again."""

import re
import signal

import pytest
from clusters.watching import PACED, report_of, step_of, succeeded, tasks_of

SLOW = (PACED, "--pace_s", "0.03")
"""Trains until it is stopped."""
OPTIONS = ("--workers", "1", "--ps", "2", "--no-evaluator")


def joined_worker(launch):
    return tasks_of(report_of(launch.run_dir)).get("worker:1") or {"step": None}


@pytest.mark.parametrize(("updates", "joined_says"), [("async", "step"), ("sync", "waiting_for")])
def test_a_worker_joins_and_ends_with_the_run(launcher, updates, joined_says):
    """The others stop before the last step until it is there: in async it makes steps alone, in sync it takes
    turns with them.
    """
    words = (PACED, "--steps", "60")
    launch = launcher.start(*OPTIONS, "--updates", updates, *words, "--wait_for", "go", "--after", "10")
    launch.wait_for(lambda: (launch.run_dir / "join.json").exists(), "nothing to join")
    joined = launcher.dtrain("worker", "--join", str(launch.run_dir), *words)
    launch.wait_for(lambda: joined_worker(launch).get(joined_says), "it did not join")
    (launcher.folder / "go").touch()
    assert joined.end() == 0, joined.err
    joined.wait_gone()
    run = report_of(launch.run_dir)["run"]
    assert joined.err.startswith(f"dtrain: worker:1: joins run {run}; its log is ")
    assert f"dtrain: worker:1: has trained to the end of run {run} at step " in joined.err
    printed = launcher.dtrain("logs", str(launch.run_dir), "worker:1")
    assert printed.end() == 0
    assert printed.out == joined.out != ""
    succeeded(launch)
    assert launch.err.count("dtrain: worker:1 has joined from ") == 1
    assert '"event": "joined", "task": "worker:1"' in (launch.run_dir / "events.jsonl").read_text()
    report = report_of(launch.run_dir)
    tasks = tasks_of(report)
    assert report["global_step"] == 60
    assert list(tasks) == ["chief:0", "worker:0", "worker:1", "ps:0", "ps:1"]
    assert (tasks["worker:1"]["state"], tasks["worker:1"]["step"]) == ("succeeded", 60)
    assert tasks["worker:1"]["loss"] is not None, "it took no part"
    assert not (launch.run_dir / "join.json").exists()


def test_a_worker_that_has_joined_may_leave_and_is_no_loss(launcher):
    """Its own terminal, and that of the launch, say in order what it does. Its row stays in the live table."""
    launch = launcher.start(*OPTIONS, "--updates", "sync", *SLOW)
    launch.wait_for(lambda: step_of(launch) > 5, "no step")
    terminal = launcher.folder / "terminal"
    with terminal.open("w") as screen:
        joined = launcher.dtrain("worker", "--join", str(launch.run_dir), *SLOW, stderr=screen)
    launch.wait_for(lambda: ": trains; " in terminal.read_text(), "it says nothing of its first step")
    joined.send(signal.SIGINT)
    assert joined.end() == 130, terminal.read_text()
    found = joined_worker(launch)
    assert (found["state"], found["exit_code"], found["message"]) == ("stopped", 130, None)
    run = report_of(launch.run_dir)["run"]
    lines = terminal.read_text().splitlines()
    said = [re.sub(r"step \d+", "step N", line.partition("; its log")[0]) for line in lines]
    assert said == [
        f"dtrain: worker:1: joins run {run}",
        "dtrain: worker:1: trains; the run is at step N",
        "dtrain: worker:1: SIGINT (Ctrl-C): leaves in order; a second signal kills at once",
        f"dtrain: worker:1: has left run {run} at step N",
    ]
    step = step_of(launch)
    launch.wait_for(lambda: step_of(launch) > step + 5, "the others wait for one that has left")
    launch.wait_for(lambda: launch.events("stopped"), "the launch has not seen that it has left")
    assert launcher.dtrain("stop", str(launch.run_dir)).end() == 0
    assert launch.end() == 143
    of_worker = [line for line in launch.err.splitlines() if "worker:1" in line]
    assert [line.partition(" from ")[0] for line in of_worker] == [
        "dtrain: worker:1 has joined",
        "dtrain: worker:1 has left, asked by SIGINT (Ctrl-C)",
    ]


def test_a_worker_that_has_joined_is_killed_started_again_and_stopped_like_all_others(launcher):
    launch = launcher.start(*OPTIONS, "--updates", "async", *SLOW)
    launch.wait_for(lambda: step_of(launch) > 5, "no step")
    joined = launcher.dtrain("worker", "--join", str(launch.run_dir), *SLOW)
    launch.wait_for(lambda: joined_worker(launch)["step"], "it did not join")
    chaos = launcher.dtrain("chaos", str(launch.run_dir), "kill", "worker:1")
    assert chaos.end() == 0, chaos.err

    def is_back():
        worker = joined_worker(launch)
        return (
            worker["restarts"] == 1 and worker["state"] == "running" and worker["heartbeat_age_s"] is not None
        )

    launch.wait_for(is_back, "it was not started again")
    assert launcher.dtrain("stop", str(launch.run_dir)).end() == 0
    assert joined.end() == 143, joined.err
    joined.wait_gone()
    assert launch.end() == 143
    assert "; restarting in 1 s (1 of 3)" in joined.err
    assert "PeerLostError" not in joined.out + joined.err
    worker = joined_worker(launch)
    assert (worker["state"], worker["exit_code"], worker["message"]) == ("stopped", 143, None)
    assert "dtrain: worker:1: killed by SIGKILL" in joined.err


def test_a_worker_that_has_joined_dies_with_the_launcher_or_with_its_own_command(launcher):
    launch = launcher.start(*OPTIONS, "--updates", "async", *SLOW)
    launch.wait_for(lambda: step_of(launch) > 5, "no step")
    first, second = (launcher.dtrain("worker", "--join", str(launch.run_dir), *SLOW) for _ in range(2))

    def steps():
        tasks = tasks_of(report_of(launch.run_dir))
        return [tasks.get(task, {}).get("step") for task in ("worker:1", "worker:2")]

    launch.wait_for(lambda: all(steps()), "they did not join")
    first.send(signal.SIGKILL)
    assert first.end() == -9
    first.wait_gone()
    launch.send(signal.SIGKILL)
    assert second.end() == 137, second.err
    second.wait_gone()
    assert " has died, and its tasks with it" in second.err
    assert launch.end() == -9
    launch.wait_gone()


def test_a_worker_that_has_joined_and_failed_stands_in_the_last_line_and_what_cannot_be_joined_is_said(
    launcher,
):
    words = (PACED, "--steps", "30", "--wait_for", "go", "--after", "10")
    launch = launcher.start(*OPTIONS, "--updates", "async", *words)
    launch.wait_for(lambda: (launch.run_dir / "join.json").exists(), "nothing to join")
    (launcher.folder / "broken.py").write_text(
        "import dtrain as dt\ndt.get_strategy()\nraise ValueError('bad batch')\n"
    )
    joined = launcher.dtrain("worker", "--join", str(launch.run_dir), "broken.py")
    assert joined.end() == 1, joined.err
    joined.wait_gone()
    (launcher.folder / "go").touch()
    succeeded(launch)
    assert "; worker:1 failed: ValueError: bad batch (log: " in launch.err.splitlines()[-2]
    late = launcher.dtrain("worker", "--join", str(launch.run_dir), PACED)
    both = launcher.dtrain("worker", "--join", str(launch.run_dir), "--index", "3", PACED)
    nowhere = launcher.dtrain("worker", "--join", "no-such-run", PACED)
    assert late.end() == 1
    assert "cannot be joined: its state is succeeded" in late.err
    assert both.end() == 2
    assert "give only --runs-dir, --tls-ca, --tls-cert and --tls-key beside it" in both.err
    assert nowhere.end() == 3
