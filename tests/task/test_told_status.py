"""What the leader writes down of tasks on other machines, from what the control host has heard of them."""

import os

import pytest

from dtrain.messages.membership import TaskPhase, TaskStatus, by_clock
from dtrain.runs.files import TaskRecord
from dtrain.runs.joined import note
from dtrain.runs.self_report import EVERY_S, OwnUsage
from dtrain.runs.states import TaskState

HERE_S, THERE_S = 50.0, 300_000.0


def test_times_of_another_machine_are_told_by_the_clock_of_this_one():
    said = TaskStatus(
        "worker:0", 7, "there", monotonic_s=THERE_S, progress_monotonic_s=THERE_S - 4, silent_s=1.5
    )
    told = by_clock(said, HERE_S)
    assert (told.monotonic_s, told.progress_monotonic_s) == (HERE_S - 1.5, HERE_S - 5.5)


def test_a_task_without_a_step_has_no_time_of_one():
    assert (
        by_clock(TaskStatus("worker:0", 7, "there", monotonic_s=THERE_S), HERE_S).progress_monotonic_s == 0.0
    )


def test_a_task_whose_lease_has_run_out_has_failed_until_it_is_back():
    record = TaskRecord("worker:0")
    said = TaskStatus("worker:0", 7, "there", phase=TaskPhase.RUNNING, silent_s=40.2, lost=True)
    note(record, said)
    assert (record.state, record.message) == (TaskState.FAILED, "has not been heard of for 40 s")
    said.lost = False
    note(record, said)
    assert (record.state, record.message) == (TaskState.RUNNING, None)


@pytest.mark.parametrize(("code", "state"), [(0, TaskState.SUCCEEDED), (143, TaskState.STOPPED)])
def test_a_task_that_has_ended_is_not_lost(code, state):
    record = TaskRecord("worker:0")
    message = None if code == 0 else "asked to stop"
    said = TaskStatus(
        "worker:0", 7, "there", phase=TaskPhase.FINISHED, exit_code=code, message=message, lost=True
    )
    note(record, said)
    assert record.state is state


def test_a_process_measures_itself():
    usage = OwnUsage(0.0)
    assert not usage.is_due(EVERY_S - 0.1)
    assert usage.is_due(EVERY_S)
    before = os.times()
    sum(range(1_000_000))
    percent, memory = usage.measure(EVERY_S)
    used_s = (os.times().user + os.times().system) - (before.user + before.system)
    assert 0 <= percent <= 100 * (used_s + 0.1) / EVERY_S + 1
    assert memory > 5_000_000
    assert not usage.is_due(EVERY_S + 1)
