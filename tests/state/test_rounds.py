"""Rounds of local steps: every batch is in one round, in order, and an epoch ends with a round."""

from itertools import chain

import pytest

from dtrain.state.rounds import Rounds


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
