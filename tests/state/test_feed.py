"""Where training goes on when batches have another size than when the checkpoint was written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrain.state.batch_cut import NOTHING_DEALT, Dealt
from dtrain.state.feed import UNKNOWN, DataFile, Feed


def examples(feed, n, batches):
    """The places in the endless stream of these batches' examples: pass after pass of `n`."""
    places = set()
    for batch in batches:
        passes, within = divmod(batch, feed.batches)
        places |= {
            passes * n + place
            for place in range(within * feed.batch_size, min(n, (within + 1) * feed.batch_size))
        }
    return places


def feed_of(n, batch_size):
    return Feed(batch_size, -(-n // batch_size), -(-n // batch_size))


@st.composite
def stories(draw):
    n, before, now = draw(st.integers(1, 40)), draw(st.integers(1, 9)), draw(st.integers(1, 9))
    following = draw(st.integers(0, 3 * feed_of(n, before).batches))
    due = draw(st.sets(st.integers(0, max(0, following - 1)), max_size=4)) if following else set()
    return n, feed_of(n, before), feed_of(n, now), Dealt(1, following, tuple(sorted(due)))


@given(stories())
def test_no_example_is_left_out_and_none_is_seen_again_but_with_one_that_is_left(story):
    n, before, now, dealt = story
    found = now.goes_on(before, dealt)
    every = range(6 * now.batches + 6)
    done = examples(before, n, set(range(dealt.next)) - set(dealt.due))
    comes = [batch for batch in every if batch >= found.next or batch in found.due]
    horizon = n * 5
    seen = {place for place in examples(now, n, comes) if place < horizon}
    assert set(range(horizon)) <= done | seen
    for batch in comes:
        assert not examples(now, n, [batch]) <= done, "a batch comes again of which nothing is left"


def test_smaller_batches_that_fill_the_former_ones_go_on_at_the_very_example():
    before, now = Feed(192, 10, 10), Feed(64, 30, 30)
    assert now.goes_on(before, Dealt(3, 3 * 4, (9, 10, 11))) == Dealt(1, 12, (9, 10, 11))
    assert now.goes_on(before, Dealt(3, 3 * 14, ())) == Dealt(1, 42, ())


@pytest.mark.parametrize(
    ("before", "now"),
    [(UNKNOWN, Feed(2, 30, 30)), (Feed(6, 10, 10), UNKNOWN), (Feed(6, 10, 10), Feed(6, 9, 3))],
)
def test_where_sizes_are_equal_or_not_known_numbers_mean_what_they_meant(before, now):
    assert now.goes_on(before, Dealt(3, 12, (4, 9))) == Dealt(3, 12, (4, 9))
    assert now.goes_on(Feed(1, 1, 1), NOTHING_DEALT) == NOTHING_DEALT


def test_what_is_different_is_named():
    assert Feed(6, 10, 10).change_from(Feed(6, 10, 10)) is None
    assert Feed(6, 10, 10).change_from(UNKNOWN) is None
    assert (
        Feed(2, 30, 30).change_from(Feed(6, 10, 10))
        == "batch size 6, now 2; batches 10, now 30; steps per epoch 10, now 30"
    )


def test_files_are_compared_where_both_know_them():
    file, other = DataFile("data/1", 8, 123), DataFile("data/2", 8, 5)
    before = Feed(files=(file, other))
    changed = file._replace(checksum=124)
    assert Feed(files=(changed, other)).changed_files(before) == [(file, changed)]
    assert Feed(files=(other, file)).changed_files(before) == []
    assert Feed(files=(changed._replace(path="moved/1"),)).changed_files(before) == []
    assert UNKNOWN.changed_files(before) == Feed(files=(file,)).changed_files(UNKNOWN) == []
    assert Feed(2, files=(changed,)).change_from(Feed(3, files=(file,))) == "batch size 3, now 2"
