"""Generator objects as data: read once, in a process that trains alone; a run of several tasks refuses them."""

from itertools import count

import numpy as np
import pytest
from in_memory import InMemoryCluster

import dtrain as dt
from dtrain.data import user_data
from dtrain.errors import InputError

EXAMPLES = 6


def batches(numbers=range(EXAMPLES), taken=None):
    """Batches of one example each, in arrays that are filled anew; the gradient of each counts its example."""
    x, y = np.zeros((1, EXAMPLES), np.float32), np.full((1, 1), 1e6, np.float32)
    for number in numbers:
        if taken is not None:
            taken.append(number)
        x[:] = np.eye(EXAMPLES)[number % EXAMPLES]
        yield x, y


def build(**first):
    model = dt.Sequential([dt.layers.Dense(1, use_bias=False, kernel_initializer="zeros", **first)])
    model.compile(dt.optimizers.SGD(1.0), dt.losses.MeanAbsoluteError(reduction="sum"))
    return model


def counts(model):
    return np.rint(model.get_weights()[0].ravel()).astype(int).tolist()


def test_without_steps_an_epoch_ends_with_it_and_has_each_batch_once():
    model = build()
    model.fit(batches(), verbose=0)
    assert counts(model) == [1] * EXAMPLES
    assert model.predict((x for x, _ in batches()), verbose=0).ravel().tolist() == [1.0] * EXAMPLES
    assert model.evaluate(batches(range(3)), verbose=0) == pytest.approx(1e6 - 1)


def test_as_validation_data_every_epoch_has_all_of_it():
    model = build()
    history = model.fit(batches(), epochs=2, validation_data=batches(range(3)), verbose=0).history
    assert history["val_loss"] == pytest.approx([1e6 - 1, 1e6 - 2])


@pytest.mark.parametrize("steps", [1, 2])
def test_as_validation_data_with_steps_each_epoch_goes_on_where_it_stands(steps):
    read = []
    model = build()
    model.test_step = lambda step: read.append(int(step.x.argmax())) or {"loss": 0.0}
    taken = []
    data = batches(count(), taken)
    model.fit(batches(), epochs=3, validation_data=data, validation_steps=steps, verbose=0)
    assert read == taken == list(range(3 * steps))


def test_it_cannot_be_split():
    with pytest.raises(InputError, match=r"validation_split: can only split arrays, found a generator"):
        build().fit(batches(), validation_split=0.5, verbose=0)


def test_with_steps_no_more_is_read_than_they_take_and_the_next_fit_goes_on():
    model, taken = build(), []
    data = batches(count(), taken)
    model.fit(data, steps_per_epoch=2, epochs=2, verbose=0)
    assert (taken, counts(model)) == ([0, 1, 2, 3], [1, 1, 1, 1, 0, 0])
    model.fit(data, steps_per_epoch=1, verbose=0)
    assert counts(model) == [1, 1, 1, 1, 1, 0]


def test_one_that_ends_too_early_or_never_is_refused_with_what_to_do(monkeypatch):
    with pytest.raises(InputError, match=r"generator has ended before the last step.*from_generator"):
        build().fit(batches(), steps_per_epoch=4, epochs=2, verbose=0)
    monkeypatch.setattr(user_data, "GENERATOR_BYTES_MAX", 1000)
    with pytest.raises(InputError, match=r"generator of more than .* without end; expected steps_per_epoch"):
        build().fit(batches(count()), verbose=0)


def test_in_a_run_it_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(InputError, match=r"found a generator.*from_generator"):
        InMemoryCluster(tmp_path, 2, 1, updates="sync").run(
            lambda: build(input_shape=(EXAMPLES,)), lambda model: model.fit(batches(), verbose=0)
        )
