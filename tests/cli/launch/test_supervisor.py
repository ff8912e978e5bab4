"""The supervisor's loop on histories: scripted tasks and a clock that jumps from event to event."""

import signal

import pytest
from cli.launch.fake_launch import FOR_EVER, NAMES, FakeTarget, TaskScript, Unheard, lost, perform
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dtrain.cluster import Role, TaskId
from dtrain.runs.files import KillRequest, RunFiles
from dtrain.runs.states import ENDED
from dtrain_cli.launch.policies.patience import LaunchLimits


@pytest.mark.parametrize("saved_step", [None, 12])
def test_that_nothing_is_saved_any_more_is_said_once_until_a_checkpoint_is_written(tmp_path, saved_step):
    """A leader that has been started again has not written one yet."""
    target = FakeTarget(
        {"chief:0": TaskScript(5, status=-9, unsaved="no room")},
        later={"chief:0": TaskScript(5, saved_step=saved_step)},
    )
    perform(tmp_path, target)
    expected = ["checkpoints can no longer be saved: no room"]
    expected += ["checkpoints are saved again: the last one is of step 12"] if saved_step else []
    assert [text for text in target.said if "saved" in text] == expected


def test_a_start_that_is_refused_ends_the_run_and_starts_nobody_else(tmp_path):
    target = FakeTarget({}, refused=("ps:0",))
    _, outcome = perform(tmp_path, target)
    assert outcome.exit_code == 127
    assert outcome.failure.message == "no process today"


def test_a_task_that_is_refused_during_the_stop_changes_nothing(tmp_path):
    target = FakeTarget({}, signals_to_launcher=[(0.005, signal.SIGINT)], refused=("worker:1",))
    _, outcome = perform(tmp_path, target)
    assert (outcome.state, outcome.exit_code) == ("stopped", 130)


def test_a_second_signal_kills_those_who_linger(tmp_path):
    target = FakeTarget(
        {"worker:0": TaskScript(leaves_s=FOR_EVER)},
        signals_to_launcher=[(5, signal.SIGINT), (6, signal.SIGINT)],
    )
    _, outcome = perform(tmp_path, target, limits=LaunchLimits(None, 60, 300, grace_s=100))
    assert outcome.exit_code == 130
    assert target.now_s < 1007.5


def test_a_program_that_stays_away_too_long_is_124(tmp_path):
    _, outcome = perform(
        tmp_path,
        FakeTarget({}),
        limits=LaunchLimits(timeout_s=30, start_timeout_s=60, stall_timeout_s=300, grace_s=1),
    )
    assert (outcome.state, outcome.exit_code, outcome.failure.kind) == ("failed", 124, "timeout")


def test_a_worker_that_never_trained_has_failed_when_the_others_do(tmp_path):
    target = FakeTarget(
        {
            "worker:1": TaskScript(1),
            "worker:0": TaskScript(5, fits=(1, 1)),
            "chief:0": TaskScript(5, fits=(1, 1)),
        }
    )
    supervisor, _ = perform(tmp_path, target)
    assert "worker:1 failed at step 9: left without having trained, with exit code 0" in lost(supervisor)


def test_the_end_by_timeout_repeats_the_stall(tmp_path):
    limits = LaunchLimits(timeout_s=30, start_timeout_s=60, stall_timeout_s=10, grace_s=1)
    _, outcome = perform(tmp_path, FakeTarget({}), limits=limits)
    assert outcome.failure.message == "not finished within 30 s (--timeout); stalled at step 9"


def test_backoff_doubles_and_is_forgotten_after_a_healthy_minute(tmp_path):
    target = FakeTarget(
        {
            "worker:0": TaskScript(61, status=-9),
            "worker:1": TaskScript(1, status=-9),
            "chief:0": TaskScript(200),
        }
    )
    perform(tmp_path, target)
    waits = {
        name: [text.split("; ")[1] for text in target.said if text.startswith(name)]
        for name in ("worker:0", "worker:1")
    }
    assert waits["worker:0"] == ["restarting in 1 s (1 of 3)"] * 3
    assert waits["worker:1"][:3] == [
        f"restarting in {wait} s ({count} of 3)" for wait, count in ((1, 1), (2, 2), (4, 3))
    ]


