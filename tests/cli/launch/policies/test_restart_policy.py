from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.config import RestartSection
from dtrain.process.start_protocol import Exited
from dtrain_cli.launch.policies.outcomes import Restart, decide_restart

RULE = RestartSection(policy="on_failure", max=3, backoff_s=1.0)


def test_exit_codes_are_a_shells():
    assert [Exited("worker:0", 0, status, 0).exit_code for status in (0, 7, -9, -15)] == [0, 7, 137, 143]


def test_a_history_of_deaths_by_signal():
    used, now_s, delays = 0, 100.0, []
    while restart := decide_restart(RULE, status=-9, count=used, ran_s=2.0, now_s=now_s):
        delays.append(restart.at_s - now_s)
        used, now_s = restart.count, restart.at_s + 2.0
    assert delays == [1.0, 2.0, 4.0]


def test_a_healthy_minute_forgets_the_count_and_the_backoff():
    assert decide_restart(RULE, status=-11, count=3, ran_s=59.9, now_s=0.0) is None
    assert decide_restart(RULE, status=-11, count=3, ran_s=60.0, now_s=0.0) == Restart(at_s=1.0, count=1)


@settings(deadline=None, max_examples=200)
@given(
    policy=st.sampled_from(["never", "on_failure", "always"]),
    status=st.integers(-31, 255),
    count=st.integers(0, 5),
    limit=st.integers(0, 5),
)
def test_against_the_words_of_the_contract(policy, status, count, limit):
    restart = decide_restart(
        RestartSection(policy, max=limit, backoff_s=0.5), status, count, ran_s=1.0, now_s=10.0
    )
    by_chance = status < 0 or 128 <= status < 255
    assert (restart is not None) == (
        (policy == "always" or (policy == "on_failure" and by_chance)) and count < limit
    )
    if restart is not None:
        assert restart == Restart(at_s=10.0 + 0.5 * 2**count, count=count + 1)


def test_what_sys_exit_of_minus_one_gives_is_the_programs_own_word():
    assert decide_restart(RULE, status=255, count=0, ran_s=1.0, now_s=0.0) is None
    assert decide_restart(RULE, status=-127, count=0, ran_s=1.0, now_s=0.0) is not None, (
        "a signal, which a shell reports as 255"
    )


def test_errors_that_the_next_attempt_would_repeat_are_final():
    always = RestartSection(policy="always")
    for error_type in ("ModuleNotFoundError", "SpecError", "SyntaxError"):
        assert decide_restart(always, status=1, count=0, ran_s=1.0, now_s=0.0, error_type=error_type) is None
    assert (
        decide_restart(always, status=1, count=0, ran_s=1.0, now_s=0.0, error_type="ValueError") is not None
    )
