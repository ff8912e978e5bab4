"""`dtrain chaos`: what it does to real tasks, and what it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from launching import wait_until

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import RunSpec, SimulateSection
from dtrain.messages.membership import TaskStatus
from dtrain.process.assignment import TaskAssignment
from dtrain.process.life_line import started_s
from dtrain.runs.files import RunFiles, RunRecord, Slowdown, TaskRecord, write_record
from dtrain.runs.reporting import Reporter

PACED = str(Path(__file__).parents[2] / "clusters" / "paced_line.py")
SLEEPER = [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"]
WORKER = TaskId.parse("worker:0")


def chaos(launcher, *words):
    """(exit code, stderr) of one command."""
    command = launcher.dtrain("chaos", *map(str, words))
    return command.end(), command.err


@pytest.fixture
def sleeper():
    with subprocess.Popen(SLEEPER, stdout=subprocess.PIPE, start_new_session=True) as process:
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def run_of(tmp_path):
    """A run directory whose launcher is this process and whose worker:0 is `pid`."""

    def make(pid, state="running", task_state="running", launcher=None):
        files = RunFiles(tmp_path / "runs" / "r1")
        files.attempt(WORKER, 0).mkdir(parents=True)
        record = RunRecord(
            "r1", "digits", state, tasks=[TaskRecord("worker:0", task_state, pid=pid), TaskRecord("ps:0")]
        )
        record.launcher_pid = launcher or os.getpid()
        record.launcher_started = started_s(record.launcher_pid)
        write_record(files.run, record)
        return files

    return make


def test_killed_paused_and_resumed_training_goes_on(launcher):
    launch = launcher.start("--ps", "1", "--set", "restart.worker.backoff_s=0", PACED)
    launch.wait_running()
    paused = launch.task("worker:1")["pid"]
    assert chaos(launcher, launch.run_dir, "pause", "worker:1") == (0, "worker:1 paused\n")
    wait_until(lambda: psutil.Process(paused).status() == psutil.STATUS_STOPPED)
    assert chaos(launcher, launch.run_dir, "resume", "worker:1") == (0, "worker:1 resumed\n")
    wait_until(lambda: psutil.Process(paused).status() != psutil.STATUS_STOPPED)
    killed = launch.task("worker:0")["pid"]
    assert chaos(launcher, launch.run_dir, "kill", "/job:worker/task:0") == (0, "worker:0 killed\n")
    launch.wait_for(
        lambda: launch.task("worker:0")["state"] == "running" and launch.task("worker:0")["restarts"] == 1,
        "restart",
    )
    assert launch.task("worker:0")["pid"] != killed
    assert launch.task("worker:1")["pid"] == paused
    status = RunFiles(launch.run_dir).status(TaskId.parse("worker:1"))
    launch.wait_for(lambda: json.loads(status.read_text())["step_s"], "no step is measured")
    code, said = chaos(launcher, launch.run_dir, "slow", "worker:1", "7")
    assert code == 0
    cost = r"a step computes ([\d.]+) ms of ([\d.]+): x 7 makes it up to ([\d.]+)"
    numbers = re.fullmatch(rf"worker:1 computes 7 times slower: {cost}\n", said)
    assert numbers, said
    computes, takes, slow_takes = map(float, numbers.groups())
    assert 0 < computes < takes < slow_takes
    slow = RunFiles(launch.run_dir).slow(TaskId.parse("worker:1"), 0)
    assert json.loads(slow.read_text()) == {"factor": 7.0}
    code, said = chaos(launcher, launch.run_dir, "slow", "worker:1", "9", "--for", "0.1")
    first, second = said.splitlines()
    assert (code, second) == (0, "worker:1 computes as its spec says")
    assert first.startswith("worker:1 computes 9 times slower: a step computes ")
    assert not slow.exists()
    assert [(event["task"], event["action"]) for event in launch.events("chaos")] == [
        ("worker:1", "pause"),
        ("worker:1", "resume"),
        ("worker:0", "kill"),
        *[("worker:1", "slow")] * 3,
    ]
    launch.send(signal.SIGTERM)
    assert launch.end() == 143
    launch.wait_gone()


def test_a_foreign_command_can_be_paused_for_a_while_and_not_slowed(launcher):
    launch = launcher.start("--set", "cluster.chief=1", "--workers", "0", "--ps", "0", "--", *SLEEPER)
    launch.wait_running()
    assert chaos(launcher, launch.run_dir, "pause", "chief:0", "--for", "0.05") == (
        0,
        "chief:0 paused\nchief:0 resumed\n",
    )
    code, err = chaos(launcher, launch.run_dir, "slow", "chief:0", "2")
    assert (code, "can be killed, paused and resumed, but not slowed down" in err) == (1, True)
    assert chaos(launcher, launch.run_dir, "kill", "chief:0")[0] == 0
    assert launch.end() == 137
    launch.wait_gone()


def test_a_stranger_with_the_pid_of_a_task_is_left_alone(launcher, run_of, sleeper):
    other = subprocess.Popen(SLEEPER, stdout=subprocess.PIPE)
    run_of(sleeper.pid, launcher=other.pid)
    code, err = chaos(launcher, "r1", "kill", "worker:0")
    assert (code, sleeper.poll()) == (1, None)
    assert err.startswith(
        f"dtrain: process {sleeper.pid} was not started by the launcher of run r1; nothing was done to it"
    )
    other.kill()
    other.communicate()


def test_what_leads_no_session_is_no_task(launcher, run_of):
    with subprocess.Popen(SLEEPER, stdout=subprocess.PIPE) as process:
        run_of(process.pid)
        assert chaos(launcher, "r1", "kill", "worker:0")[0] == 1
        assert process.poll() is None
        process.kill()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("nothing", "kill", "worker:0"), 3, "no run with the id, name or path 'nothing'"),
        (("r1", "kill", "worker:9"), 2, "run r1 has no worker:9; it has worker:0, ps:0"),
        (("r1", "kill", "ps:0"), 1, "ps:0 of run r1 is not running: it is pending"),
        (("r1", "kill", "worker"), 2, "'worker' is not a task"),
        (("r1", "shoot", "worker:0"), 2, "'shoot' is not one of 'kill', 'pause', 'resume', 'slow'"),
        (("r1", "slow", "worker:0"), 2, "slow needs a FACTOR"),
        (("r1", "slow", "worker:0", "0.5"), 2, "expected a FACTOR of at least 1, found 0.5"),
        (("r1", "slow", "worker:0", "nan"), 2, "expected a FACTOR of at least 1, found nan"),
        (("r1", "kill", "worker:0", "3"), 2, "kill takes no FACTOR; found 3"),
        (("r1", "kill", "worker:0", "--for", "3"), 2, "--for belongs to pause and slow, not to kill"),
        (("r1",), 2, "expected RUN ACTION TASK, or --campaign FILE alone"),
    ],
)
def test_what_is_refused(launcher, run_of, sleeper, words, code, text):
    run_of(sleeper.pid)
    found, err = chaos(launcher, *words)
    assert (found, text in err) == (code, True), err
    assert sleeper.poll() is None


@pytest.mark.parametrize("state", ["succeeded", "failed", "stopped"])
def test_a_run_that_has_ended_is_left_alone(launcher, run_of, sleeper, state):
    run_of(sleeper.pid, state=state)
    assert chaos(launcher, "r1", "kill", "worker:0") == (
        1,
        f"dtrain: run r1 has {state}; chaos needs a running one\n",
    )


def test_a_run_without_a_launcher_is_left_alone(launcher, run_of, sleeper):
    files = run_of(sleeper.pid)
    record = json.loads(files.run.read_text()) | {"launcher_started": 1.0}
    files.run.write_text(json.dumps(record))
    code, err = chaos(launcher, "digits", "pause", "worker:0")
    assert (code, err) == (1, "dtrain: run r1 is stale: its launcher has died, and its tasks with it\n")


def test_an_order_to_be_slow_replaces_the_spec_s_word_while_it_is_there(tmp_path, monkeypatch):
    cluster = ClusterSpec.from_lists(worker=["localhost:1"], ps=["localhost:2"])
    spec = RunSpec(simulate=SimulateSection(slow={"worker:0": 3.0}))
    files = RunFiles(tmp_path)
    files.attempt(WORKER, 2).mkdir(parents=True)
    reporter = Reporter(TaskAssignment(WORKER, cluster, spec, "run", tmp_path, attempt=2))
    reporter.close()
    slept = []
    monkeypatch.setattr("dtrain.runs.reporting.time.sleep", slept.append)
    monkeypatch.setattr("dtrain.runs.reporting.time.thread_time", lambda: 7.0)
    for factor in (None, 5.0, 1.0, None):
        files.slow(WORKER, 2).unlink(missing_ok=True)
        if factor is not None:
            write_record(files.slow(WORKER, 2), Slowdown(factor))
        reporter._read_order()
        reporter.slow_down(6.0)
    files.slow(WORKER, 2).write_text("{")
    reporter._read_order()
    reporter.slow_down(6.0)
    assert slept == [2.0, 4.0, 2.0, 2.0]
    assert reporter.begins() == 7.0


def test_an_earlier_attempt_s_word_does_not_count(launcher, run_of, sleeper):
    files = run_of(sleeper.pid)
    write_record(files.status(WORKER), TaskStatus("worker:0", 1, "here", attempt=7))
    assert chaos(launcher, "r1", "slow", "worker:0", "2")[0] == 1
