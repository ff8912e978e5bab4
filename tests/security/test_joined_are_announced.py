"""A worker that joins, from wherever it comes, is announced, in the events, and has a row in `status`."""

import json

import pytest

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import RunSpec
from dtrain.messages import HeartbeatReply
from dtrain.messages.membership import TaskPhase, TaskStatus
from dtrain.process.assignment import TaskAssignment
from dtrain.runs.files import RunFiles, RunRecord, TaskRecord, write_record
from dtrain.runs.joined import JoinedFromElsewhere, JoinedRecord, arrival_text
from dtrain.runs.standalone import HandRun
from dtrain.runs.states import RunState, TaskState
from dtrain_cli.launch.join import JoinedWorkers
from dtrain_cli.runs.report import read_report

CLUSTER = ClusterSpec.from_lists(chief=["127.0.0.1:1"], worker=["127.0.0.1:2"], ps=["127.0.0.1:3"])
STRANGER = TaskId.parse("worker:77")


def reply(*heard_of: str, statuses=()) -> HeartbeatReply:
    return HeartbeatReply(
        incarnation=1, generation=1, version=5, ended=False, heard_of=heard_of, statuses=statuses
    )


def status(**facts) -> TaskStatus:
    return TaskStatus(str(STRANGER), 123, "machine-b", phase=TaskPhase.RUNNING, **facts)


@pytest.fixture
def files(tmp_path):
    files = RunFiles(tmp_path / "run")
    files.create()
    write_record(files.run, RunRecord("run", "run", RunState.RUNNING))
    return files


def rows(files) -> dict[str, tuple]:
    return {
        row["task"]: (row["host"], row["pid"], row["step"]) for row in read_report(files.directory)["tasks"]
    }


def test_a_launch_learns_of_workers_from_elsewhere_once(files):
    arrivals = JoinedWorkers(files, [])
    leader = JoinedFromElsewhere(files, CLUSTER)
    leader.update(reply("chief:0", "worker:0", "ps:0", "evaluator:0", "no task"))
    assert list(arrivals.new()) == []
    leader.update(reply("chief:0", str(STRANGER)))
    (record,) = arrivals.new()
    assert arrival_text(record) == "worker:77 has joined, and does not say from where"
    leader.update(reply(str(STRANGER), statuses=(status(step=7),)))
    assert list(arrivals.new()) == []
    assert rows(files) == {"worker:77": ("machine-b", 123, 7)}
    assert list(JoinedWorkers(files, []).new()) == [], "of an earlier launch"


def test_the_record_of_a_worker_s_own_command_stays(files):
    own = JoinedRecord(5, 1.0, TaskRecord(str(STRANGER), TaskState.STARTING, host="here", pid=6))
    files.task(STRANGER).mkdir(parents=True)
    write_record(files.joined(STRANGER), own)
    JoinedFromElsewhere(files, CLUSTER).update(reply(str(STRANGER), statuses=(status(),)))
    assert json.loads(files.joined(STRANGER).read_bytes())["owner_pid"] == 5


def test_by_hand_the_leader_announces_it_even_if_it_says_nothing_of_itself(tmp_path):
    assignment = TaskAssignment(
        TaskId.parse("chief:0"), CLUSTER, RunSpec(), "hand-x", run_dir=tmp_path / "run"
    )
    run = HandRun(assignment)
    try:
        assert run.update(reply("chief:0", str(STRANGER))) == [
            "worker:77 has joined, and does not say from where"
        ]
        assert run.update(reply("chief:0", str(STRANGER), "worker:78", statuses=(status(),))) == [
            "worker:77 is there",
            "worker:78 has joined, and does not say from where",
        ]
        assert {"worker:77", "worker:78"} <= rows(run.files).keys()
        events = [json.loads(line) for line in run.files.journal.read_text().splitlines()]
        assert [(each["event"], each["task"]) for each in events] == [
            ("joined", "worker:77"),
            ("joined", "worker:78"),
        ]
    finally:
        run.close(None)


def test_by_hand_a_worker_that_says_who_it_is_is_announced_once(tmp_path):
    run = HandRun(TaskAssignment(TaskId.parse("chief:0"), CLUSTER, RunSpec(), "r", run_dir=tmp_path / "run"))
    try:
        told = run.update(reply("chief:0", str(STRANGER), statuses=(status(),)))
        assert told == ["worker:77 has joined from machine-b (pid 123)"]
        assert run.update(reply("chief:0", str(STRANGER), statuses=(status(),))) == []
    finally:
        run.close(None)
