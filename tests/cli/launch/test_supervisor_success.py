"""The end of a run after its leader's success: what the evaluator and the others may still do."""

import signal

import pytest
from cli.launch.fake_launch import SPEC, FakeTarget, TaskScript, lost, perform, state
from msgspec.structs import replace

from dtrain.cluster import Role, TaskId
from dtrain.config import RestartSection, RunSpec
from dtrain.messages.membership import NEXT_CHECKPOINT
from dtrain.runs.files import FailureRecord, RunFiles, write_record
from dtrain_cli.launch.policies.patience import LaunchLimits


def test_the_evaluator_has_sixty_seconds_and_the_servers_outlive_it(tmp_path):
    target = FakeTarget({"chief:0": TaskScript(5), "worker:0": TaskScript(5.1), "worker:1": TaskScript(5.2)})
    supervisor, outcome = perform(tmp_path, target)
    assert (outcome.state, outcome.exit_code) == ("succeeded", 0)
    assert [(round(at_s - 1000), name) for at_s, name, _ in target.sent] == [
        (65, "evaluator:0"),
        (65, "ps:0"),
    ]
    late = (
        "evaluator:0 is being stopped: it has not ended 60 s after the leader; its last evaluation may "
        "be missing"
    )
    assert late in target.said
    assert {life.state for life in supervisor.lives.values()} == {"succeeded"}


@pytest.mark.parametrize(("step", "told_s"), [(9, 8), (7, 65)])
def test_an_evaluator_that_has_evaluated_the_last_checkpoint_and_has_not_heard_of_the_end_is_stopped(
    tmp_path, step, told_s
):
    """As where ps:0, which tells of the end, is killed at that moment: nothing is missing, and nobody waits."""
    waits = TaskScript(measures={"waiting_for": NEXT_CHECKPOINT, "step": step})
    ends = {name: TaskScript(5, saved_step=9) for name in ("chief:0", "worker:0", "worker:1")}
    target = FakeTarget({**ends, "evaluator:0": waits})
    supervisor, outcome = perform(tmp_path, target)
    assert (outcome.state, outcome.exit_code, lost(supervisor)) == ("succeeded", 0, "")
    assert [round(at_s - 1000) for at_s, name, _ in target.sent if name == "evaluator:0"] == [told_s]
    assert any("its last evaluation may be missing" in text for text in target.said) is (step < 9)


def evaluator_restarts(backoff_s: float) -> RunSpec:
    return replace(SPEC, restart={"evaluator": RestartSection(backoff_s=backoff_s)})


def test_an_evaluator_that_waits_for_its_restart_still_makes_the_final_evaluation(tmp_path):
    """The evaluator is stopped after its final evaluation, and a death by signal is followed by
    another attempt.
    """
    first, second = TaskScript(4, status=-9), TaskScript(10)
    target = FakeTarget({"chief:0": TaskScript(5), "evaluator:0": first}, later={"evaluator:0": second})
    supervisor, outcome = perform(tmp_path, target, evaluator_restarts(backoff_s=3))
    evaluator = supervisor.lives[TaskId.parse("evaluator:0")]
    assert (outcome.state, evaluator.state, evaluator.restarts, lost(supervisor)) == (
        "succeeded",
        "succeeded",
        1,
        "",
    )
    told = {name: round(at_s - 1000) for at_s, name, _ in target.sent}
    assert "evaluator:0" not in told
    assert told["ps:0"] == 17, "servers outlive the evaluator"


def test_an_evaluator_that_dies_in_its_final_evaluation_is_started_again(tmp_path):
    target = FakeTarget(
        {"chief:0": TaskScript(5), "evaluator:0": TaskScript(7, status=-9)},
        later={"evaluator:0": TaskScript(10)},
    )
    supervisor, outcome = perform(tmp_path, target)
    assert (outcome.state, supervisor.lives[TaskId.parse("evaluator:0")].restarts, lost(supervisor)) == (
        "succeeded",
        1,
        "",
    )
    assert round(target.now_s - 1000) == 18


@pytest.mark.parametrize("dies_s", [4, 50])
def test_an_evaluator_that_would_be_started_again_too_late_has_failed(tmp_path, dies_s):
    """Its 60 s run from the leader's success, not from its own restart."""
    target = FakeTarget({"chief:0": TaskScript(5), "evaluator:0": TaskScript(dies_s, status=-9)})
    supervisor, outcome = perform(tmp_path, target, evaluator_restarts(backoff_s=100))
    assert (outcome.state, state(supervisor, "evaluator:0")) == ("succeeded", "failed")
    assert "evaluator:0 failed at step 9" in lost(supervisor)
    assert target.now_s < 1000 + dies_s + 20