def test_a_server_that_the_chief_no_longer_hears_is_killed_and_started_again(tmp_path):
    target, ps = Unheard({"chief:0": TaskScript(20)}), TaskId(Role.PS, 0)
    request = KillRequest("chief:0 has not heard of it for 5 s", attempt=0)
    target.request = ps, request, RunFiles(tmp_path)
    supervisor, outcome = perform(tmp_path, target)
    assert outcome.state == "succeeded"
    assert next(number for _, name, number in target.sent if name == "ps:0") == signal.SIGKILL
    assert supervisor.lives[ps].restarts == 1, "an order is for one attempt"
    assert target.said[0] == "ps:0 is killed: chief:0 has not heard of it for 5 s"


scripts = st.builds(
    TaskScript,
    lasts_s=st.sampled_from([0.0, 0.5, 3.0, 70.0, FOR_EVER]),
    status=st.sampled_from([0, 0, 1, 5, 134, -9, -11]),
    leaves_s=st.sampled_from([0.0, 0.1, 5.0, FOR_EVER]),
)


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    cast=st.fixed_dictionaries(dict.fromkeys(NAMES, scripts)),
    signals=st.lists(
        st.tuples(st.floats(0, 100), st.sampled_from([signal.SIGINT, signal.SIGTERM])), max_size=2
    ),
    refused=st.lists(st.sampled_from(NAMES), max_size=1),
    program=st.booleans(),
)
def test_every_history_ends_with_nobody_left_and_an_honest_exit_code(
    tmp_path, cast, signals, refused, program
):
    target = FakeTarget(cast, signals_to_launcher=signals, refused=tuple(refused))
    limits = LaunchLimits(timeout_s=300, start_timeout_s=60, stall_timeout_s=1e9, grace_s=10)
    supervisor, outcome = perform(tmp_path, target, limits=limits, program=program)
    assert not target.alive
    assert all(life.state in ENDED for life in supervisor.lives.values())
    assert target.record.state == outcome.state
    match outcome.state:
        case "succeeded":
            assert outcome.exit_code == 0
            assert cast["chief:0"].status == 0
        case "stopped":
            assert outcome.exit_code in {128 + number for _, number in signals}
        case "failed":
            assert 0 < outcome.exit_code < 256
            assert outcome.failure is not None
            assert outcome.failure.task != "launcher" or outcome.exit_code == 124


def test_notices_of_a_scheduler_reach_the_tasks_and_other_signals_change_nothing(tmp_path):
    others = [signal.SIGALRM, signal.SIGALRM, signal.SIGVTALRM, signal.SIGXCPU, signal.SIGPWR]
    arriving = [
        (5, signal.SIGUSR1),
        (6, signal.SIGUSR2),
        *((7, each) for each in others),
        (9, signal.SIGTERM),
    ]
    target = FakeTarget({}, signals_to_launcher=arriving)
    _, outcome = perform(tmp_path, target)
    assert (outcome.state, outcome.exit_code) == ("stopped", 143)
    tasks = {name for _, name, number in target.sent if number == signal.SIGTERM}
    noticed = [name for at_s, name, number in target.sent if number == signal.SIGUSR1 and at_s < 1008]
    assert sorted(noticed) == sorted([*tasks, *tasks])
    said = "\n".join(target.said)
    assert "SIGUSR1: passed on to" in said
    assert "the leader saves a checkpoint" in said
    assert said.count("SIGALRM: has no effect on a launch") == 1


def test_a_notice_that_comes_before_any_task_is_up_promises_no_checkpoint(tmp_path):
    arriving = [(0.001, signal.SIGUSR1), (9, signal.SIGTERM)]
    target = FakeTarget({}, signals_to_launcher=arriving)
    perform(tmp_path, target)
    (said,) = [text for text in target.said if "SIGUSR1" in text]
    assert "passed on to 0 of" in said
    assert "checkpoint" not in said
