"""Tasks that a run loses: which end it, which it survives, and what is said of them at the end."""

import signal

import pytest
from cli.launch.fake_launch import SPEC, FakeTarget, TaskScript, lost, perform, state
from msgspec.structs import replace

from dtrain.cluster import Role, TaskId
from dtrain.config import training_section
from dtrain.runs.files import RunFiles, SavedRecord, write_record
from dtrain.runs.states import FailureKind, RunState


@pytest.mark.parametrize(("updates", "state"), [("sync", "failed"), ("async", "succeeded")])
def test_whether_a_run_survives_without_a_worker_follows_what_the_program_wished(tmp_path, updates, state):
    wished = replace(SPEC, training=training_section(updates=updates))
    write_record(RunFiles(tmp_path).spec, wished)  # as the leader does when its program has spoken
    _, outcome = perform(
        tmp_path, FakeTarget({"worker:0": TaskScript(1, status=2), "chief:0": TaskScript(20)})
    )
    assert outcome.state == state


def test_a_damaged_spec_in_the_run_directory_changes_nothing(tmp_path):
    RunFiles(tmp_path).spec.write_text("{")
    _, outcome = perform(
        tmp_path, FakeTarget({"worker:0": TaskScript(1, status=2), "chief:0": TaskScript(20)})
    )
    assert outcome.state == "succeeded"


def test_a_worker_that_was_lost_on_the_way_is_named_at_the_end(tmp_path):
    crash = TaskScript(1, status=1, record=(0.9, "ValueError: bad batch\nof many", "exception"))
    supervisor, outcome = perform(
        tmp_path, FakeTarget({"worker:1": crash, "chief:0": TaskScript(5), "worker:0": TaskScript(5)})
    )
    assert outcome.state == "succeeded"
    assert lost(supervisor) == "worker:1 failed at step 9: ValueError: bad batch (log: its.log)"
    messages = {record.task: record.message for record in supervisor._journal.record.tasks}
    assert messages.pop("worker:1") == "ValueError: bad batch\nof many"
    assert set(messages.values()) == {None}


def test_those_that_were_lost_for_the_same_reason_are_named_together(tmp_path):
    crash = TaskScript(1, status=1, record=(0.9, "ValueError: bad batch", "exception"))
    supervisor, _ = perform(
        tmp_path,
        FakeTarget({"worker:0": crash, "worker:1": crash, "evaluator:0": crash, "chief:0": TaskScript(5)}),
    )
    assert lost(supervisor) == (
        "worker:0 failed at step 9: ValueError: bad batch (log: its.log), likewise worker:1, evaluator:0"
    )


def test_a_worker_that_leaves_in_the_midst_of_a_fit_has_failed_whatever_its_exit_code(tmp_path):
    target = FakeTarget(
        {
            "worker:1": TaskScript(1, fits=(1, 0)),
            "worker:0": TaskScript(5, fits=(1, 1)),
            "chief:0": TaskScript(5, fits=(1, 1)),
        }
    )
    supervisor, outcome = perform(tmp_path, target)
    assert (outcome.state, state(supervisor, "worker:0"), state(supervisor, "worker:1")) == (
        "succeeded",
        "succeeded",
        "failed",
    )
    assert target.said[0] == (
        "worker:1 has failed: left before the last step, with exit code 0; training continues without it"
    )
    assert "worker:1 failed at step 9: left before the last step, with exit code 0" in lost(supervisor)


def test_a_worker_that_leaves_before_the_others_next_fit_has_failed(tmp_path):
    target = FakeTarget(
        {
            "worker:1": TaskScript(1, fits=(1, 1)),
            "worker:0": TaskScript(5, fits=(2, 2)),
            "chief:0": TaskScript(5, fits=(2, 2)),
        }
    )
    supervisor, _ = perform(tmp_path, target)
    assert [state(supervisor, f"worker:{index}") for index in (0, 1)] == ["succeeded", "failed"]
    assert "left before call 2 of fit, which others have begun, with exit code 0" in lost(supervisor)


