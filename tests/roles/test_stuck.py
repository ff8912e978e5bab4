"""Which replicas are stuck, and the order to kill them."""

import pytest

from dtrain.cluster import TaskId
from dtrain.messages.status import TaskPhase, TaskStatus
from dtrain.roles.collective.stuck import StuckReplicas, is_stuck
from dtrain.runs.files import KillRequest, RunFiles, read_record, write_record
from dtrain.runs.self_report.activity import Activity

NOW_S = 1000.0
STALL_S = 30.0
CHIEF, WORKER, OTHER = map(TaskId.parse, ("chief:0", "worker:0", "worker:1"))


def said(task=WORKER, *, heard=1.0, active=1.0, **fields):
    """What a task has said, and done, so many seconds ago."""
    return TaskStatus(
        str(task),
        1,
        "here",
        **{"phase": TaskPhase.RUNNING, "attempt": 2} | fields,
        monotonic_s=NOW_S - heard,
        active_monotonic_s=NOW_S - active,
    )


@pytest.mark.parametrize(
    ("status", "stuck"),
    [
        (said(active=31), True),  # it lives, and does nothing
        (said(active=29), False),
        (said(active=900, busy_with="validation"), False),
        (said(active=900, busy_with="Halve"), False),
        (said(active=900, waiting_for="worker:1, gradient of step 3"), False),
        (said(heard=31, active=31), True),  # the whole process stands still
        (said(heard=31, active=31, busy_with="validation"), True),
        (said(heard=31, active=31, waiting_for="chief:0"), True),
        (said(heard=900, active=900, phase=TaskPhase.STARTING), False),
        (said(heard=900, active=900, phase=TaskPhase.FINISHED), False),
    ],
)
def test_a_replica_is_stuck_if_it_does_nothing(status, stuck):
    assert is_stuck(status, NOW_S, STALL_S) is stuck


def ordered(tmp_path, awaited, waited_s, *statuses):
    files = RunFiles(tmp_path)
    for status in statuses:
        files.attempt(TaskId.parse(status.task), status.attempt).mkdir(parents=True)
        write_record(files.status(TaskId.parse(status.task)), status)
    StuckReplicas(tmp_path, CHIEF, STALL_S, clock=lambda: NOW_S).look(awaited, waited_s)
    found = {task: files.kill(task, 2) for task in (CHIEF, WORKER, OTHER)}
    return {str(task): read_record(path, KillRequest) for task, path in found.items() if path.exists()}


def test_one_that_is_awaited_and_stuck_is_killed_by_name_of_what_is_missing(tmp_path):
    awaited = "worker:0, worker:1, gradient of step 311"
    orders = ordered(tmp_path, awaited, 30.2, said(WORKER, active=40), said(OTHER, active=2))
    assert orders == {"worker:0": KillRequest(f"chief:0 has waited 30 s for {awaited}, and it does nothing")}


def test_nobody_is_killed_before_the_others_have_waited_so_long(tmp_path):
    assert not ordered(tmp_path, "worker:0, gradient of step 3", 29.9, said(active=40))


def test_a_task_that_has_not_reported_or_that_waits_itself_is_left_alone(tmp_path):
    assert not ordered(tmp_path, "worker:0, chief:0, ps:0, gradient of step 3", 99, said(CHIEF, active=99))


def test_a_callback_of_any_length_is_work_and_ends_as_such():
    activity = Activity()
    activity.at_s = 0.0
    with activity.busy("validation"):
        with activity.busy("on_test_batch_end"):
            assert activity.busy_with == "on_test_batch_end"
        assert activity.busy_with == "validation"
        activity.at_s = 0.0
    assert activity.busy_with is None
    assert activity.at_s > 0
    activity.at_s = 0.0
    assert activity.after(divmod)(7, 2) == (3, 1)
    assert activity.at_s > 0
