"""Other frameworks' programs under `dtrain launch -- COMMAND`: real ones, which know nothing of dtrain."""

import os
import re
import signal
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_S = 150.0
pytestmark = pytest.mark.timeout(400)


def said(launch, task: str, word: str, attempt: int = 0) -> list[str]:
    """The words behind `word` where a task has printed it at the beginning of a line."""
    found = re.search(rf"^{word}\b(.*)$", launch.log(task, attempt), re.M)
    assert found, (task, word, launch.log(task, attempt)[-3000:])
    return found[1].split()


def learned_the_line(launch, task: str) -> bool:
    """Whether its loss fell to next to nothing and it found y = 2x + 10."""
    first, last = map(float, said(launch, task, "losses"))
    weight, bias = map(float, said(launch, task, "learned")[:2])
    return first > 10 > 0.01 > last and abs(weight - 2) < 0.1 and abs(bias - 10) < 0.1


def succeeded(launch) -> bool:
    """Wait for the end; whether every task succeeded and nothing is left."""
    assert launch.end(PATIENCE_S) == 0, launch.err
    launch.wait_gone()
    return {task["state"] for task in launch.record()["tasks"]} == {"succeeded"}


def test_tensorflow_parameter_servers_end_with_their_coordinator(launcher, tensorflow):
    launch = launcher.start("--", tensorflow, PROGRAMS / "parameter_servers.py")
    assert succeeded(launch)
    assert learned_the_line(launch, "chief:0")
    assert said(launch, "chief:0", "servers") == ["/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1"]
    told = [event["task"] for event in launch.events("told to stop")]
    assert [sorted(told[:2]), sorted(told[2:])] == [
        ["worker:0", "worker:1"],
        ["ps:0", "ps:1"],
    ]  # none of them ends by itself
    assert [event["status"] for event in launch.events("exited")] == [0] + 4 * [-signal.SIGTERM]


def test_a_tensorflow_worker_that_dies_is_back_at_its_address(launcher, tensorflow):
    rule = "restart.worker={policy: on_failure, max: 1}"
    launch = launcher.start("--set", rule, "--", tensorflow, PROGRAMS / "parameter_servers.py", "--pause")
    launch.wait_for(lambda: "paused" in launch.log("chief:0"), "the coordinator", PATIENCE_S)
    os.kill(launch.pid("worker:1"), signal.SIGKILL)
    launch.wait_for(lambda: "serving" in launch.log("worker:1", attempt=1), "the worker again", PATIENCE_S)
    (launch.folder / "go-on").touch()
    assert succeeded(launch)
    assert learned_the_line(launch, "chief:0")


def test_tensorflow_multi_worker_mirrored(launcher, tensorflow):
    words = ["--ps", 0, "--workers", 1, "--set", "success=all_workers"]
    launch = launcher.start(*words, "--", tensorflow, PROGRAMS / "multi_worker_mirrored.py")
    assert succeeded(launch)
    assert learned_the_line(launch, "chief:0")
    assert said(launch, "chief:0", "replicas") == said(launch, "worker:0", "replicas") == ["2"]
    assert said(launch, "chief:0", "learned") == said(launch, "worker:0", "learned")
    assert not launch.events("told to stop")


def test_torch_distributed_gloo(launcher, torch):
    tasks = ["chief:0", "worker:0", "worker:1"]
    launch = launcher.start(
        "--ps", 0, "--set", "success=all_workers", "--", torch, PROGRAMS / "all_reduce.py"
    )
    assert succeeded(launch)
    assert [said(launch, task, "rank") for task in tasks] == [
        f"{n} of 3 local {n} of 3".split() for n in range(3)
    ]
    assert [said(launch, task, "sum") for task in tasks] == 3 * [["111"]]
    assert all(learned_the_line(launch, task) for task in tasks)
    assert len({tuple(said(launch, task, "learned")) for task in tasks}) == 1
    threads = max(1, len(os.sched_getaffinity(0)) // 3)
    assert said(launch, "chief:0", "learned")[-2:] == [
        "threads",
        os.environ.get("OMP_NUM_THREADS", str(threads)),
    ]


def test_two_launches_of_torch_at_once(launcher, torch):
    launches = [
        launcher.start("--ps", 0, "--workers", 1, "--", torch, PROGRAMS / "all_reduce.py") for _ in range(2)
    ]
    assert all(succeeded(launch) for launch in launches)
    assert all(said(launch, "chief:0", "sum") == ["11"] for launch in launches)
