"""Models made of models, and models that use the same layers: they share the values of the variables."""

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import InputError, ProgramError, SpecError
from dtrain.strategies.single import SingleStrategy

X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)


@pytest.fixture(autouse=True)
def alone():
    with SingleStrategy().scope():
        yield


def stack(*names, width=4):
    return dt.Sequential([dt.layers.Dense(width, name=name, input_shape=(width,)) for name in names])


def test_a_trained_model_at_the_bottom_of_a_stack():
    logits = stack("logits")
    logits.compile("sgd", "mse")
    logits.fit(X, X, verbose=0)
    probabilities = dt.Sequential([logits, dt.layers.Softmax()])
    expected = dt.activations.softmax(logits.predict(X))
    np.testing.assert_array_equal(probabilities.predict(X), expected)
    logits.fit(X, X, verbose=0)
    assert not np.array_equal(probabilities.predict(X), expected), "what one learns the other knows"


def test_an_encoder_learns_within_an_autoencoder():
    x = dt.Input((4,))
    code = dt.layers.Dense(2)(x)
    encoder = dt.Model(x, code)
    whole = dt.Model(x, dt.layers.Dense(4)(code))
    before = encoder.predict(X)
    whole.compile("sgd", "mse")
    seen = []
    note = dt.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(encoder.predict(X)))
    whole.fit(X, X, epochs=2, verbose=0, callbacks=[note])
    assert not np.array_equal(seen[0], before)
    assert not np.array_equal(seen[1], seen[0])
    np.testing.assert_array_equal(encoder.predict(X), seen[1])
    np.testing.assert_array_equal(encoder.get_weights()[0], whole.get_weights()[0])


def test_weights_that_a_callback_sets_by_another_model_are_in_force():
    x = dt.Input((4,))
    code = dt.layers.Dense(2)(x)
    encoder, whole = dt.Model(x, code), dt.Model(x, dt.layers.Dense(4)(code))
    encoder.get_weights()
    whole.compile(dt.optimizers.SGD(0.0), "mse")
    ones = [np.ones((4, 2)), np.ones(2)]
    whole.fit(
        X,
        X,
        verbose=0,
        callbacks=[
            dt.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: encoder.set_weights(ones))
        ],
    )
    assert np.array_equal(whole.get_weights()[0], ones[0])


def test_models_are_called_like_layers():
    x, y = dt.Input((4,), name="x"), dt.Input((4,), name="y")
    tower = stack("shared")
    distance = dt.layers.subtract([tower(x), tower(y)])
    siamese = dt.Model({"x": x, "y": y}, distance)
    assert [spec.name for spec in siamese.variables] == ["sequential/shared/kernel", "sequential/shared/bias"]
    np.testing.assert_allclose(
        siamese.predict({"x": X, "y": 2 * X}), tower.predict(X) - tower.predict(2 * X), rtol=1e-5, atol=1e-6
    )
    two = dt.Model([x, y], [distance, tower(x)])
    assert [each.shape for each in dt.Model([x, y], two([x, y])).predict([X, X])] == [(16, 4), (16, 4)]


def test_the_inside_of_a_model_is_looked_at():
    made = stack("one", "two", "three")
    half = dt.Model(made.input, made.get_layer("two").output)
    np.testing.assert_array_equal(dt.Sequential([half, made.layers[-1]]).predict(X), made.predict(X))
    with pytest.raises(ProgramError, match="has no output before"):
        _ = dt.layers.Dense(1).output


def test_frozen_layers_of_a_part_stay_what_they_are():
    base = stack("base")
    base.trainable = False
    made = dt.Sequential([base, dt.layers.Dense(1)])
    made.compile("sgd", "mse")
    before = base.get_weights()
    made.fit(X, X[:, :1], verbose=0)
    np.testing.assert_array_equal(base.get_weights()[0], before[0])
    assert made.count_params() == 25


def test_what_does_not_fit():
    with pytest.raises(InputError, match="shapes are unknown; give the first layer an input_shape"):
        dt.Sequential([dt.layers.Dense(4), stack("inner")]).summary()
    with pytest.raises(SpecError, match=r"must be unique; found twice: \['same'\]"):
        dt.Sequential([dt.layers.Dense(1, name="same"), dt.layers.Dense(1, name="same")]).summary()
    with pytest.raises(InputError, match=r"expected an input of shape \(batch, 3\), found \(batch, 4\)"):
        dt.Sequential([stack("a"), stack("b", width=3)]).summary()
