"""Rounds of local steps: every batch is in one round, in order, and an epoch ends with a round."""

from itertools import chain

import pytest

from dtrain.state.rounds import Rounds, speeds_of


@pytest.mark.parametrize("local_steps", [1, 2, 3, 7, 10, 11])
@pytest.mark.parametrize("steps_per_epoch", [1, 3, 10])
def test_rounds_have_every_batch_once_and_end_with_epochs(local_steps, steps_per_epoch):
    rounds = Rounds(local_steps, steps_per_epoch)
    epochs = 3
    made = [rounds.batches(number) for number in range(epochs * rounds.per_epoch)]
    assert list(chain(*made)) == list(range(epochs * steps_per_epoch))
    assert all(1 <= len(batches) <= local_steps for batches in made)
    for epoch in range(epochs):
        assert made[epoch * rounds.per_epoch].start == epoch * steps_per_epoch
    shorter = [batches for batches in made if len(batches) < local_steps]
    assert len(shorter) <= epochs, "only the last round of an epoch has fewer"


def test_a_dealt_part_is_the_same_part_of_each_batch_of_its_round():
    rounds = Rounds(2, 5)  # rounds of the batches 0 1, 2 3, 4, 5 6, 7 8, 9
    assert rounds.parts(4, parts=3) == [2 * 3 + 1, 3 * 3 + 1]
    assert rounds.parts(8, parts=3) == [4 * 3 + 2]
    assert [rounds.steps_before(number) for number in range(7)] == [0, 2, 4, 5, 7, 9, 10]


@pytest.mark.parametrize("speeds", [(1000, 1000, 1000), (1000, 200, 1000), (1, 1000, 3)])
def test_replicas_that_share_a_round_by_speed_have_every_part_of_its_batches_once(speeds):
    rounds = Rounds(4, 10)
    for number in range(6):
        shares = [rounds.parts(number * 3 + place, 3, speeds) for place in range(3)]
        every = [batch * 3 + place for batch in rounds.batches(number) for place in range(3)]
        assert list(chain(*shares)) == every
        assert all(shares), "each has a step at least"


def test_a_replica_that_is_five_times_slower_has_a_fifth_of_the_steps():
    speeds = speeds_of({0: 0.01, 1: 0.05, 2: 0.01}, parts=3)
    assert speeds == (1000, 200, 1000)
    shares = [len(Rounds(20, 20).parts(place, 3, speeds)) for place in range(3)]
    assert sum(shares) == 60
    assert shares[0] / shares[1] == pytest.approx(5, rel=0.2)
    assert speeds_of({}, parts=2) == (1000, 1000)
    assert speeds_of({0: 0.01, 1: 0.03}, parts=3)[2] == round(1000 * 2 / 3)