def test_where_every_replica_is_needed_the_run_ends_at_once_when_one_leaves(tmp_path):
    spec = replace(SPEC, training=training_section(updates="sync"))
    target = FakeTarget(
        {
            "worker:1": TaskScript(1, fits=(1, 0)),
            "worker:0": TaskScript(fits=(1, 0)),
            "chief:0": TaskScript(fits=(1, 0)),
        }
    )
    _, outcome = perform(tmp_path, target, spec)
    assert (outcome.state, outcome.exit_code, outcome.failure.task) == ("failed", 1, "worker:1")
    assert target.now_s < 1005


def test_a_leader_that_leaves_in_the_midst_of_a_fit_has_failed(tmp_path):
    _, outcome = perform(tmp_path, FakeTarget({"chief:0": TaskScript(1, fits=(1, 0))}))
    assert (outcome.state, outcome.exit_code, outcome.failure.task) == ("failed", 1, "chief:0")


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (
            TaskScript(4, status=1, record=(1, "ValueError: x", "exception")),
            "failed",
        ),  # it crashed long before it was gone
        (
            TaskScript(3.5, status=1, record=(3.4, "KeyError: 'val_loss'", "exception")),
            "failed",
        ),  # after the leader, by itself
        (TaskScript(3.5, status=-11), "failed"),
        (TaskScript(), "succeeded"),  # it is told to stop, and does
        (TaskScript(3.5), "succeeded"),
    ],
)
def test_a_task_that_crashed_is_never_recorded_as_succeeded(tmp_path, end, found):
    supervisor, outcome = perform(
        tmp_path, FakeTarget({"chief:0": TaskScript(3), "worker:0": TaskScript(3), "worker:1": end})
    )
    assert outcome.state == "succeeded"
    assert state(supervisor, "worker:1") == found
    assert ("worker:1 failed" in lost(supervisor)) == (found == "failed")


def test_a_worker_that_somebody_else_told_to_stop_is_stopped_and_not_started_again(tmp_path):
    told = TaskScript(1, status=143, record=(0.9, "asked to stop (SIGTERM)", "signal"))
    supervisor, outcome = perform(
        tmp_path, FakeTarget({"worker:1": told, "worker:0": TaskScript(9), "chief:0": TaskScript(9)})
    )
    life = supervisor.lives[TaskId.parse("worker:1")]
    assert (outcome.state, life.state, life.restarts) == ("succeeded", "stopped", 0)
    assert lost(supervisor) == "worker:1 was stopped at step 9: asked to stop (SIGTERM) (log: its.log)"


@pytest.mark.parametrize("role", list(Role))
def test_whose_failure_for_good_ends_a_program(tmp_path, role):
    target = FakeTarget(
        {
            f"{role}:0": TaskScript(1, status=3),
            "chief:0": TaskScript(2, status=3 if role is Role.CHIEF else 0),
        }
    )
    _, outcome = perform(tmp_path, target)
    assert outcome.exit_code == (0 if role in (Role.WORKER, Role.EVALUATOR) else 3)


def test_a_task_that_misses_those_that_were_stopped_before_it_is_stopped(tmp_path):
    gone = TaskScript(2.05, status=1, record=(2.04, "PeerLostError: worker:0 has ended", "peer_lost"))
    target = FakeTarget({"chief:0": gone}, signals_to_launcher=[(2.0, signal.SIGINT)])
    supervisor, outcome = perform(tmp_path, target)
    assert (outcome.state, outcome.exit_code) == ("stopped", 130)
    assert state(supervisor, "chief:0") == "stopped"
    assert lost(supervisor) == ""


def test_a_cause_is_named_before_those_who_missed_the_task_that_had_it(tmp_path):
    missed = TaskScript(1, status=1, record=(0.9, "PeerLostError: worker:0 has ended", "peer_lost"))
    cause = TaskScript(1, status=1, record=(0.95, "ValueError: bad batch", "exception"))
    tasks = {"worker:1": missed, "worker:0": cause, "chief:0": TaskScript(5)}
    supervisor, _ = perform(tmp_path, FakeTarget(tasks))
    assert lost(supervisor).startswith(
        "worker:0 failed at step 9: ValueError: bad batch (log: its.log); worker:1"
    )


CHIEF_SAVES = {"chief:0": TaskScript(saved_step=7)}


MIRRORED = replace(SPEC, training=training_section(strategy="multi_worker_mirrored"))
WITHOUT = "h2 is lost; training goes on, and it is awaited for"


