"""Leases and incarnations, sentence by sentence, and against a twin that remembers only when each was last
heard.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.protocol.membership import Membership, MemberState

FIRST, SECOND, THIRD = (0, 10.0), (0, 20.0), (1, 5.0)
"""Processes of one task: attempt, and when each began."""


def members(*expected: str) -> Membership:
    return Membership(expected, lease_s=5.0, join_s=60.0, now=0.0)


def test_a_heartbeat_renews_the_lease_and_without_one_a_member_is_lost_once():
    table = members()
    assert table.heartbeat("worker:0", FIRST, 0, now=1.0) == 1
    assert table.heartbeat("worker:0", FIRST, 1, now=5.0) == 1
    assert table.expire(10.0) == []
    assert table.expire(10.1) == ["worker:0"]
    assert table.expire(10.2) == []
    assert table.state("worker:0") is MemberState.LOST


def test_one_who_comes_back_after_the_lease_and_a_new_process_get_the_next_incarnation():
    table = members()
    table.heartbeat("worker:0", FIRST, 0, now=0.0)
    table.expire(6.0)
    assert table.heartbeat("worker:0", FIRST, 1, now=7.0) == 2
    assert table.state("worker:0") is MemberState.LIVE
    assert table.heartbeat("worker:0", SECOND, 0, now=8.0) == 3
    assert table.heartbeat("worker:0", THIRD, 0, now=8.0) == 4


def test_an_earlier_process_is_refused_and_does_not_renew_the_lease():
    table = members()
    table.heartbeat("worker:0", SECOND, 0, now=1.0)
    assert table.heartbeat("worker:0", FIRST, 0, now=4.0) is None, "its first word was under way for long"
    assert table.heartbeat("worker:0", FIRST, 1, now=4.0) is None
    assert table.expire(6.1) == ["worker:0"]


def test_the_process_that_is_the_task_renews_the_lease_after_an_earlier_one_was_refused():
    table = members()
    table.heartbeat("worker:0", SECOND, 0, now=1.0)
    assert table.heartbeat("worker:0", FIRST, 1, now=4.0) is None
    assert table.heartbeat("worker:0", SECOND, 1, now=4.0) == 1
    assert table.expire(8.9) == []


def test_one_who_missed_the_answer_is_the_same_process():
    table = members()
    assert table.heartbeat("worker:0", FIRST, 0, now=0.0) == 1
    assert table.heartbeat("worker:0", FIRST, 0, now=1.0) == 1
    table.expire(7.0)
    assert table.heartbeat("worker:0", FIRST, 1, now=7.0) == 2
    assert table.heartbeat("worker:0", FIRST, 1, now=8.0) == 2


def test_one_whose_clock_was_set_back_is_taken_when_the_earlier_one_is_gone():
    table = members()
    table.heartbeat("worker:0", SECOND, 0, now=0.0)
    table.expire(6.0)
    assert table.heartbeat("worker:0", FIRST, 0, now=7.0) == 2


def test_a_server_that_forgot_takes_the_incarnation_that_a_member_knows():
    assert members().heartbeat("worker:0", FIRST, 4, now=0.0) == 4


def test_one_who_says_goodbye_has_left_and_is_never_lost():
    table = members("worker:0")
    table.heartbeat("worker:0", FIRST, 0, now=0.0)
    table.leave("worker:0")
    table.leave("worker:9")
    assert table.expire(1000.0) == []
    assert table.tasks(MemberState.LEFT) == ("worker:0",)
    assert table.heartbeat("worker:0", SECOND, 0, now=1001.0) == 2


def test_one_who_is_expected_and_never_seen_is_lost_when_the_time_to_join_is_over():
    table = members("worker:0", "worker:1")
    table.heartbeat("worker:1", FIRST, 0, now=58.0)
    assert table.expire(60.0) == []
    assert table.expire(60.5) == ["worker:0"]
    assert table.tasks(MemberState.LIVE, MemberState.LOST) == ("worker:0", "worker:1")
    assert table.state("worker:7") is None


def test_one_whom_the_server_before_had_seen_has_a_lease_and_not_the_time_to_join():
    table = members("worker:0", "worker:1", "worker:2")
    table.heartbeat("worker:1", FIRST, 0, now=8.0)
    table.heard_before(["worker:0", "worker:1", "worker:9"], now=7.0)
    assert table.expire(12.5) == ["worker:0"]
    assert table.tasks(MemberState.LIVE, MemberState.EXPECTED) == ("worker:1", "worker:2")


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["beat", "new", "old", "leave", "time"]), st.integers(0, 2), st.floats(0.0, 4.0)
        ),
        max_size=60,
    )
)
def test_a_member_lives_exactly_if_its_newest_process_was_heard_within_the_lease(events):
    table, now = members(), 0.0
    heard: dict[str, float] = {}
    newest: dict[str, int] = {}
    incarnations: dict[str, int] = {}
    for kind, number, passed in events:
        task, now = f"worker:{number}", now + passed
        lost = {name for name, last in heard.items() if now > last + 5.0}
        assert set(table.expire(now)) == lost
        for name in lost:
            del heard[name]
        if kind == "leave":
            table.leave(task)
            heard.pop(task, None)
        elif kind == "old" and task in heard:
            assert table.heartbeat(task, (0, newest[task] - 1), 0, now) is None
        elif kind == "new" or (kind == "beat" and task in newest):
            newest[task] = newest.get(task, 0) + (kind == "new")
            known = incarnations.get(task, 0)
            incarnation = table.heartbeat(task, (0, newest[task]), known, now)
            assert incarnation in ((known + 1,) if kind == "new" else (known, known + 1))
            incarnations[task], heard[task] = incarnation, now
        assert set(table.tasks(MemberState.LIVE)) == set(heard)
        assert table.gone == set(table.tasks(MemberState.LOST, MemberState.LEFT))
