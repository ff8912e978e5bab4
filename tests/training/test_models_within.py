"""Models that stand in others as if they were layers: their names nest, and they stay what they are."""

import json

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import InputError, SpecError
from dtrain.strategies.single import SingleStrategy

L = dt.layers
X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)


@pytest.fixture(autouse=True)
def alone():
    with SingleStrategy().scope():
        yield


def autoencoder(**shape):
    encoder = dt.Sequential([L.Dense(3, activation="relu", **shape), L.Dense(2)], name="encoder")
    decoder = dt.Sequential([L.Dense(3, activation="relu"), L.Dense(4)], name="decoder")
    return dt.Sequential([encoder, decoder]), encoder, decoder


def names(model):
    return [spec.name for spec in model.variables]


@pytest.mark.parametrize("shape", [{"input_shape": (4,)}, {}], ids=["shape told", "shape from the data"])
def test_models_with_unnamed_layers_are_joined(shape):
    whole, encoder, decoder = autoencoder(**shape)
    whole.compile("sgd", "mse")
    whole.fit(X, X, verbose=0)
    assert names(whole) == [
        *("encoder/dense/kernel", "encoder/dense/bias", "encoder/dense_1/kernel", "encoder/dense_1/bias"),
        *("decoder/dense/kernel", "decoder/dense/bias", "decoder/dense_1/kernel", "decoder/dense_1/bias"),
    ]
    assert names(encoder) == ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]
    np.testing.assert_allclose(decoder.predict(encoder.predict(X)), whole.predict(X), rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(
        whole.get_weights(), [*encoder.get_weights(), *decoder.get_weights()], strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_models_without_names_get_numbers_and_values_of_their_own():
    made = [dt.Sequential([L.Dense(4, input_shape=(4,))]) for _ in range(3)]
    x = dt.Input((4,))
    ensemble = dt.Model(x, L.average([each(x) for each in made]))
    assert names(ensemble)[::2] == [
        "sequential/dense/kernel",
        "sequential_1/dense/kernel",
        "sequential_2/dense/kernel",
    ]
    first, second, _ = ensemble.get_weights()[::2]
    assert not np.array_equal(first, second)
    expected = np.mean([each.predict(X) for each in made], axis=0)
    np.testing.assert_allclose(ensemble.predict(X), expected, rtol=1e-5, atol=1e-6)


def test_layers_of_several_models_are_joined():
    one, other = (dt.Sequential([L.Dense(4, input_shape=(4,)), L.Dense(4)]) for _ in range(2))
    joined = dt.Sequential([*one.layers, *other.layers])
    assert names(joined)[::2] == ["dense/kernel", "dense_1/kernel", "dense_2/kernel", "dense_3/kernel"]
    assert joined.get_layer("dense_2") is other.layers[0]
    np.testing.assert_allclose(joined.predict(X), other.predict(one.predict(X)), rtol=1e-5, atol=1e-6)
    again = dt.Sequential.from_config(json.loads(json.dumps(joined.get_config())))
    assert names(again) == names(joined)


def test_a_model_within_is_one_of_the_layers():
    whole, encoder, decoder = autoencoder(input_shape=(4,))
    assert whole.layers == [encoder, decoder]
    assert whole.get_layer("decoder") is decoder
    assert whole.network.output_names == ["decoder"]
    said = []
    whole.summary(print_fn=said.append)
    assert "encoder (Sequential)  (None, 2)     23" in said[0]
    assert "decoder (Sequential)  (None, 4)     25" in said[0]
    with pytest.raises(InputError, match="has no layer dense; it has encoder, decoder"):
        whole.get_layer("dense")
    whole.get_layer("encoder").trainable = False
    assert [spec.trainable for spec in whole.variables] == [False] * 4 + [True] * 4


def test_models_within_models_within_models():
    whole, encoder, _ = autoencoder(input_shape=(4,))
    outer = dt.Sequential([whole, L.Dense(1)], name="outer")
    assert names(outer)[0] == "sequential/encoder/dense/kernel"
    assert names(outer)[-1] == "dense/bias"
    outer.compile("sgd", "mse")
    outer.fit(X, X[:, :1], verbose=0)
    np.testing.assert_array_equal(encoder.get_weights()[0], outer.get_weights()[0])
    again = dt.Sequential.from_config(json.loads(json.dumps(outer.get_config())))
    assert names(again) == names(outer)


def test_a_model_that_is_used_twice_has_its_variables_once(tmp_path):
    tower = dt.Sequential([L.Dense(3, input_shape=(4,)), L.BatchNormalization()], name="tower")
    a, b = dt.Input((4,), name="a"), dt.Input((4,), name="b")
    siamese = dt.Model([a, b], L.subtract([tower(a), tower(b)]))
    assert len(siamese.variables) == 6
    siamese.compile(dt.optimizers.SGD(0.1), "mse")
    siamese.fit(([X, X + 1], X[:, :3]), verbose=0)
    expected = tower.predict(X) - tower.predict(2 * X)
    np.testing.assert_allclose(siamese.predict([X, 2 * X]), expected, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(tower.get_weights()[4], np.zeros(3)), "the moving averages have moved"
    siamese.save(tmp_path / "siamese")
    np.testing.assert_array_equal(
        dt.load_model(tmp_path / "siamese").predict([X, 2 * X]), siamese.predict([X, 2 * X])
    )


def test_models_within_come_back_from_a_file(tmp_path):
    whole, encoder, _ = autoencoder(input_shape=(4,))
    whole.compile("sgd", "mse")
    whole.fit(X, X, verbose=0)
    whole.save(tmp_path / "whole")
    again = dt.load_model(tmp_path / "whole")
    assert names(again) == names(whole)
    part = again.get_layer("encoder")
    assert isinstance(part, dt.Sequential)
    assert [layer.name for layer in part.layers] == ["dense", "dense_1"]
    np.testing.assert_array_equal(part.predict(X), encoder.predict(X))
    again.fit(X, X, verbose=0)
    np.testing.assert_array_equal(part.get_weights()[0], again.get_weights()[0])
    assert part is again.layers[0]


def test_what_models_within_share_they_share_again_from_a_file(tmp_path):
    x = dt.Input((4,))
    base = L.Dense(3)(x)
    heads = [dt.Model(x, L.Dense(1)(base), name=name) for name in ("left", "right")]
    y = dt.Input((4,))
    both = dt.Model(y, [head(y) for head in heads])
    assert len(both.variables) == 6
    both.compile("sgd", "mse")
    both.fit(X, [X[:, :1], X[:, 1:2]], verbose=0)
    both.save(tmp_path / "both")
    again = dt.load_model(tmp_path / "both")
    assert names(again) == names(both)
    for ours, theirs in zip(again.predict(X), both.predict(X), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_values_of_a_part_outlive_the_model_in_which_they_were_drawn():
    part = dt.Sequential([L.Dense(2, input_shape=(4,))])
    found = dt.Sequential([part, L.Softmax()]).predict(X)
    np.testing.assert_array_equal(dt.activations.softmax(part.predict(X)), found)


def test_a_subclass_within_is_kept_as_what_it_extends(tmp_path):
    class Mine(dt.Sequential):
        pass

    made = dt.Sequential([Mine([L.Dense(2, input_shape=(4,))]), L.Dense(1)])
    made.compile("sgd", "mse")
    made.fit(X, X[:, :1], verbose=0)
    made.save(tmp_path / "made")
    assert type(dt.load_model(tmp_path / "made").layers[0]) is dt.Sequential


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c["models"][0].update(kind="Layer"),
        lambda c: c["models"][0].update(name=3),
        lambda c: c["models"][0].update(outputs=[]),
        lambda c: c["models"][0]["steps"][1].update(model=0),
        lambda c: c["steps"][1].update(model=2),
        lambda c: c["steps"][1].update(training="yes"),
        lambda c: c["steps"][1].update(inputs=[[0, 0], [0, 0]]),
        lambda c: c["steps"][2].update(inputs=[[1, 1]]),
    ],
)
def test_a_damaged_config_of_models_within_is_refused(damage):
    config = autoencoder(input_shape=(4,))[0].get_config()
    damage(config)
    with pytest.raises(SpecError):
        dt.Sequential.from_config(config)