@pytest.mark.parametrize(
    ("tasks", "spec"),
    [
        (("worker:0", "worker:1"), SPEC),
        (("worker:1", "evaluator:0"), SPEC),
        (("worker:1",), replace(SPEC, training=training_section(updates="sync"))),
        (("chief:0", "worker:1"), MIRRORED),
    ],
)
def test_training_goes_on_without_a_lost_host_whose_tasks_start_again_when_it_is_back(tmp_path, tasks, spec):
    stays = {"chief:0": TaskScript(200), "worker:0": TaskScript(200)}
    target = FakeTarget(stays, later=stays, lost=((3.0, tasks, {}),), back_s=120.0)
    supervisor, outcome = perform(tmp_path, target, spec)
    assert outcome.state is RunState.SUCCEEDED
    assert f"{WITHOUT} {', '.join(tasks)}" in target.said
    for task in tasks:
        assert supervisor.lives[TaskId.parse(task)].restarts == 1
    assert lost(supervisor) == ""


def test_what_a_host_had_that_never_comes_back_is_named_as_the_run_succeeds(tmp_path):
    target = FakeTarget({"chief:0": TaskScript(90)}, lost=((3.0, ("worker:1", "evaluator:0"), {}),))
    supervisor, outcome = perform(tmp_path, target)
    assert outcome.state is RunState.SUCCEEDED
    assert target.now_s < 1100.0, "nothing is awaited at the end that cannot come"
    assert [state(supervisor, task) for task in ("worker:0", "worker:1", "evaluator:0")] == [
        "succeeded",
        "failed",
        "failed",
    ]


def test_a_run_without_one_of_its_hosts_is_stopped_at_once(tmp_path):
    lost, stop = ((3.0, ("worker:1",), {}),), [(30.0, signal.SIGINT)]
    target = FakeTarget({}, lost=lost, signals_to_launcher=stop)
    _, outcome = perform(tmp_path, target)
    assert (outcome.exit_code, target.now_s < 1035.0) == (130, True)


@pytest.mark.parametrize("task", ["ps:0", "chief:0"])
def test_a_lost_host_of_the_chief_or_of_a_server_stops_the_run_in_order(tmp_path, task):
    target = FakeTarget(CHIEF_SAVES, lost=((3.0, (task,), {}),))
    supervisor, outcome = perform(tmp_path, target)
    assert (outcome.exit_code, outcome.failure.kind) == (1, FailureKind.HOST_LOST)
    assert (
        f"h2 is lost: training cannot go on without {task}, and no spare host takes its place" in target.said
    )
    assert supervisor.lives[TaskId.parse(task)].restarts == 0
    assert target.record.saved == SavedRecord(7, f"on here in {tmp_path}")
    assert {number for _, name, number in target.sent if name != task} == {signal.SIGTERM}
    assert (target.record.state, supervisor.replaced) == (RunState.FAILED, {})


def test_a_run_that_starts_again_on_a_spare_host_has_not_ended(tmp_path):
    lost = ((3.0, ("worker:1",), {"h2": "h4"}), (3.0, ("worker:0",), {"h3": "h5"}))
    target = FakeTarget(CHIEF_SAVES, lost=lost)
    supervisor, _ = perform(tmp_path, target)
    assert supervisor.replaced == {"h2": "h4", "h3": "h5"}
    assert target.record.state is RunState.STOPPING
    assert target.record.saved.step == 7


def test_a_second_lost_host_without_a_spare_one_ends_the_run(tmp_path):
    lost = ((3.0, ("worker:1",), {"h2": "h4"}), (3.0, ("worker:0",), {}))
    supervisor, outcome = perform(tmp_path, FakeTarget(CHIEF_SAVES, lost=lost))
    assert (supervisor.replaced, outcome.failure.kind) == ({}, FailureKind.HOST_LOST)


def test_a_user_who_stops_a_run_that_is_about_to_start_again_has_stopped_it(tmp_path):
    slow = {**CHIEF_SAVES, "worker:0": TaskScript(leaves_s=2.0)}
    target = FakeTarget(
        slow, lost=((3.0, ("worker:1",), {"h2": "h4"}),), signals_to_launcher=[(4.0, signal.SIGINT)]
    )
    supervisor, outcome = perform(tmp_path, target)
    assert (supervisor.replaced, outcome.state, outcome.exit_code) == ({}, RunState.STOPPED, 130)
    assert target.record.state is RunState.STOPPED
