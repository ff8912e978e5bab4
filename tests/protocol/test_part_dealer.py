"""The dealer of parts: every part is settled once, whatever is lost on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.protocol.part_dealer import NO_PART, PartDealer
from dtrain.state.batch_cut import UNCUT, BatchCut, Dealt

RANKS = st.integers(0, 3)
STORIES = st.lists(
    st.tuples(st.sampled_from(["give", "push", "settle", "lose", "repeat"]), RANKS), min_size=20, max_size=200
)


def dealer(parts=1, **more):
    return PartDealer.of(Dealt(parts=parts), whole=False, **more)


def whole(parts, dealt=None):
    made = PartDealer.of(dealt or Dealt(parts=parts), whole=True)
    made.begin_batch()
    return made


def test_parts_are_dealt_in_their_order_and_again_until_they_were_pushed():
    made = dealer()
    assert [made.give(0), made.give(1), made.give(0)] == [0, 1, 0]
    made.pushed(0, 0)
    assert [made.give(0), made.give(1)] == [2, 1]


def test_what_a_lost_replica_had_is_dealt_before_anything_new():
    made = dealer()
    for rank in range(3):
        made.give(rank)
    made.pushed(1, 1)
    made.lose(1)
    assert made.give(0) == 0
    made.pushed(0, 0)
    made.settle(0)
    assert made.give(0) == 1
    assert made.export() == Dealt(1, 3, (1, 2))


def test_a_part_that_is_settled_is_never_dealt_again_though_its_replica_was_lost():
    made = dealer()
    made.give(0)
    made.lose(0)
    made.settle(0)
    assert made.give(1) == 1


def test_a_late_part_comes_back_to_its_replica_or_to_another_if_that_is_busy():
    made = dealer()
    made.give(0)
    made.pushed(0, 0)
    made.repeat(0)
    assert made.give(0) == 0
    made.pushed(0, 0)
    assert made.give(0) == 1
    made.repeat(0)
    assert made.give(1) == 0


@given(STORIES)
def test_no_part_is_lost_and_none_is_dealt_to_two_replicas_at_once(story):
    made, settled, pushed = dealer(), set(), {}
    for deed, rank in story:
        if deed == "give":
            part = made.give(rank)
            assert part not in settled
            assert part not in [given for other, given in made.current.items() if other != rank]
        elif deed == "push" and rank in made.current:
            pushed[rank] = made.current[rank]
            made.pushed(rank, pushed[rank])
        elif deed == "settle" and rank in pushed:
            settled.add(pushed[rank])
            made.settle(pushed.pop(rank))
        elif deed == "lose":
            made.lose(rank)
        elif deed == "repeat" and rank in pushed:
            made.repeat(pushed.pop(rank))
        assert made.given == {part: owner for owner, parts in made.parts_of.items() for part in parts}
    _, following, due, *_ = made.export()
    assert set(range(following)) - set(due) == settled
    again = PartDealer.of(made.export(), whole=False)
    assert [again.give(rank) for rank in range(len(due))] == list(due)


def test_with_whole_batches_each_replica_has_its_own_part_and_nothing_beyond_the_batch():
    made = whole(3)
    assert [made.give(rank) for rank in (2, 0, 1, 3)] == [2, 0, 1, NO_PART]
    made.pushed(0, 0)
    assert made.give(0) == NO_PART
    assert made.begin_batch() == [3, 4, 5]
    assert made.give(0) == 3


def test_with_whole_batches_a_lost_replicas_part_is_another_ones_but_not_if_it_is_complete():
    made = whole(3)
    for rank in range(3):
        made.give(rank)
    made.pushed(1, 1)
    made.pushed(2, 2)
    made.lose(1, complete={2})
    made.lose(2, complete={2})
    made.pushed(0, 0)
    assert [made.give(0), made.give(2)] == [1, NO_PART]


def test_a_checkpoint_after_the_last_step_leaves_nothing_of_its_batch():
    made = whole(2)
    made.begin_batch()
    made.give(1)
    made.end_batch()
    assert made.export() == Dealt(2, 4, ())
    begun = PartDealer.of(Dealt(2, 6, (1, 4, 5)), whole=True)
    assert begun.begin_batch() == [1]
    begun.end_batch()
    assert begun.export() == Dealt(2, 6, (4, 5)), "other batches that were begun stay due"


def test_a_checkpoint_in_the_middle_of_a_batch_begins_it_anew():
    made = whole(2)
    made.begin_batch()
    made.give(1)
    made.hold(2)
    assert made.export() == Dealt(2, 4, (2, 3))
    assert whole(2, made.export()).give(1) == 3


@every_row(
    "dealt, parts, expected",
    [
        (Dealt(), 3, Dealt(3, 0, ())),
        (Dealt(3, 6, ()), 3, Dealt(3, 6, ())),
        (Dealt(1, 4, (1, 3)), 2, Dealt(2, 8, (2, 3, 6, 7))),
        (Dealt(3, 6, (3, 4, 5)), 1, Dealt(1, 2, (1,))),
        (Dealt(3, 7, (1,)), 1, Dealt(1, 3, (0, 2))),
    ],
)
def test_another_cut_of_what_is_left_loses_no_batch(dealt, parts, expected):
    assert dealt.cut_into(parts) == expected


def test_a_cut_into_several_parts_stays_with_other_replicas():
    begun = Dealt(3, 6, (4,))
    assert begun.going_on(BatchCut(5), sync=True) == begun
    assert begun.going_on(UNCUT, sync=True) == begun
    assert begun.going_on(UNCUT, sync=False).parts == 1
    assert Dealt(1, 2, ()).going_on(BatchCut(5), sync=True).parts == 5


@st.composite
def begun_with_backups(draw):
    """Batches, into how many parts each is cut, and the state after some steps of which each has settled so many
    parts, of any batches.
    """
    batches, parts = draw(st.integers(1, 8)), draw(st.integers(2, 4))
    made = draw(st.integers(0, batches))
    reached = draw(st.integers(made * parts, batches * parts))
    settled = draw(st.permutations(range(reached)))[: made * parts]
    return batches, parts, Dealt(parts, reached, tuple(sorted(set(range(reached)) - set(settled))), even=True)


def left_of(batches, parts, dealt):
    """The parts of the first cut that are to be computed, for each whole batch that is dealt from now on."""
    cut = BatchCut(rest=dealt.rest)
    numbers = [*dealt.due, *range(dealt.next, batches * dealt.parts)]
    whole = sorted({number // dealt.parts for number in numbers})
    assert len(numbers) == len(whole) * dealt.parts, "a batch is dealt whole or not at all"
    return [[*(cut.pieces(batch) or range(batch * parts, (batch + 1) * parts))] for batch in whole]


@given(begun_with_backups(), st.sampled_from([UNCUT, BatchCut(3)]), st.data())
def test_what_backups_left_of_batches_is_dealt_in_as_many_whole_batches_as_steps_are_left(story, cut, data):
    batches, parts, before = story
    open_parts = [*before.due, *range(before.next, batches * parts)]
    now = before.going_on(cut, sync=False)
    found = left_of(batches, parts, now)
    assert sorted(part for group in found for part in group) == open_parts, "each part once"
    assert [len(group) for group in found] == [parts] * (len(open_parts) // parts)

    dealer = PartDealer.of(now, whole=cut.parts > 1)
    for _ in range(data.draw(st.integers(0, len(found)))):
        for part in dealer.begin_batch() if dealer.whole else [dealer.give(0)]:
            dealer.settle(part)
    later = dealer.export()
    left = left_of(batches, parts, later)
    for goes_on in (later.going_on(UNCUT, sync=False), later.going_on(cut, sync=True)):
        again = goes_on if goes_on.parts in (1, cut.parts) and not goes_on.even else None
        if again is not None:
            assert left_of(batches, parts, again) == left
        else:
            numbers = [*goes_on.due, *range(goes_on.next, batches * parts)]
            assert goes_on.parts == parts
            assert sorted(numbers) == sorted(part for group in left for part in group)


@pytest.mark.parametrize("even", [False, True])
def test_backups_that_come_or_go_change_no_cut_that_has_begun(even):
    begun = Dealt(3, 6, (4,), even)
    assert begun.going_on(BatchCut(3, not even), sync=True) == begun
    assert Dealt(1, 6, (4,), even).going_on(BatchCut(1, not even), sync=True) == Dealt(1, 6, (4,), even)
    assert PartDealer.of(begun, whole=False).export() == begun
    assert Dealt().going_on(BatchCut(3, even), sync=True) == Dealt(3, 0, (), even), "nothing has begun"


def test_a_replica_without_examples_leaves_the_others_their_parts_while_they_live():
    dealer = PartDealer(3, whole=True)
    dealer.begin_batch()
    live = {0, 1, 2}
    assert dealer.give(2, live) == 2
    dealer.pushed(2, 2)
    dealer.hold(2)
    assert dealer.give(2, live) == NO_PART
    assert dealer.give(0, live) == 0
    assert dealer.give(2, live - {1}) == 1


def test_a_batch_of_which_backups_have_computed_some_parts_is_begun_with_the_others_alone():
    dealer = PartDealer.of(Dealt(3, 4, ()), whole=True)
    assert dealer.begin_batch() == [4, 5]
    for part in (4, 5):
        dealer.settle(part)
    assert dealer.begin_batch() == [6, 7, 8]
