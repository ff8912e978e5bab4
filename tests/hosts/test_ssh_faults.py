"""Rarer faults of `launch --on ssh`: hosts lost for good, the launcher's own cable, jump hosts, full disks.

Each ends with a sentence that names the host, and leaves nothing. DTRAIN_TRIALS=1 runs them: they take minutes.
"""

import json
import os
import re
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
from hosts.rig import Rig, Ways, needs_hosts
from hosts.test_ssh_runs import PACED, step, tasks_of, wait_progress
from launching import Launch, wait_until

pytestmark = [
    *(needs_hosts if isinstance(needs_hosts, list) else [needs_hosts]),
    pytest.mark.skipif("DTRAIN_TRIALS" not in os.environ, reason="takes minutes; DTRAIN_TRIALS=1 runs it"),
]
CLUSTER = ("--workers", "2", "--ps", "2", "--no-evaluator")
FILL = "cat /dev/zero > /run/dtrain-host/disk/full"


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with Rig(tmp_path_factory.mktemp("rig"), 4, Ways(disk_bytes=8 << 20)) as rig:
        yield rig


@pytest.fixture
def start(rig, launcher, tmp_path):
    def start(hosts, steps, *options):
        (tmp_path / "paced.py").write_text(PACED.replace("STEPS", str(steps)))
        words = ["--on", "ssh", "--hosts", hosts, *CLUSTER, *options, str(tmp_path / "paced.py")]
        launch = Launch(tmp_path, words, wrapper=rig.wrapper("h0"))
        launcher.launches.append(launch)
        return launch

    yield start
    wait_until(lambda: not any(tasks_of(rig, name) for name in rig.names), "the hosts to be empty")


@contextmanager
def configured(rig, text):
    """Lines before the rest of the user's ssh configuration."""
    path = rig.folder / "ssh_config"
    before = path.read_text()
    path.write_text(text + before)  # in place: it is mounted
    try:
        yield
    finally:
        path.write_text(before)


def first_steps(launch):
    launch.wait_for(lambda: step(launch, "worker-1") > 5 and step(launch, "chief-0") > 5, "first steps")


def test_a_spare_host_goes_on_with_the_copy_and_without_one_the_run_is_resumed_elsewhere(rig, start):
    soon = ("--set", "wait.server_s=8", "--set", "checkpoint.every_s=1")
    spare = "hosts=[h1, h2, h3, {host: h4, spare: true}]"
    launch = start("h1,h2,h3", 1_000_000, *soon, "--set", spare)
    first_steps(launch)
    launch.wait_for(lambda: copied_step(launch), "a copy of a step here")
    where = {task["task"]: task["host"] for task in launch.record()["tasks"]}
    assert (where["chief:0"], "h4" in where.values()) == ("h1", False)
    rig.kill("h1")
    try:
        launch.wait_for(lambda: launch.task("chief:0")["host"] == "h4", "the spare host")
        wait_progress(launch, "chief-0", "worker-0", "worker-1")
        assert "goes on from step " in launch.log("chief:0", 1)
        launch.wait_for(lambda: launch.record()["saved"]["where"].startswith("on h4 "), "a step saved there")
        rig.kill("h4")
        assert launch.end() == 1
        assert "h1 is lost: the run stops, and starts again with the spare host h4 in its place" in launch.err
        assert "h4 is lost: training cannot go on without chief:0, " in launch.err
        assert "dtrain: resume with  dtrain launch --resume" in launch.err
        reached = copied_step(launch)
        more = ("--run-dir", str(launch.run_dir), "--resume")
        again = start("h3,h2", 1_000_000, *soon, *more)
        again.run_dir = launch.run_dir
        again.wait_for(lambda: again.record()["state"] == "running", "the tasks to be up")
        again.wait_for(lambda: step(again, "chief-0") > reached, "steps after the resume")
        again.send(signal.SIGINT)
        assert again.end() == 130
        assert f"dtrain: goes on from step {reached}" in again.err
    finally:
        rig.revive("h1")
        rig.revive("h4")


def test_training_goes_on_without_a_killed_host_of_workers_which_take_part_again_when_it_is_back(rig, start):
    soon = ("--set", "wait.server_s=8", "--set", "place={worker: [h3, h2], ps: h1}")
    launch = start("h1,h2,h3", 1_000_000, *soon)
    first_steps(launch)
    rig.kill("h3")
    try:
        launch.wait_for(lambda: "lost" in [each["what"] for each in launch.events("host")], "the loss of h3")
        assert launch.task("worker:0")["state"] == "restarting"
        wait_progress(launch, "chief-0", "worker-1")
    finally:
        rig.revive("h3")
    launch.wait_for(lambda: launch.task("worker:0")["state"] == "running", "worker:0 on h3 again")
    wait_progress(launch, "chief-0", "worker-0", "worker-1")
    launch.send(signal.SIGINT)
    assert launch.end() == 130
    assert "h3 is lost; training goes on, and it is awaited for worker:0\n" in launch.err