def test_a_signal_while_the_evaluator_waits_for_its_restart_after_success_stops_it(tmp_path):
    target = FakeTarget(
        {"chief:0": TaskScript(5), "evaluator:0": TaskScript(4, status=-9)},
        signals_to_launcher=[(7, signal.SIGINT)],
    )
    supervisor, outcome = perform(tmp_path, target, evaluator_restarts(backoff_s=30))
    assert (outcome.state, outcome.exit_code, state(supervisor, "evaluator:0")) == ("stopped", 130, "stopped")
    assert target.now_s < 1020


def test_a_worker_that_waits_for_its_restart_is_not_started_after_the_leaders_success(tmp_path):
    target = FakeTarget(
        {"chief:0": TaskScript(5), "worker:0": TaskScript(4.8, status=-9), "evaluator:0": TaskScript(9)}
    )
    supervisor, outcome = perform(tmp_path, target)
    assert (outcome.state, supervisor.lives[TaskId.parse("worker:0")].restarts) == ("succeeded", 0)


def test_the_evaluator_is_never_the_cause(tmp_path):
    record = RunFiles(tmp_path).failure(TaskId(Role.EVALUATOR, 0), 0)
    record.parent.mkdir(parents=True)
    write_record(record, FailureRecord("evaluator:0", "exited with code 1", monotonic_s=1.0))
    scripts = {name: TaskScript(lasts_s=0.5, status=1) for name in ("chief:0", "worker:0", "evaluator:0")}
    _, outcome = perform(tmp_path, FakeTarget(scripts))
    assert outcome.failure.task == "chief:0"
    assert outcome.failure.likewise == ["worker:0", "evaluator:0"]


def test_a_signal_after_success_stops_and_is_the_exit_code(tmp_path):
    target = FakeTarget({"chief:0": TaskScript(1)}, signals_to_launcher=[(10, signal.SIGTERM)])
    _, outcome = perform(tmp_path, target)
    assert (outcome.state, outcome.exit_code) == ("stopped", 143)


def test_the_timeout_holds_while_the_evaluator_works_after_the_leaders_end(tmp_path):
    target = FakeTarget({"chief:0": TaskScript(5), "worker:0": TaskScript(5), "worker:1": TaskScript(5)})
    limits = LaunchLimits(timeout_s=30, start_timeout_s=60, stall_timeout_s=300, grace_s=1)
    _, outcome = perform(tmp_path, target, limits=limits)
    assert (outcome.state, outcome.exit_code, outcome.failure.kind) == ("failed", 124, "timeout")
    assert target.now_s < 1033
    assert {line.split()[0]: line.split()[1] for line in outcome.failure.standing} == {
        "chief:0": "succeeded",
        "worker:0": "succeeded",
        "worker:1": "succeeded",
        "ps:0": "running",
        "evaluator:0": "running",
    }


@pytest.mark.parametrize("task", ["chief:0", "worker:1"])
def test_a_task_that_is_killed_when_its_program_has_ended_is_not_started_again(tmp_path, task):
    """Servers leave at a leader's farewell: another attempt would wait for them in vain."""
    ends = {"chief:0": TaskScript(5), "worker:0": TaskScript(4), "worker:1": TaskScript(4)}
    ends[task] = TaskScript(4, status=-9, finished=True)
    target = FakeTarget({**ends, "evaluator:0": TaskScript(5)}, later={task: TaskScript(status=1)})
    supervisor, outcome = perform(tmp_path, target)
    assert (outcome.state, outcome.exit_code, lost(supervisor)) == ("succeeded", 0, "")
    assert supervisor.lives[TaskId.parse(task)].restarts == 0
    assert (
        f"{task} was killed by SIGKILL (signal 9) when its program had ended: nothing is lost" in target.said
    )


def test_a_task_whose_program_says_that_it_failed_when_it_had_ended_has_failed(tmp_path):
    """An exit code below 128 is its own word, such as that of an exit function of the program."""
    target = FakeTarget({"chief:0": TaskScript(4, status=3, finished=True)})
    _, outcome = perform(tmp_path, target)
    assert (outcome.state, outcome.exit_code) == ("failed", 3)
