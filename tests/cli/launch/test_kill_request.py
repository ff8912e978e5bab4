"""Whose attempt is killed for being silent: never one that was started meanwhile."""

from pathlib import Path

from row_by_row import every_row

from dtrain.cluster import Role, TaskId
from dtrain.messages.membership import TaskStatus
from dtrain.runs.files import KillRequest, RunFiles, read_record, write_record
from dtrain_cli.launch.tasks import TaskLife, TaskState
from dtrain_cli.plan.run_plan import TaskLaunch

PS = TaskId(Role.PS, 1)


def life(folder, attempt):
    files = RunFiles(folder)
    files.task(PS).mkdir(parents=True)
    launch = TaskLaunch(PS, None, Path("p.py"), (), (), {}, folder, folder, needs_grpc=False, attempt=attempt)
    return files, TaskLife(launch, state=TaskState.RUNNING)


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
    files, task = life(tmp_path, 2)
    write_record(files.status(PS), TaskStatus("ps:1", 1, "here", attempt=2, monotonic_s=written_s))
    task.read_status()
    files.request_kill(PS, KillRequest("not heard of", heard, monotonic_s=100.0, silent_s=5.0))
    assert (task.kill_request(100.0) is not None) == ordered


def test_a_leader_asks_for_a_server_of_another_host_too(tmp_path):
    """There is no folder of such a task on its own host before."""
    files = RunFiles(tmp_path / "run")
    files.request_kill(PS, KillRequest("not heard of", 2))
    assert read_record(files.kill(PS), KillRequest) == KillRequest("not heard of", 2)


@every_row("written_s", [None, 1.0])
def test_one_that_is_only_starting_and_one_after_a_reboot_are_left_alone(tmp_path, written_s):
    files, task = life(tmp_path, 3)
    if written_s is not None:
        write_record(files.status(PS), TaskStatus("ps:1", 1, "here", attempt=3, monotonic_s=written_s))
        task.read_status()
    files.request_kill(PS, KillRequest("not heard of", 2, monotonic_s=9000.0, silent_s=5.0))
    assert task.kill_request(2.0) is None


@every_row(
    "heard_s, written_s, ordered",
    [
        (99.0, 93.0, False),  # the cable of its host is cut
        (100.5, 99.8, False),  # it was, and what was held back has come
        (104.0, 103.5, False),
        (100.5, 93.0, True),  # the host is heard, and the task is not
    ],
)
def test_on_another_host_only_one_that_stands_still_while_its_host_is_heard(
    tmp_path, heard_s, written_s, ordered
):
    files, task = life(tmp_path, 2)
    write_record(files.status(PS), TaskStatus("ps:1", 1, "h2", attempt=2, monotonic_s=written_s))
    task.read_status()
    files.request_kill(PS, KillRequest("not heard of", None, monotonic_s=100.0, silent_s=5.0))
    assert (task.kill_request(heard_s) is not None) == ordered