def copied_step(launch):
    """The step of the checkpoint at the launcher; 0 for none and for the one of the start."""
    return max((int(path.name[5:]) for path in launch.run_dir.glob("checkpoints/ckpt-*")), default=0)


def test_a_launcher_without_network_ends_and_so_does_every_host(rig, start):
    launch = start("h1,h2", 1_000_000, "--set", "wait.server_s=8")
    first_steps(launch)
    rig.cut("h0")
    try:
        assert launch.end() == 1
        assert "is lost, and no other is heard: is this machine on the network?" in launch.err
        wait_until(lambda: not any(tasks_of(rig, name) for name in rig.names), "nothing is left")
    finally:
        rig.restore("h0")


def test_a_jump_host_is_the_users_business_and_a_dead_one_is_named(rig, start):
    rig.run("h0", "ip", "route", "add", "unreachable", rig.address("h3"))
    try:
        with configured(rig, "Host h3\n ProxyJump h1\n"):
            launch = start("h1,h3", 60)
            assert launch.end() == 0, launch.err
        with configured(rig, "Host h3\n ProxyJump nowhere\n"):
            launch = start("h1,h3", 60)
            assert launch.end() == 125
            assert (
                "h3: it is no name that ssh can resolve (ssh: Could not resolve hostname nowhere"
                in launch.err
            )
    finally:
        rig.run("h0", "ip", "route", "del", "unreachable", rig.address("h3"))


def test_a_host_that_asks_for_a_password_is_named(rig, start):
    with configured(rig, "Host h2\n PubkeyAuthentication no\n"):
        launch = start("h1,h2", 60)
        assert launch.end() == 125
        assert "h2: it asks for a password or knows no key of yours" in launch.err


def test_a_host_whose_disk_is_full_is_named_before_a_task_starts(rig, start):
    rig.run("h2", "sh", "-c", FILL, check=False)
    try:
        launch = start("h1,h2", 60)
        assert launch.end() == 125
        assert "h2: No space left on device in " in launch.err
    finally:
        rig.run("h2", "sh", "-c", "rm /run/dtrain-host/disk/full")


def test_a_server_that_stands_still_on_another_host_than_the_leaders_is_killed_and_started_again(rig, start):
    launch = start("h1,h2,h3", 100_000, "--set", "checkpoint.every_s=1")
    first_steps(launch)
    said = json.loads((launch.run_dir / "tasks/ps-1/status.json").read_text())
    (pid,) = [pid for pid in rig.processes("h2") if pid_there(pid) == said["pid"]]
    os.kill(pid, signal.SIGSTOP)
    launch.wait_for(lambda: launch.events("kill order"), "the order to kill it")
    wait_progress(launch, "worker-1", "chief-0")
    launch.send(signal.SIGINT)
    assert launch.end() == 130
    assert re.search(r"ps:1 is killed: chief:0 has not heard from it for \d+ s", launch.err)


def test_a_server_that_writes_its_status_and_answers_no_chief_of_another_host_is_killed_in_the_end(
    rig, start
):
    """The way back from ps:1's host to the chief's is gone, and both are heard by the launcher."""
    launch = start("h1,h2,h3", 100_000, "--set", "checkpoint.every_s=1", "--set", "wait.server_s=3")
    first_steps(launch)
    chief = rig.address("h1")
    rig.run("h2", "ip", "route", "add", "unreachable", chief)
    try:
        launch.wait_for(lambda: launch.events("kill order"), "the order to kill it")
    finally:
        rig.run("h2", "ip", "route", "del", "unreachable", chief)
    launch.wait_for(lambda: launch.task("ps:1")["attempt"] == 1, "another attempt of ps:1")
    wait_progress(launch, "worker-1", "chief-0")
    launch.send(signal.SIGINT)
    assert launch.end() == 130
    assert re.search(r"ps:1 is killed: chief:0 has not heard from it for \d+ s", launch.err)
    assert "is lost" not in launch.err


def pid_there(pid):
    """The number of a process on its own host."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("NSpid")).split()[-1])
