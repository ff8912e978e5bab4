"""Workers that have joined a run, as its launcher and the commands that look at it see them."""

import signal
import socket
import subprocess
import sys

import pytest

from dtrain.cluster import TaskId
from dtrain.process.life_line import lives, started_s
from dtrain.runs.files import RunFiles, TaskRecord, write_record
from dtrain.runs.joined import JoinedRecord
from dtrain.runs.states import RunState
from dtrain_cli.launch.join import JoinedWorkers
from dtrain_cli.runs.report import joined_records, with_joined

WORKER = TaskId.parse("worker:2")


@pytest.fixture
def owner():
    """A command that owns a worker, until it is told to stop."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def files(tmp_path, owner):
    files = RunFiles(tmp_path)
    files.task(WORKER).mkdir(parents=True)
    join(files, owner)
    return files


def join(files, owner, state="running", host=None, started=None):
    task = TaskRecord("worker:2", state, pid=77, host=host or socket.gethostname())
    write_record(files.joined(WORKER), JoinedRecord(owner.pid, started or started_s(owner.pid), task))


def test_a_joined_worker_is_told_to_stop_through_its_owner(files, owner):
    joined = JoinedWorkers(files, [])
    [told] = joined.remaining()
    assert (told.task, told.stop_s) == (WORKER, None)
    joined.signal(WORKER, signal.SIGTERM, 5.0)
    assert owner.wait() == -signal.SIGTERM
    assert joined.remaining() == []
    joined.signal(WORKER, signal.SIGKILL, 6.0)


def test_when_it_was_told_is_remembered(files, owner):
    joined = JoinedWorkers(files, [])
    joined.signal(WORKER, 0, 5.0)
    joined.signal(WORKER, 0, 6.0)
    assert [told.stop_s for told in joined.remaining()] == [5.0]


def test_a_process_that_nobody_has_reaped_does_not_live(files, owner):
    started = started_s(owner.pid)
    assert lives(owner.pid, started)
    assert not lives(owner.pid, started + 1.0), "another process of that pid"
    owner.kill()
    while owner.returncode is None and lives(owner.pid, started):
        pass
    assert started_s(owner.pid) == started, "it is still in the table of processes"
    assert JoinedWorkers(files, []).remaining() == []


def test_a_worker_whose_owner_was_killed_has_stopped(files, owner):
    assert [record.task.state for record in joined_records(files)] == ["running"]
    owner.kill()
    owner.wait()
    assert [record.task.state for record in joined_records(files)] == ["stopped"]


@pytest.mark.parametrize("stranger", [{"host": "elsewhere"}, {"started": 1.0}])
def test_a_pid_of_another_machine_or_time_is_left_alone(files, owner, stranger):
    join(files, owner, **stranger)
    joined = JoinedWorkers(files, [])
    assert joined.remaining() == []
    joined.signal(WORKER, signal.SIGKILL, 5.0)
    assert owner.poll() is None


@pytest.mark.parametrize(
    ("ended", "shown"), [(None, "running"), ("succeeded", "succeeded"), ("failed", "stopped")]
)
def test_a_worker_from_elsewhere_has_ended_when_the_run_has(files, ended, shown):
    write_record(files.joined(WORKER), JoinedRecord(0, 0.0, TaskRecord("worker:2", "running", host="b")))
    [worker] = with_joined(files, [], ended and RunState(ended))
    assert worker.state == shown


def test_its_own_record_replaces_what_others_have_heard_of_it(files):
    heard = [TaskRecord("chief:0", "running"), TaskRecord("worker:2", "succeeded")]
    assert [(task.task, task.state) for task in with_joined(files, heard)] == [
        ("chief:0", "running"),
        ("worker:2", "running"),
    ]


def test_a_damaged_record_ends_nobody(files):
    files.joined(WORKER).write_text("{")
    assert JoinedWorkers(files, []).remaining() == []
    assert with_joined(files, [TaskRecord("chief:0")]) == [TaskRecord("chief:0")]
