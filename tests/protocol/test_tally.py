"""Sums of loss and metrics: by epoch of their step, back with a checkpoint."""

import numpy as np
import pytest
from row_by_row import every_row

from dtrain.errors import InputError
from dtrain.messages import Sums
from dtrain.protocol.tally import KINDS_MAX, Tally, check, merged
from dtrain.state.fit_state import FitState, Lineage


def sums(*totals, names=("loss",)):
    return Sums(names=tuple(names), totals=np.array(totals, "<f8").tobytes())


def tally(**more):
    return Tally(**{"first_step": 10, "steps_per_epoch": 2, "first_epoch": 3} | more)


def state(**more):
    return FitState(lineage=Lineage(first_step=10), steps_per_epoch=2, first_epoch=3, **more)


def test_a_contribution_belongs_to_the_epoch_of_its_step():
    made = tally()
    for version, loss in enumerate([1.0, 3.0, 10.0], start=10):
        made.add(version, sums(4, 4 * loss))
    assert [(epoch, merged([each], 0)[0]) for epoch, each in made.open()] == [
        (3, {"loss": 2.0}),
        (4, {"loss": 10.0}),
    ]


def test_means_are_over_examples_and_names_may_differ_between_steps():
    made = tally()
    made.add(10, sums(1, 5, 7, names=("loss", "largest")))
    made.add(10, sums(3, 9))
    assert merged([each for _, each in made.open()], 0)[0] == {"loss": 14 / 4, "largest": 7.0}


def test_states_of_metrics_add_up():
    made = tally()
    made.add(10, sums(1, 5, 1, 2))
    made.add(11, sums(1, 5, 10, 20))
    [(_, total)] = made.open()
    assert merged([total], 2)[1].tolist() == [11.0, 22.0]


def test_ended_epochs_keep_their_row_and_lose_their_sums_and_a_rollback_forgets_later_rows():
    made = tally()
    for version in range(10, 16):
        made.add(version, sums(1, version))
    made.record(5, {3: {"loss": 1.0}, 4: {"loss": 2.0}})
    assert [epoch for epoch, _ in made.open()] == [5]
    made.record(4, {})
    assert made.rows == {3: {"loss": 1.0}}


def test_it_goes_on_where_a_checkpoint_stands():
    made = tally()
    made.add(10, sums(2, 6))
    again = Tally.of(state(tally=made.open(), history={1: {2: {"loss": 9.0}}}))
    again.add(11, sums(2, 2))
    assert merged([each for _, each in again.open()], 0)[0] == {"loss": 2.0}
    assert again.rows == {2: {"loss": 9.0}}


def test_sums_are_float64():
    made = tally()
    made.add(10, sums(1, 2.0**53))
    made.add(10, sums(1, 1.0))
    made.add(10, sums(1, 1.0 + 2.0**-30))
    [(_, total)] = made.open()
    assert np.frombuffer(total.totals, "<f8")[1] == 2.0**53 + 2


@every_row(
    "totals, said",
    [
        (b"", "0 bytes for 1 names"),
        (b"abc", "3 bytes for 1 names"),
        (np.ones(1).tobytes(), "8 bytes for 1 names"),
        (np.array([np.nan, 1.0]).tobytes(), "nan examples"),
        (np.array([np.inf, 1.0]).tobytes(), "inf examples"),
        (np.array([-1.0, 1.0]).tobytes(), "-1 examples"),
    ],
)
def test_sums_that_cannot_be_counted_are_refused(totals, said):
    odd = Sums(names=("loss",), totals=totals)
    with pytest.raises(InputError, match=f"^sums of {said}$"):
        check(odd)
    with pytest.raises(InputError):
        Tally.of(state(tally=((3, odd),)))


def test_sums_of_no_example_and_states_of_other_metrics_change_nothing():
    whole = sums(2, 6, 1, 2)
    odd = [
        sums(0, 1, 0, 0, names=("nothing",)),
        sums(1, 1, 1, names=("other",)),
        sums(1, *[9] * 50, names=("x",)),
    ]
    means, states = merged([whole, *odd], 2)
    assert means == {"loss": 3.0, "other": 1.0, "x": 9.0}
    assert states.tolist() == [1.0, 2.0]


def test_an_epoch_has_few_sets_of_names():
    made = tally()
    for number in range(KINDS_MAX + 10):
        made.add(10, sums(1, 1, names=(f"n{number}",)))
    made.add(12, sums(1, 1))
    assert [epoch for epoch, _ in made.open()] == [3] * KINDS_MAX + [4]
