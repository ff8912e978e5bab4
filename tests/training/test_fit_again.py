"""`fit` after `fit`: a model goes on where it was; another model, or a new optimizer, begins at its own
beginning.
"""

import numpy as np
import pytest

import dtrain as dt
from dtrain.strategies.single import SingleStrategy

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(8, 1)
DATA = (X, 3 * X - 1)


@pytest.fixture(autouse=True)
def alone():
    with SingleStrategy().scope():
        yield


def model(width=1):
    made = dt.Sequential([dt.layers.Dense(width, input_shape=(1,)), dt.layers.Dense(1)])
    compiled(made)
    made.set_weights([np.ones(spec.shape) for spec in made.network.variables])
    return made


def compiled(made):
    made.compile(
        optimizer=dt.optimizers.Adam(dt.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)), loss="mse"
    )


def trained(made, epochs=1):
    made.fit(DATA, epochs=epochs, steps_per_epoch=4, batch_size=4, shuffle=False, verbose=0)
    return made.get_weights()


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_model_goes_on_where_it_was():
    in_two = model()
    trained(in_two)
    assert same(trained(in_two), trained(model(), epochs=2))


def test_another_model_knows_nothing_of_the_first():
    assert same(trained(model()), trained(model()))
    assert same(trained(model(width=3)), trained(model(width=3)))


def test_two_models_in_turns_do_not_disturb_each_other():
    expected = trained(model(), epochs=2)
    one, other = model(), model()
    for each in (one, other):
        trained(each)
    assert same(trained(one), expected)
    assert same(trained(other), expected)


def test_a_new_optimizer_begins_at_its_own_step_0():
    again = model()
    trained(again)
    again.set_weights([np.ones(spec.shape) for spec in again.network.variables])
    compiled(again)
    assert same(trained(again), trained(model()))


def test_each_fit_reads_a_generator_from_its_beginning():
    def rows():
        begun.append([])
        for number in range(1000):
            begun[-1].append(number)
            yield np.float32([number]), np.float32([0])

    begun = []
    form = (dt.data.TensorSpec((1,), "float32"),) * 2
    data = dt.data.Dataset.from_generator(rows, output_signature=form).batch(4).prefetch(2)
    made = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    made.compile(optimizer="sgd", loss="mse")
    for _ in range(2):
        begun.clear()
        made.fit(data, steps_per_epoch=5, verbose=0)
        assert begun[-1][:20] == list(range(20))
        assert len(begun[-1]) <= 4 * (5 + 2 + 1), "the depth of prefetch, and a batch under way"
