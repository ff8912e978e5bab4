"""`launch --on ssh` over a real sshd on each of several hosts: training, and what becomes of it when a host, its
ssh, its agent or its launcher is lost.
"""

import contextlib
import json
import signal
import subprocess
import time
from functools import partial

import pytest
from hosts.rig import Rig, Ways, kill, needs_hosts
from launching import Launch, wait_until

pytestmark = needs_hosts

PACED = """
import itertools, time
import numpy as np
import dtrain as dt

def batches():
    for _ in itertools.count():
        time.sleep(0.03)
        yield np.ones((8, 1), np.float32), np.full((8, 1), 2, np.float32)

strategy = dt.get_strategy()
with strategy.scope():
    model = dt.Sequential([dt.layers.Input((1,)), dt.layers.Dense(1)])
    model.compile(optimizer=dt.optimizers.SGD(0.01), loss="mse")
model.fit(
    lambda context: dt.data.Dataset.from_generator(batches),
    epochs=1, steps_per_epoch=STEPS, verbose=0,
)
if strategy.is_leader:
    print("trained")
"""
ON = ("--on", "ssh", "--hosts", "h1,h2,h3", "--workers", "2", "--ps", "2", "--no-evaluator")


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    """Hosts as Debian's installer leaves them, whose shells print a banner and which refuse storms of logins."""
    ways = Ways(max_startups="10:30:100", debian=True, banner="Welcome to this machine")
    with Rig(tmp_path_factory.mktemp("rig"), 3, ways) as rig:
        yield rig


@pytest.fixture
def start(rig, launcher, tmp_path):
    def start(steps, *options):
        (tmp_path / "paced.py").write_text(PACED.replace("STEPS", str(steps)))
        launch = Launch(tmp_path, [*ON, *options, str(tmp_path / "paced.py")], wrapper=rig.wrapper("h0"))
        launcher.launches.append(launch)
        return launch

    yield start
    wait_until(lambda: not any(tasks_of(rig, name) for name in rig.names), "the hosts to be empty")


def tasks_of(rig, name):
    """The processes of dtrain on a host."""
    return {pid: line for pid, line in rig.processes(name).items() if "dtrain" in line}


def step(launch, task):
    try:
        return json.loads((launch.run_dir / "tasks" / task / "status.json").read_text())["step"] or 0
    except (OSError, ValueError):
        return 0


def wait_progress(launch, *tasks):
    """Wait until tasks make steps again."""
    for task in tasks:
        before = step(launch, task)  # a rollback may make it smaller
        launch.wait_for(
            lambda task=task, before=before: step(launch, task) not in (0, before), f"steps of {task}"
        )


def test_a_program_trains_over_ssh_and_leaves_nothing(rig, start):
    launch = start(60)
    assert launch.end() == 0, launch.err
    assert "chief:0 | trained" in launch.out
    assert "succeeded after" in launch.err
    hosts = {
        task["task"]: (task["host"], task["address"].rpartition(":")[0]) for task in launch.record()["tasks"]
    }
    assert {host for host, _ in hosts.values()} == {"h1", "h2", "h3"}
    assert all(rig.address(host) == address for host, address in hosts.values())


@pytest.mark.long("two hosts are cut off one after the other, longer than keep-alives and a lease last")
def test_hosts_that_are_cut_off_for_a_while_lose_nothing(rig, start):
    """The chief's host longer than its connections' keep-alives last, a worker's as long as a lease was."""
    launch = start(1_000_000)
    launch.wait_for(lambda: step(launch, "worker-1") > 5 and step(launch, "chief-0") > 5, "first steps")
    where = {task["task"]: task["host"] for task in launch.record()["tasks"]}
    for host, cut_s in ((where["chief:0"], 17.0), (where["worker:0"], 10.0)):
        rig.cut(host)
        try:
            time.sleep(cut_s)  # how long is what this is about
        finally:
            rig.restore(host)
        launch.wait_for(
            lambda host=host: (
                ("heard again", host) in [(e["what"], e["host"]) for e in launch.events("host")]
            ),
            f"{host} to be heard again",
        )
        wait_progress(launch, "chief-0", "worker-0", "worker-1")
    assert {task["attempt"] for task in launch.record()["tasks"]} == {0}
    launch.send(signal.SIGINT)
    assert launch.end() == 130
    assert "is lost:" not in launch.err


