"""Shapes as users of Keras say them: with a batch axis, unsaid before an embedding, one axis short."""

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import InputError
from dtrain.strategies.single import SingleStrategy

L = dt.layers


@pytest.fixture(autouse=True)
def alone():
    with SingleStrategy().scope():
        yield


@pytest.mark.parametrize("shape", [(None, 8), [None, 8], (8,)])
def test_a_leading_none_is_the_batch_axis(shape):
    model = dt.Sequential([L.Dense(4), L.Dense(1)])
    model.build(shape)
    assert model.input_shape == (None, 8)
    model.compile("sgd", "mse")
    model.fit(np.ones((32, 8)), np.ones((32, 1)), verbose=0)


def test_each_of_several_inputs_may_have_a_batch_axis():
    model = dt.Model.from_config(
        dt.Model([a := L.Input((3,)), b := L.Input((2,))], L.concatenate([a, b])).get_config()
    )
    for step in model.network.graph.inputs:
        step.layer.input_shape = None
    made = dt.Model.from_config(model.get_config())
    made.build([(None, 3), (None, 2)])
    assert made.input_shape == [(None, 3), (None, 2)]


def test_a_length_that_is_free_stays_free_behind_the_batch_axis():
    model = dt.Sequential([L.LSTM(2)])
    model.build((None, None, 3))
    assert model.input_shape == (None, None, 3)
    assert model.predict(np.ones((2, 7, 3)), verbose=0).shape == (2, 2)


def embedding_first(**more):
    return [L.Embedding(10, 4, **more), L.GlobalAveragePooling1D(), L.Dense(1)]


def test_an_embedding_knows_what_stands_before_it():
    said = []
    model = dt.Sequential(embedding_first(), name="reviews")
    model.summary(print_fn=said.append)
    assert "(None, None, 4)" in said[0]
    assert "Total params: 45" in said[0]
    assert [weight.shape for weight in model.get_weights()] == [(10, 4), (4, 1), (1,)]
    assert dt.Sequential(embedding_first(input_length=5)).input_shape == (None, 5)
    model.compile("sgd", "mse")
    model.fit(np.ones((6, 7), int), np.ones(6), verbose=0)
    assert model.predict(np.ones((2, 3), int), verbose=0).shape == (2, 1), "another length"


def test_data_say_what_stands_before_an_embedding_where_nobody_asked_before():
    model = dt.Sequential([L.Embedding(10, 4), L.Flatten(), L.Dense(1)])
    assert model.predict(np.ones((2, 3), int), verbose=0).shape == (2, 1)
    with pytest.raises(InputError, match=r"dense \(Dense\): expected a known length of axis -1"):
        dt.Sequential([L.Embedding(10, 4), L.Flatten(), L.Dense(1)]).summary()


def test_other_layers_do_not():
    with pytest.raises(InputError, match="its shapes are unknown"):
        dt.Sequential([L.Dense(1)]).summary()


def test_numbers_become_examples_of_length_one_where_the_model_wants_these():
    model = dt.Sequential([L.Dense(1, input_shape=[1], kernel_initializer="ones")])
    model.compile(dt.optimizers.SGD(0.0), "mse", metrics=["mae"])
    x = np.arange(10.0)
    column = x[:, np.newaxis]
    assert model.fit(x, x + 1, verbose=0).history == model.fit(column, column + 1, verbose=0).history
    assert model.evaluate(x, x + 1, verbose=0) == [1.0, 1.0]
    for predict in (model.predict, model.predict_on_batch, model):
        np.testing.assert_array_equal(predict(x), column)
    assert model.train_on_batch(x, x + 1) == [1.0, 1.0]
    assert model.test_on_batch(x, x + 1) == [1.0, 1.0]


def test_so_do_inputs_of_several_axes_and_of_a_dict():
    a, b = L.Input((4, 1), name="a"), L.Input((), name="b")
    model = dt.Model([a, b], [L.Flatten()(a), L.Rescaling(2.0)(b)])
    flat, twice = model.predict({"a": np.ones((3, 4)), "b": np.ones((3, 1))}, verbose=0)
    assert (flat.shape, twice.shape) == ((3, 4), (3,)), "an axis of length 1 too many is dropped, too"


def test_other_axes_are_not_made_up():
    model = dt.Sequential([L.Dense(1, input_shape=(2,))])
    with pytest.raises(InputError, match=r"expected an input of shape \(batch, 2\), found \(10,\)"):
        model.predict(np.arange(10.0), verbose=0)
