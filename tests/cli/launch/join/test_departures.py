"""The line of a launch about a joined worker that is gone, and which of them count as lost."""

import os

import pytest

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.messages import HeartbeatReply
from dtrain.messages.membership import TaskPhase, TaskStatus
from dtrain.process.life_line import started_s
from dtrain.runs.files import RunFiles, RunRecord, TaskRecord, write_record
from dtrain.runs.joined import JoinedFromElsewhere, JoinedRecord
from dtrain.runs.states import TaskState
from dtrain_cli.launch.join import JoinedWorkers, departure_text
from dtrain_cli.runs.report import lost_tasks, lost_texts, read_report

WORKER = TaskId.parse("worker:2")
CLUSTER = ClusterSpec.from_lists(chief=["a:1"], worker=["a:2", "a:3"], ps=["a:4"])


@pytest.mark.parametrize(
    ("state", "code", "message", "line"),
    [
        ("stopped", 130, None, "worker:2 has left, asked by SIGINT (Ctrl-C)"),
        ("stopped", 143, None, "worker:2 has left, asked by SIGTERM"),
        ("stopped", 130, "killed by SIGKILL", "worker:2 has stopped: killed by SIGKILL"),
        ("stopped", None, None, "worker:2 has left: the command that owned it has ended"),
        ("stopped", 900, None, "worker:2 has left: the command that owned it has ended"),
        ("failed", 1, "ValueError: bad batch\nat line 3", "worker:2 has failed: ValueError: bad batch"),
    ],
)
def test_each_worker_that_goes_is_named_once(tmp_path, state, code, message, line):
    files = RunFiles(tmp_path)
    files.task(WORKER).mkdir(parents=True)
    record = TaskRecord(str(WORKER), "running", pid=7, host=os.uname().nodename)
    joined = JoinedRecord(os.getpid(), started_s(os.getpid()), record)
    arrivals = JoinedWorkers(files, [])
    write_record(files.joined(WORKER), joined)
    assert [each.task for each in arrivals.new()] == ["worker:2"]
    assert list(arrivals.lost()) == []
    record.state, record.exit_code, record.message = TaskState(state), code, message
    write_record(files.joined(WORKER), joined)
    assert [departure_text(each) for each in arrivals.lost()] == [line]
    assert list(arrivals.lost()) == []


def test_a_worker_that_ends_with_the_run_is_not_named(tmp_path):
    files = RunFiles(tmp_path)
    files.task(WORKER).mkdir(parents=True)
    arrivals = JoinedWorkers(files, [])
    write_record(
        files.joined(WORKER), JoinedRecord(0, 0.0, TaskRecord(str(WORKER), "succeeded", exit_code=0))
    )
    assert len(list(arrivals.new())) == 1
    assert list(arrivals.lost()) == []


@pytest.mark.parametrize(
    ("code", "state", "lost"),
    [(143, TaskState.STOPPED, []), (1, TaskState.FAILED, ["worker:2 failed: its reason"])],
)
def test_a_worker_from_elsewhere_that_was_asked_to_leave_is_no_loss(tmp_path, code, state, lost):
    files = RunFiles(tmp_path)
    write_record(files.run, RunRecord("run", "run"))
    said = TaskStatus(str(WORKER), 7, "there", phase=TaskPhase.FINISHED, exit_code=code, message="its reason")
    reply = HeartbeatReply(incarnation=1, generation=1, version=5, ended=False, statuses=(said,))
    JoinedFromElsewhere(files, CLUSTER).update(reply)
    report = read_report(files.directory)
    assert [task["state"] for task in report["tasks"]] == [state]
    assert [text.partition(" (log")[0] for text in lost_texts(lost_tasks(report))] == lost
