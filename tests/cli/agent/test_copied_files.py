"""An agent tells what its tasks write: records once, then what changes; files that grow, piece by piece."""

import json

import pytest
from row_by_row import every_row

from dtrain.cluster import TaskId
from dtrain.runs.files import RunFiles
from dtrain_cli.agent.copies import PIECE_BYTES, CopiedFiles, grows, is_record
from dtrain_cli.agent.messages import Appended, Replaced

WORKER = TaskId.parse("worker:1")


@pytest.fixture
def files(tmp_path):
    files = RunFiles(tmp_path)
    files.attempt(WORKER, 0).mkdir(parents=True)
    return files


def write(path, **fields):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_text(json.dumps(fields))
    path.with_suffix(".new").replace(path)


def test_a_status_is_told_once_and_then_what_changes(files):
    copied = CopiedFiles(files.directory, {})
    copied.follow(WORKER, 0)
    write(files.status(WORKER), task=str(WORKER), pid=1, host="", attempt=0, step=1, loss=2.0)
    (first,) = copied.news()
    assert isinstance(first, Replaced)
    assert first.path == "tasks/worker-1/status.json"
    assert list(copied.news()) == []
    write(files.status(WORKER), task=str(WORKER), pid=1, host="", attempt=0, step=2, loss=2.0)
    assert [each.record()["step"] for each in copied.news()] == [2]
    write(files.status(WORKER), task=str(WORKER), pid=1, host="", attempt=1, step=2, loss=2.0)
    assert isinstance(next(copied.news()), Replaced)


def test_a_log_is_told_in_pieces_and_not_again(files):
    copied = CopiedFiles(files.directory, {})
    copied.follow(WORKER, 0)
    log = files.log(WORKER, 0)
    log.write_bytes(b"x" * (PIECE_BYTES + 3))
    assert [len(each.data) for each in copied.news()] == [PIECE_BYTES]
    assert list(copied.rest(WORKER)) == [Appended("tasks/worker-1/attempt-0/output.log", b"xxx")]
    assert list(copied.news()) == []


def test_a_new_agent_goes_on_where_the_earlier_one_was_heard_last(files):
    files.log(WORKER, 0).write_bytes(b"heard, unheard")
    copied = CopiedFiles(files.directory, {"tasks/worker-1/attempt-0/output.log": 7})
    copied.follow(WORKER, 0)
    assert [each.data for each in copied.news()] == [b"unheard"]


def test_a_leaders_order_to_kill_a_server_of_another_host_is_told(files):
    copied = CopiedFiles(files.directory, {})
    write(files.kill(TaskId.parse("ps:3")), reason="it does not answer")
    told = [each.path for _ in range(8) for each in copied.news()]
    assert told == ["tasks/ps-3/kill.json"]


@every_row(
    "path",
    ["../evil", "/etc/passwd", "run.json", "join.json", "tasks/../run.json", "tasks/ps-0/attempt-0/x.json"],
)
def test_no_other_file_is_copied(path):
    assert not is_record(path)
    assert not grows(path)


def test_a_timesheet_is_told_now_and_then_and_as_its_task_ends(files):
    copied = CopiedFiles(files.directory, {})
    copied.follow(WORKER, 0)
    sheet = files.seconds(WORKER, 0, 0)
    sheet.write_bytes(b"\xff\x00 first")
    assert is_record("tasks/worker-1/attempt-0/seconds-0.bin")
    told = [each for _ in range(60) for each in copied.news()]
    assert set(told) == {Replaced("tasks/worker-1/attempt-0/seconds-0.bin", b"\xff\x00 first")}
    assert 2 <= len(told) <= 4
    sheet.write_bytes(b"\xff\x00 last.")  # as memory is written: nothing but the bytes need change
    assert list(copied.rest(WORKER)) == [
        Replaced("tasks/worker-1/attempt-0/seconds-0.bin", b"\xff\x00 last.")
    ]
