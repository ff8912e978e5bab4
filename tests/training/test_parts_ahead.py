"""`fit` on data that are read ahead: the same weights, no batch beyond the last, no thread left."""

import re
import threading
import time

import numpy as np
import pytest
from launching import wait_until

import dtrain as dt
from dtrain.data import AUTOTUNE, Dataset
from dtrain.state.batch_cut import BatchCut
from dtrain.training.fits import fitting
from dtrain.training.parts import forecasts_of


def trained(dataset, **fit):
    """The weight after training whose gradients are the sums of the batches, times their place."""
    seen = []

    def gradients(weights, x, y, *_):
        seen.append(x.tolist())
        return 0.0, {"w": np.array([float(np.sum(x) * len(seen))])}

    with dt.get_strategy().scope():
        model = dt.from_function(lambda *_: {"w": np.zeros(1)}, gradients)
        model.compile(optimizer=dt.optimizers.SGD(1.0))
    model.fit(dataset, verbose=0, **fit)
    return float(model.arrays["w"][0]), seen


@pytest.mark.parametrize("calls", [None, 3])
@pytest.mark.parametrize(
    "made", [lambda made: made, lambda made: lambda context: made], ids=["data", "function"]
)
def test_weights_are_the_same_and_nothing_is_read_that_is_not_trained_on(calls, made):
    read = []

    def pipeline(calls):
        def note(x):
            read.append(int(x))
            return x, x

        return Dataset.range(20).shuffle(20, seed=1).map(note, calls).batch(4)

    plain, seen = trained(made(pipeline(None)), epochs=3, steps_per_epoch=4)
    assert len(seen) == 12
    read.clear()
    assert trained(made(pipeline(calls).prefetch(AUTOTUNE)), epochs=3, steps_per_epoch=4) == (plain, seen)
    beside = [x for batch in seen for x in batch]
    assert len(read) <= len(beside) + 8, "besides the first batch, for its shapes"
    wait_until(lambda: not [each for each in threading.enumerate() if each.name.startswith("dtrain-input")])


def test_forecasts_follow_the_dealer():
    def upcoming(ranks, *arguments):
        forecasts = forecasts_of(ranks, *arguments)
        for rank, forecast in zip(ranks, forecasts, strict=True):
            forecast.asked(rank)
        return [forecast.upcoming(3) for forecast in forecasts]

    assert upcoming([1], BatchCut(3), 3, 100) == [[4, 7, 10]], "synchronous: its part of each batch"
    assert upcoming([0], BatchCut(3), 2, 100) == [[2, 3, 5]], "two replicas left of three"
    assert upcoming([1], BatchCut(1), 4, 7) == [[5]], "asynchronous: its lane, up to the last step"
    assert upcoming([0, 1], BatchCut(2), 2, 100) == [[2, 4, 6], [3, 5, 7]]


def test_a_training_that_waits_for_its_input_says_so_at_its_end(capsys, monkeypatch):
    def slow(x):
        time.sleep(0.02)
        return x, x

    monkeypatch.setattr(fitting, "INPUT_BOUND_S", 0.0)
    trained(Dataset.range(40).map(slow).batch(4), epochs=1)
    said = capsys.readouterr().err
    assert re.search(
        r"fit: input-bound: \d+% of each step; dataset.map\(.*\) and .prefetch\(AUTOTUNE\)", said
    )
    activity = dt.get_strategy().context.activity
    assert activity.reading_since_s is None
    assert activity.input_s >= 0.2