def test_a_killed_ssh_costs_a_restart_and_a_killed_launcher_leaves_nothing(rig, start):
    launch = start(1_000_000)
    launch.wait_for(lambda: step(launch, "worker-1") > 5 and step(launch, "chief-0") > 5, "first steps")
    (ssh,) = launch.pids("ssh", "h3")
    kill(ssh)
    launch.wait_for(
        lambda: [event for event in launch.events("host") if event["what"] == "back"], "a new agent"
    )
    there = [task["task"] for task in launch.record()["tasks"] if task["host"] == "h3"]
    launch.wait_for(lambda: all(launch.task(task)["attempt"] == 1 for task in there), "started again")
    wait_progress(launch, "chief-0", "worker-0", "worker-1")
    launch.send(signal.SIGKILL)
    wait_until(lambda: not any(tasks_of(rig, name) for name in rig.names), "nothing is left anywhere")
    launch.process.wait()


def test_hosts_that_cannot_reach_each_other_are_named_before_a_task_starts(rig, start):
    rig.run("h2", "ip", "route", "add", "unreachable", rig.address("h1"))
    try:
        launch = start(10)
        assert launch.end() == 125
        assert f"h2 ({rig.address('h2')}) cannot reach ps:0 at {rig.address('h1')}:" in launch.err
        assert not list(launch.run_dir.glob("tasks/*/attempt-0"))
    finally:
        rig.run("h2", "ip", "route", "del", "unreachable", rig.address("h1"))


def test_a_detached_run_lives_without_its_users_machine_and_a_worker_joins_by_the_printed_words(
    rig, launcher, tmp_path, monkeypatch
):
    """The words are typed on h3, which the run does not know."""
    (tmp_path / "paced.py").write_text(PACED.replace("STEPS", "1000000"))
    monkeypatch.chdir(tmp_path)  # the folder that is sent
    dtrain = partial(launcher.dtrain, wrapper=rig.wrapper("h0"))

    def said(*words):
        command = dtrain(*words)
        assert command.end() == 0, command.err
        return command.out

    hosts = ("--hosts", "h1,h2", "--workers", "1", "--ps", "1", "--no-evaluator", "--name", "far")
    said("launch", "--on", "ssh", *hosts, "--detach", "paced.py")

    def chief_step():
        (status,) = (rig.state("h1") / "state/dtrain/runs").glob("*-far-*/tasks/chief-0/status.json")
        return json.loads(status.read_text())["step"] or 0

    wait_until(lambda: chief_step() > 5, "first steps")
    rig.cut("h0")
    try:
        before = chief_step()
        wait_until(lambda: chief_step() > before + 20, "steps without the user's machine")
    finally:
        rig.restore("h0")
    words = f"cd {tmp_path} && {said('join-line', 'far')}"
    with subprocess.Popen([*rig.wrapper("h0"), "ssh", "h3", words], stdin=subprocess.DEVNULL) as worker:
        try:

            def joined():
                tasks = json.loads(said("status", "far", "--json"))["tasks"]
                return any(task["task"] == "worker:1" and task["step"] for task in tasks)

            wait_until(joined, "the worker of another machine to make steps")
        finally:
            for pid in tasks_of(rig, "h3"):  # it would wait for the server as long as the spec says
                with contextlib.suppress(ProcessLookupError):  # the end of one may have ended another one
                    kill(pid)
            worker.wait(60)
            said("stop", "far")
    command = dtrain("status", "far", "--json")
    assert (command.end(), json.loads(command.out)["state"]) == (4, "stopped")
    wait_until(lambda: not any(tasks_of(rig, name) for name in rig.names), "the hosts to be empty")
