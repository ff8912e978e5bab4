"""`fit` takes a dataset that ends without saying how long it is: an epoch is the data, once, as in Keras."""

import numpy as np
import pytest
from row_by_row import every_row

import dtrain as dt
from dtrain.data.node import INFINITE, UNKNOWN
from dtrain.data.ordering import counted
from dtrain.errors import InputError, InvalidArgumentError


def rows(count):
    for number in range(count):
        yield np.float32([number / 20, 1]), np.float32(number / 20)


def generated(count=20):
    return dt.data.Dataset.from_generator(
        lambda: rows(count), output_types=("float32", "float32"), output_shapes=((2,), ())
    )


def ranged():
    return dt.data.Dataset.range(60)


def pair(number):
    return np.float32([number, 1]), np.float32(number)


@every_row(
    "dataset, steps",
    [
        (lambda: generated().batch(4), 5),
        (lambda: generated(18).batch(4), 5),
        (lambda: generated(18).batch(4, drop_remainder=True), 4),
        (lambda: generated().shuffle(5, seed=1).batch(4).prefetch(2), 5),
        (lambda: generated().batch(4).repeat(3), 15),
        (lambda: generated().take(7).batch(2), 4),
        (lambda: generated().repeat().take(30).batch(4), 8),
        (lambda: ranged().take_while(lambda number: number < 9).map(pair).batch(4), 3),
        (
            lambda: (
                ranged()
                .window(3, 2, drop_remainder=True)
                .flat_map(lambda w: w.batch(3))
                .map(lambda w: (w[:2].astype(np.float32), w[2].astype(np.float32)))
                .batch(5)
            ),
            6,
        ),
        (
            lambda: (
                dt.data.Dataset.zip((generated(), dt.data.Dataset.counter()))
                .map(lambda row, number: row)
                .batch(4)
            ),
            5,
        ),
    ],
)
def test_an_epoch_is_the_data_once(dataset, steps):
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,))])
    model.compile(dt.optimizers.SGD(1e-4), "mse")
    history = model.fit(dataset(), epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2
    assert int(model.optimizer.iterations) == 2 * steps


def test_what_is_made_of_elements_is_not_computed_to_count_them():
    calls = []

    def noted(x, y):
        calls.append(1)
        return x, y

    told = []
    node = counted(generated(18).map(noted).batch(4).node, told.append)
    assert node.cardinality == 5
    assert told[-1] == 18
    assert not calls


def test_data_without_an_end_are_not_counted():
    endless = generated().repeat().batch(4)
    assert endless.cardinality() == INFINITE
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,))])
    model.compile("sgd", "mse")
    with pytest.raises(InputError, match="expected steps_per_epoch"):
        model.fit(endless, verbose=0)


def test_an_asserted_number_is_taken_and_checked():
    assert_cardinality = dt.data.experimental.assert_cardinality
    dataset = generated(20)
    assert dataset.cardinality() == UNKNOWN
    asserted = dataset.apply(assert_cardinality(20))
    assert asserted.cardinality() == len(asserted) == 20
    assert len(list(asserted)) == 20
    assert asserted.batch(4).cardinality() == 5
    for wrong, told in ((21, "found 20"), (19, "found more than 19")):
        with pytest.raises(InvalidArgumentError, match=told):
            list(dataset.apply(assert_cardinality(wrong)))
    assert dataset.repeat().apply(assert_cardinality(INFINITE)).cardinality() == INFINITE
    for number in (-2, 2.5, "3"):
        with pytest.raises(InvalidArgumentError, match="expected a number of elements"):
            assert_cardinality(number)
