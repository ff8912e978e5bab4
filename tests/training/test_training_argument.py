"""``training=`` in calls: of a model on a batch, and of layers and models in functional models, where it
holds for good.
"""

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import SpecError
from dtrain.strategies.single import SingleStrategy

L = dt.layers
X = np.random.default_rng(0).normal(2, 3, size=(32, 4)).astype(np.float32)


@pytest.fixture(autouse=True)
def alone():
    with SingleStrategy().scope():
        yield


def base():
    return dt.Sequential(
        [L.Dense(3, input_shape=(4,)), L.BatchNormalization(momentum=0.5), L.Dropout(0.5)], name="base"
    )


def fine_tuned(training, **more):
    inner, x = base(), dt.Input((4,))
    model = dt.Model(x, L.Dense(1)(inner(x, training=training, **more)))
    model.compile(dt.optimizers.SGD(0.01), "mse")
    return model, inner


def moved(inner):
    return not np.array_equal(inner.get_weights()[4], np.zeros(3))


def test_a_base_that_is_called_with_training_false_computes_as_in_inference():
    model, inner = fine_tuned(training=False)
    kernel, averages = inner.get_weights()[0], inner.get_weights()[4:6]
    expected = model.predict(X)
    seen = []
    model.train_step = lambda step: [seen.append(step.forward()), step.backward(seen[-1]), {"loss": 0.0}][-1]
    model.fit(X, X[:, :1], batch_size=32, shuffle=False, verbose=0)
    np.testing.assert_allclose(seen[0], expected, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(inner.get_weights()[0], kernel), "it is trained all the same"
    for before, after in zip(averages, inner.get_weights()[4:6], strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("training", [None, True])
def test_else_it_trains_with_the_model_around_it(training):
    model, inner = fine_tuned(training)
    model.fit(X, X[:, :1], verbose=0)
    assert moved(inner)


def test_training_true_drops_in_inference_too():
    model, inner = fine_tuned(training=True)
    one, other = model.predict(X), model.predict(X)
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(inner.predict(X), inner.predict(X))
    assert model.evaluate(X, X[:, :1], verbose=0) > 0
    assert not moved(inner), "predictions and evaluations move no averages"


def test_a_model_is_called_on_a_batch_as_in_training():
    inner = base()
    assert not np.array_equal(inner(X, training=True), inner(X))
    np.testing.assert_array_equal(inner(X, training=False), inner.predict(X))
    normalized = dt.Sequential([L.BatchNormalization(input_shape=(4,))])(X, training=True)
    np.testing.assert_allclose(normalized.mean(axis=0), np.zeros(4), atol=1e-5)


def test_what_a_layer_was_told_counts_more_than_what_the_models_around_it_are():
    x = dt.Input((4,))
    noisy = dt.Model(x, L.Dropout(0.5)(x, training=True))
    y = dt.Input((4,))
    model = dt.Model(y, noisy(y, training=False))
    assert not np.array_equal(model.predict(X), X)
    quiet = dt.Model(x, L.Dropout(0.5)(x, training=False))
    np.testing.assert_array_equal(dt.Model(y, quiet(y, training=True)).predict(X), X)


def test_one_layer_may_be_told_both():
    x, dropout = dt.Input((4,)), L.Dropout(0.5)
    model = dt.Model(x, [dropout(x, training=True), dropout(x, training=False)])
    dropped, kept = model.predict(X)
    np.testing.assert_array_equal(kept, X)
    assert 0.2 < np.mean(dropped == 0) < 0.8


def test_files_keep_it(tmp_path):
    model, _ = fine_tuned(training=False)
    model.save(tmp_path / "model")
    again = dt.load_model(tmp_path / "model")
    again.fit(X, X[:, :1], verbose=0)
    assert not moved(again.get_layer("base"))


def test_what_an_onnx_file_cannot_say_is_refused(tmp_path):
    pytest.importorskip("onnx")
    fine_tuned(training=False)[0].export(tmp_path / "model.onnx")
    with pytest.raises(SpecError, match="called with training=True"):
        fine_tuned(training=True)[0].export(tmp_path / "model.onnx")
