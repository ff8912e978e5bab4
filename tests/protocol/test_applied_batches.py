"""Which batches a server contains, beside a set of numbers that does the same."""

from hypothesis import given
from hypothesis import strategies as st

from dtrain.protocol import applied_batches
from dtrain.protocol.applied_batches import FAR, AppliedBatches, lacking, union, without

BATCHES = st.integers(0, 12)
SETS = st.sets(BATCHES)
TABLES = st.lists(SETS, min_size=1, max_size=4)


@given(SETS, BATCHES)
def test_adding_says_whether_it_is_new(batches, batch):
    assert table(batches).add(batch) == (batch not in batches)


def test_a_number_that_cannot_have_been_dealt_is_not_added():
    applied = table({0, 2})
    assert [applied.add(batch) for batch in (-1, FAR + 3)] == [False, False]
    assert applied.export() == (3, (1,))
    assert applied.add(FAR + 2)
    assert "beyond the newest one here" in applied.obstacle(3 * FAR)


def test_no_more_batches_are_missing_than_a_server_can_keep(monkeypatch):
    monkeypatch.setattr(applied_batches, "MISSING_MAX", 3)
    applied = AppliedBatches()
    assert [applied.add(batch) for batch in (2, 5, 3, 4)] == [True, False, True, True]
    assert "where 2 are missing" in applied.obstacle(7)
    applied.forget_below(5)
    assert applied.obstacle(7) is None


def table(batches):
    applied = AppliedBatches()
    for batch in batches:
        applied.add(batch)
    return applied


def contained(exported, end=20):
    """The numbers of what was exported."""
    applied = AppliedBatches(*exported)
    return {batch for batch in range(end) if batch in applied}


@given(st.lists(BATCHES))
def test_it_contains_what_was_added_in_any_order_however_often(batches):
    applied = table(batches)
    assert contained(applied.export()) == set(batches)
    assert -1 not in applied
    assert applied.export() == table(sorted(set(batches))).export(), (
        "two servers that contain the same say the same"
    )


@given(SETS, SETS)
def test_it_covers_what_it_contains(mine, asked):
    assert table(mine).covers(table(asked).export()) == (asked <= mine)


def test_it_does_not_cover_what_no_server_can_contain():
    assert not table({0, 1}).covers((2**62, ()))


@given(SETS, BATCHES, BATCHES)
def test_what_is_settled_is_missing_no_more(batches, settled, later):
    applied = table(batches)
    applied.forget_below(settled)
    assert contained(applied.export()) == batches | set(range(settled))
    applied.add(later)
    assert contained(applied.export()) == batches | {later} | set(range(settled))


@given(TABLES)
def test_the_union_is_what_any_server_contains_and_the_others_lack_what_the_first_has_alone(sets):
    tables = [table(each).export() for each in sets]
    assert contained(union(tables)) == set().union(*sets)
    assert lacking(tables) == sorted(sets[0] - set.intersection(*sets))


@given(SETS, SETS)
def test_some_are_left_out(batches, others):
    assert contained(without(table(batches).export(), others)) == batches - others


def test_no_server_lacks_anything_where_none_has_said_what_it_contains():
    assert lacking([]) == []
