"""Lanes: a replica's next numbers are known, and every number is dealt once in any story."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.protocol.part_dealer import LEAD, RESERVED, Lanes, PartDealer, owned_from
from dtrain.state.batch_cut import Dealt

BEGUN = Dealt(1)
SHAPES = [(1, 1), (3, 3), (4, 2), (5, 3), (2, 2)]
"""Numbers of lanes and of replicas."""
RANKS = st.integers(0, 3)
STORIES = st.lists(
    st.tuples(st.sampled_from(["step", "step", "step", "give", "lose", "resume"]), RANKS), max_size=120
)


def dealer(lanes, replicas, dealt=BEGUN):
    return PartDealer.of(dealt, whole=False, lanes=Lanes(lanes, replicas))


def step(made, rank, left=None):
    part = made.give(rank, range(4), left=left)
    made.settle(part)
    return part


def expected(rank, lanes, replicas, count):
    return list(islice(owned_from(0, rank, lanes, replicas), count))


@every_row("lanes, replicas", SHAPES)
def test_replicas_of_one_speed_get_the_numbers_of_their_lanes_and_none_is_left_out(lanes, replicas):
    made = dealer(lanes, replicas)
    got = {rank: [] for rank in range(replicas)}
    for turn in range(6 * lanes):
        got[turn % replicas].append(step(made, turn % replicas))
    for rank, parts in got.items():
        own = set(expected(rank, lanes, replicas, 100))
        assert parts[:4] == expected(rank, lanes, replicas, 4)
        assert len(own.intersection(parts)) >= len(parts) * 0.6, "with unequal shares some are helped with"


def test_a_fast_replica_helps_behind_what_the_slow_one_has_begun_to_read():
    made = dealer(2, 2)
    assert made.give(1, (0, 1)) == 1
    fast = [step(made, 0) for _ in range(LEAD + 4)]
    ahead = [part for part in fast if part % 2 == 0]
    helped = [part for part in fast if part % 2]
    assert ahead == list(range(0, 3 + 2 * LEAD, 2)), "the lowest that waits is 3"
    assert helped[:2] == [3 + 2 * RESERVED, 5 + 2 * RESERVED]
    made.settle(1)
    assert [step(made, 1), step(made, 1)] == [3, 5]


def test_what_a_lost_replica_left_in_its_lane_is_taken_over_from_its_lowest_number():
    made = dealer(2, 2)
    made.give(1, (0, 1))
    made.lose(1)
    assert made.give(0, (0,)) == 1
    made.settle(1)
    parts = []
    for _ in range(4 * LEAD):
        parts.append(made.give(0, (0,)))
        made.settle(parts[-1])
    done = {1, *parts}
    assert made.settled_below >= 2 * LEAD
    assert set(range(made.settled_below)) <= done


@given(st.sampled_from(SHAPES), STORIES, st.integers(1, 60))
def test_in_any_story_the_steps_of_a_fit_are_made_of_its_numbers_each_once(shape, story, steps):
    made = dealer(*shape)
    held, done = {}, []

    def give(rank):
        left = steps - len(done) - len(held)
        if rank not in held and left > 0:
            held[rank] = made.give(rank, range(4), left=left)

    def settle(rank):
        if rank in held:
            part = held.pop(rank)
            made.pushed(rank, part)
            made.settle(part)
            done.append(part)

    for act, rank in [*story, *[("step", rank) for rank in range(4)] * steps]:
        if act == "lose":
            made.lose(rank)
            held.pop(rank, None)
        elif act == "resume":
            made = dealer(shape[0] + rank % 2, shape[1], made.export())
            held.clear()
        else:
            give(rank)
            if act == "step":
                settle(rank)
    assert sorted(done) == list(range(steps))
