"""Whose attempt is killed for being silent: never one that was started meanwhile."""

from row_by_row import every_row

from dtrain.cluster import Role, TaskId
from dtrain.messages.membership import TaskStatus
from dtrain.roles.chief.driver import request_kill
from dtrain.runs.files import KillRequest, RunFiles, read_record, write_record

PS = TaskId(Role.PS, 1)


@every_row(
    "written_s, heard, ordered",
    [
        (99.9, 2, True),  # it writes its status, and yet does not answer
        (94.0, None, True),  # it stands still, and this chief has never heard of it
        (94.0, 1, True),
        (99.9, 1, False),  # the next attempt has just come up
        (99.9, None, False),
    ],
)
def test_the_attempt_that_is_silent(tmp_path, written_s, heard, ordered):
    files = RunFiles(tmp_path)
    files.attempt(PS, 2).mkdir(parents=True)
    write_record(files.status(PS), TaskStatus("ps:1", 1, "here", attempt=2, monotonic_s=written_s))
    request_kill(tmp_path, PS, heard, "not heard of", now_s=100.0, lease_s=5.0)
    assert read_record(files.kill(PS, 2), KillRequest) == (KillRequest("not heard of") if ordered else None)


def test_one_that_is_only_starting_is_left_alone(tmp_path):
    request_kill(tmp_path, PS, 0, "not heard of", now_s=100.0, lease_s=5.0)
    assert not RunFiles(tmp_path).task(PS).exists()
