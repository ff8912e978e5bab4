"""`backup_workers` of replicas over several hosts: a step does not wait for the slowest, wherever it runs."""

import os
import signal
from pathlib import Path

import pytest
from clusters.test_cluster_hosts import over_hosts  # noqa: F401  # a fixture
from launching import wait_until

TOLD = str(Path(__file__).parent / "told_line.py")


WORDS = ("--wait_for", "go", "--after", "4", "--counts_versions")


def begin(run, task, *more):
    """Start a task, which tells what it comes to in a file."""
    run.start(task, *WORDS, *more, program=TOLD, stdout=(run.folders[task] / "out").open("w"))


def started(run, *more):
    for task in run.tasks:
        run.folders[task].mkdir()
        begin(run, task, *more)


def told_by(run, task):
    lines = (run.folders[task] / "out").read_text().splitlines()
    return [line for line in lines if line.startswith(("history", "weights"))]


def same_of_all(run, tasks):
    for task in tasks:
        assert run.commands[task].end() == 0, f"{task}: {run.commands[task].err}"
    told = {task: told_by(run, task) for task in tasks}
    assert all(lines == told[tasks[-1]] for lines in told.values()), told
    assert len(told[tasks[-1]]) == 2


@pytest.mark.parametrize("late", ["worker:0", "worker:2"], ids=["of the leader's host", "of another host"])
def test_a_replica_that_stands_still_holds_up_nobody_and_has_all_values_when_it_goes_on(over_hosts, late):  # noqa: F811
    run = over_hosts(0, 0, 1, 1, backup_workers=1, deterministic=False)
    started(run)
    wait_until((run.folders[late] / f"go-{late}").exists, f"4 steps of {late}, which computes")
    stopped = run.commands[late].process.pid
    os.kill(stopped, signal.SIGSTOP)
    for folder in run.folders.values():
        (folder / "go").touch()
    others = [task for task in run.tasks if task not in (late, "chief:0")]
    wait_until(lambda: all(len(told_by(run, task)) == 2 for task in others), "all steps of the others")
    assert told_by(run, late) == []
    os.kill(stopped, signal.SIGCONT)
    same_of_all(run, [*run.tasks])


@pytest.mark.parametrize("dead", ["chief:0", "worker:2"], ids=["the leader", "a host"])
def test_steps_go_on_without_one_that_dies(over_hosts, dead):  # noqa: F811
    run = over_hosts(0, 0, 1, 2, backup_workers=1, deterministic=False)
    started(run)
    wait_until((run.folders[dead] / f"go-{dead}").exists, f"4 steps of {dead}, which computes")
    run.commands[dead].process.kill()
    for folder in run.folders.values():
        (folder / "go").touch()
    same_of_all(run, [task for task in run.tasks if task != dead])


def test_a_host_comes_back_with_all_values_while_the_others_make_steps(over_hosts):  # noqa: F811
    run = over_hosts(0, 0, 1, backup_workers=1, deterministic=False)
    started(run, "--pace_s", "0.1")
    wait_until((run.folders["worker:1"] / "go-worker:1").exists, "4 steps of worker:1, which computes")
    run.commands["worker:1"].process.kill()
    run.commands["worker:1"].process.wait()
    begin(run, "worker:1", "--pace_s", "0.1")
    for folder in run.folders.values():
        (folder / "go").touch()
    same_of_all(run, [*run.tasks])
