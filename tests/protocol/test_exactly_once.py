"""Exactly once: whatever is repeated and however late, an ordered log of first arrivals is all that
counts.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.messages import Verdict
from dtrain.roles.parameter_server.update_rules import Seen, SeenPushes


def test_the_first_arrival_is_new_and_a_later_one_gets_the_first_verdict():
    seen = SeenPushes()
    assert seen.lookup("worker:0", 1, 1) is None
    seen.record("worker:0", Seen(1, 1, Verdict.STALE, staleness=3))
    assert seen.lookup("worker:0", 1, 1) == Seen(1, 1, Verdict.STALE, staleness=3)
    assert seen.lookup("worker:0", 1, 2) is None
    assert seen.lookup("worker:1", 1, 1) is None


def test_older_pushes_and_older_incarnations_are_refused_by_name():
    seen = SeenPushes()
    seen.record("worker:0", Seen(2, 5, Verdict.ACCEPTED))
    assert "push 5 already; push 4 is older" in seen.lookup("worker:0", 2, 4)
    assert "incarnation 2; this push comes from incarnation 1" in seen.lookup("worker:0", 1, 9)
    assert seen.lookup("worker:0", 3, 1) is None


def test_an_open_verdict_is_settled_once():
    seen = SeenPushes()
    seen.record("worker:0", Seen(1, 1))
    seen.decide("worker:0", Verdict.ACCEPTED)
    seen.decide("worker:0", Verdict.STALE)
    seen.decide("worker:1", Verdict.STALE)
    assert seen.lookup("worker:0", 1, 1) == Seen(1, 1, Verdict.ACCEPTED)
    assert seen.lookup("worker:1", 1, 1) is None


def test_a_checkpoint_remembers_what_its_variables_contain_and_not_what_was_still_open():
    seen = SeenPushes()
    seen.record("worker:1", Seen(1, 8, Verdict.ACCEPTED))
    seen.record("worker:0", Seen(3, 2))
    restored = SeenPushes.restore(seen.export())
    assert isinstance(restored.lookup("worker:1", 1, 8), Seen)
    assert isinstance(restored.lookup("worker:1", 1, 7), str)
    assert restored.lookup("worker:1", 1, 9) is None
    assert restored.lookup("worker:0", 3, 2) is None


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.tuples(st.sampled_from(["worker:0", "worker:1"]), st.integers(1, 3), st.integers(1, 6)),
        max_size=60,
    ),
    st.booleans(),
)
def test_a_push_counts_once_however_arrivals_are_repeated_and_reordered(arrivals, through_a_checkpoint):
    seen = SeenPushes()
    newest: dict[str, tuple[int, int]] = {}
    applied = []
    for replica, *push in arrivals:
        found = seen.lookup(replica, *push)
        before = newest.get(replica, (0, 0))
        if tuple(push) > before:
            assert found is None
            applied.append((replica, *push))
            seen.record(replica, Seen(*push, Verdict.ACCEPTED))
            newest[replica] = tuple(push)
        else:
            assert isinstance(found, Seen if tuple(push) == before else str)
        if through_a_checkpoint:
            seen = SeenPushes.restore(seen.export())
    assert len(set(applied)) == len(applied)
