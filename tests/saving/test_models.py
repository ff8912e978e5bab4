"""Whole models: to a file and back, every layer; what was compiled; an optimizer that goes on where it
was.
"""

import json

import numpy as np
import pytest
from row_by_row import every_row
from saving.zoo import CASES, MERGING, WITHOUT_ONNX, branched, example, merged

import dtrain as dt
from dtrain.errors import CheckpointError, InputError, SpecError
from dtrain.strategies.single import SingleStrategy

X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(8, 2)
Y = (X @ [[1.0], [-2.0]]).astype(np.float32)
CATEGORIES = [
    *(dt.layers.StringLookup, dt.layers.IntegerLookup, dt.layers.TextVectorization, dt.layers.Discretization),
    *(dt.layers.CategoryEncoding, dt.layers.Hashing, dt.layers.HashedCrossing),
]
SIZES = [dt.layers.Resizing, dt.layers.CenterCrop, dt.layers.RandomCrop]


@pytest.fixture(autouse=True)
def alone():
    with SingleStrategy().scope():
        yield


def again(model, path, **keywords):
    model.save(path / "model")
    return dt.load_model(path / "model", **keywords)


def assert_equal(one, other):
    ones, others = (each if isinstance(each, list) else [each] for each in (one, other))
    for a, b in zip(ones, others, strict=True):
        np.testing.assert_array_equal(a, b)


@every_row("name", [*CASES, *WITHOUT_ONNX])
def test_every_layer_comes_back(tmp_path, name):
    case = example(name, seed=1)
    loaded = again(case.model, tmp_path)
    assert type(loaded) is dt.Sequential
    assert loaded.name == case.model.name
    assert loaded.get_config() == case.model.get_config()
    assert [type(layer) for layer in loaded.layers] == [type(layer) for layer in case.model.layers]
    assert_equal(loaded.predict_on_batch(case.x), case.predict())


def test_every_layer_there_is_was_tried():
    tried = {
        type(layer).__name__ for name in [*CASES, *WITHOUT_ONNX] for layer in example(name, 0).model.layers
    }
    tried |= {cls.__name__ for cls in MERGING} | {
        "Input",
        "InputLayer",
        "Layer",
        "Embedding",
        *("Attention", "MultiHeadAttention", "Dot"),  # below
        *("LSTMCell", "GRUCell", "SimpleRNNCell"),  # in RNN
        *(cls.__name__ for cls in (*CATEGORIES, *SIZES)),
        *("TensorFunction", "Lambda"),  # in tests/keras and tests/learning
    }
    assert set(dt.layers.classes()) <= tried


@pytest.mark.parametrize("cls", MERGING)
def test_merging_layers_come_back(tmp_path, cls):
    case = merged(cls, seed=2)
    assert_equal(again(case.model, tmp_path).predict_on_batch(case.x), case.predict())


def test_calls_with_arguments_come_back(tmp_path):
    layers = dt.layers
    x, y = dt.Input((4, 3)), dt.Input((5, 3))
    seen = dt.Input((4, 5), dtype="bool")
    attended, scores = layers.MultiHeadAttention(2, 3)(
        x, layers.Masking()(y), attention_mask=seen, return_attention_scores=True, use_causal_mask=True
    )
    one = layers.Attention()([attended, y], mask=[None, None])
    other = layers.Attention(use_scale=True)([one, y], use_causal_mask=True)
    *_, h, c = layers.LSTM(3, return_state=True)(other)
    z = layers.LSTM(3)(x, initial_state=[h, c])
    model = dt.Model([x, y, seen], [layers.Dot(1)([z, h]), scores])
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 5, 3)), rng.random((2, 4, 5)) < 0.5]
    loaded = again(model, tmp_path)
    assert loaded.get_config() == model.get_config()
    assert_equal(loaded.predict(arrays, verbose=0), model.predict(arrays, verbose=0))


def test_a_graph_comes_back(tmp_path):
    case = branched()
    loaded = again(case.model, tmp_path)
    assert type(loaded) is dt.Model
    assert loaded.name == "two"
    assert_equal(loaded.predict_on_batch(case.x), case.predict())


def categories(cls):
    """A layer that gives categories, with state, and inputs for a model of it."""
    words = np.array([["a"], ["the dog"], ["b"]], object)
    numbers = np.array([[0], [2], [1]], np.int64)
    made = {
        "StringLookup": lambda: (cls(output_mode="tf_idf", mask_token=""), words),
        "IntegerLookup": lambda: (cls(num_oov_indices=2, output_mode="count"), numbers),
        "TextVectorization": lambda: (cls(ngrams=2, output_mode="tf_idf"), words),
        "Discretization": lambda: (cls(num_bins=2, output_mode="one_hot"), numbers),
        "CategoryEncoding": lambda: (cls(3), numbers),
        "Hashing": lambda: (cls(5, salt=3, output_mode="multi_hot"), words),
    }
    layer, x = made[cls.__name__]()
    if hasattr(layer, "adapt"):
        layer.adapt(x[:2])
    return layer, x


@pytest.mark.parametrize("cls", [cls for cls in CATEGORIES if cls is not dt.layers.HashedCrossing])
def test_layers_of_categories_come_back_with_what_they_learned(tmp_path, cls):
    layer, x = categories(cls)
    dtype = "string" if x.dtype == object else "int64"
    model = dt.Sequential([dt.layers.InputLayer(dtype=dtype, input_shape=(1,)), layer])
    expected = model.predict(x)
    assert expected.shape[0] == 3
    assert expected.any()
    loaded = again(model, tmp_path)
    assert_equal(loaded.predict(x), expected)
    assert_equal(layer(x), expected)


@pytest.mark.parametrize("cls", SIZES)
def test_layers_of_other_sizes_of_images_come_back(tmp_path, cls):
    x = np.random.default_rng(0).uniform(0, 255, (2, 6, 7, 3)).astype(np.float32)
    model = dt.Sequential([dt.Input((6, 7, 3)), cls(4, 5)])
    expected = model.predict(x)
    assert expected.shape == (2, 4, 5, 3)
    assert_equal(again(model, tmp_path).predict(x), expected)


def test_a_crossing_of_two_inputs_comes_back(tmp_path):
    city, hour = dt.Input((1,), dtype="string"), dt.Input((1,), dtype="int64")
    crossed = dt.layers.HashedCrossing(8, output_mode="one_hot")([city, hour])
    model = dt.Model([city, hour], crossed)
    x = [np.array([["a"], ["b"]], object), np.array([[1], [2]])]
    expected = model.predict(x)
    loaded = again(model, tmp_path)
    assert expected.shape == (2, 8)
    assert_equal(loaded.predict(x), expected)


def test_lookups_come_back_with_what_they_learned(tmp_path):
    lookup = dt.layers.StringLookup()
    lookup.adapt(["b", "a", "b"])
    model = dt.Sequential(
        [dt.layers.InputLayer(dtype="string", input_shape=(2,)), lookup, dt.layers.Embedding(4, 3)]
    )
    x = np.array([["a", "b"], ["c", "a"]])
    assert_equal(again(model, tmp_path).predict_on_batch(x), model.predict_on_batch(x))


def compiled(optimizer="adam", **keywords):
    model = dt.Sequential(
        [dt.layers.Dense(4, activation="tanh", input_shape=(2,)), dt.layers.Dense(1)], name="mine"
    )
    model.compile(optimizer=optimizer, loss="mse", **keywords)
    model.set_weights([np.full(spec.shape, 0.1) for spec in model.variables])
    return model


def test_what_was_compiled_comes_back(tmp_path):
    loss = dt.losses.Huber(delta=0.5)
    schedule = dt.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,))])
    model.compile(
        dt.optimizers.legacy.Adagrad(schedule, clipnorm=2.0), loss, metrics=["mae"], weighted_metrics=["mse"]
    )
    loaded = again(model, tmp_path)
    assert loaded.optimizer == model.optimizer
    assert loaded.loss == loss
    assert loaded.evaluate(X, Y, return_dict=True) == model.evaluate(X, Y, return_dict=True)
    assert again(model, tmp_path, compile=False).optimizer is None


OPTIMIZERS = [
    lambda: dt.optimizers.Adam(dt.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)),
    lambda: dt.optimizers.SGD(0.1, momentum=0.9),
    lambda: dt.optimizers.RMSprop(0.05, momentum=0.5, centered=True),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_the_optimizer_goes_on_where_it_was(tmp_path, make):
    def trained(model, epochs):
        model.fit(X, Y, epochs=epochs, batch_size=4, shuffle=False, verbose=0)
        return model

    whole = trained(compiled(make()), 4)
    loaded = again(trained(compiled(make()), 2), tmp_path)
    twice = again(loaded, tmp_path)  # saved again before it was trained
    for model in (loaded, twice):
        assert_equal(trained(model, 2).get_weights(), whole.get_weights())
    anew = compiled(make())
    trained(anew, 2).save(tmp_path / "model", include_optimizer=False)
    assert not np.array_equal(
        trained(dt.load_model(tmp_path / "model"), 2).get_weights()[0], whole.get_weights()[0]
    )


def test_a_layer_that_was_frozen_is_trained_after_loading(tmp_path):
    model = compiled()
    model.layers[0].trainable = False
    model.fit(X, Y, verbose=0)
    loaded = again(model, tmp_path)
    loaded.layers[0].trainable = True
    loaded.fit(X, Y, verbose=0)
    assert not np.array_equal(loaded.arrays["dense/kernel"], model.arrays["dense/kernel"])


class Saver(dt.callbacks.Callback):
    def __init__(self, path):
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        self.model.save(self.path / f"{epoch}")


def test_a_callback_saves_while_training_goes_on(tmp_path):
    model = compiled()
    model.fit(X, Y, epochs=2, batch_size=4, shuffle=False, verbose=0, callbacks=[Saver(tmp_path)])
    loaded = dt.models.load_model(tmp_path / "0")
    loaded.fit(X, Y, epochs=1, batch_size=4, shuffle=False, verbose=0)
    assert_equal(loaded.get_weights(), model.get_weights())


class Scale(dt.layers.Layer):
    def __init__(self, factor, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def declare(self, input_shape):
        return [dt.layers.Weight("scale", input_shape[-1:], "ones")]

    def forward(self, weights, x, call):
        return x * weights["scale"] * np.float32(self.factor), x

    def backward(self, weights, x, dy, gradients, call):
        gradients["scale"][...] = (x * dy).sum(axis=0) * self.factor
        return dy * weights["scale"] * np.float32(self.factor)


class Largest(dt.metrics.Metric):
    default_name = "largest"

    def _sums(self):
        return {"sum": ()}

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.state["sum"] += np.max(y_pred)

    def result(self):
        return float(self.state["sum"])


class Halved(dt.regularizers.L2):
    pass


class Mine(dt.Sequential):
    pass


OWN = {"Scale": Scale, "Largest": Largest, "Halved": Halved, "Mine": Mine}


def test_classes_of_ones_own_are_handed_in(tmp_path):
    model = Mine([Scale(2.0, input_shape=(2,)), dt.layers.Dense(1, kernel_regularizer=Halved(0.5))])
    model.compile("sgd", "mse", metrics=[Largest()])
    loaded = again(model, tmp_path, custom_objects=OWN)
    assert type(loaded) is Mine
    assert type(loaded.layers[1].kernel_regularizer) is Halved
    assert loaded.evaluate(X, Y) == model.evaluate(X, Y)
    for missing in OWN:
        known = {name: each for name, each in OWN.items() if name != missing}
        with pytest.raises(CheckpointError, match=f"'?{missing}'?"):
            dt.load_model(tmp_path / "model", custom_objects=known).evaluate(X, Y)


def test_an_activation_of_ones_own_is_handed_in(tmp_path):
    cube = dt.layers.Activation(cube_of_x())
    model = dt.Sequential([dt.layers.Dense(2, cube_of_x(), input_shape=(2,)), cube])
    loaded = again(model, tmp_path, custom_objects={"cube": cube_of_x()})
    assert_equal(loaded.predict(X), model.predict(X))
    with pytest.raises(CheckpointError, match="unknown activation 'cube'"):
        dt.load_model(tmp_path / "model")


def cube_of_x():
    from dtrain.learning.core.activations import Activation

    return Activation("cube", lambda x: x**3, lambda x, y, dy: dy * 3 * x**2, needs_x=True)


def test_what_is_no_model_says_so(tmp_path):
    made = compiled()
    made.save_weights(tmp_path / "weights")
    with pytest.raises(CheckpointError, match="weights and no model"):
        dt.load_model(tmp_path / "weights")
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        dt.load_model(tmp_path)
    with pytest.raises(InputError, match="made of functions"):
        dt.from_function(lambda rng: {"a": np.zeros(1)}, lambda weights, x: (0.0, {})).save(
            tmp_path / "model"
        )
    with pytest.raises(SpecError, match="cannot be written as data"):
        dt.Sequential([Scale(lambda: 2, input_shape=(2,))]).save(tmp_path / "model")
    with pytest.raises(SpecError, match="expected a finite number"):
        dt.Sequential([dt.layers.LeakyReLU(float("nan"), input_shape=(2,))]).save(tmp_path / "model")
    with pytest.raises(InputError, match="input_shape, or call build"):
        dt.Sequential([dt.layers.Dense(1)]).save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_a_model_file_is_also_one_of_weights_and_safetensors(tmp_path):
    from safetensors import safe_open

    one, other = compiled(), compiled()
    one.fit(X, Y, verbose=0)
    one.save(tmp_path / "model.safetensors")
    other.load_weights(tmp_path / "model.safetensors")
    assert_equal(other.get_weights(), one.get_weights())
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        assert "dense/kernel/.slots/m" in file.keys()  # noqa: SIM118
        assert json.loads(file.metadata()["description"])["model"]["class_name"] == "Sequential"


@pytest.mark.parametrize("sparse_differs", [False, True])
def test_a_large_table_is_saved_like_any_array(tmp_path, sparse_differs):
    rows = 100 if sparse_differs else 70_000  # more than a mebibyte: its rows travel alone
    optimizer = dt.optimizers.legacy.Adagrad(0.5) if sparse_differs else dt.optimizers.Adagrad(0.5)

    def built():
        model = dt.Sequential(
            [dt.layers.Embedding(rows, 4, input_shape=(2,)), dt.layers.Flatten(), dt.layers.Dense(1)]
        )
        model.compile(optimizer, "mse")
        return model

    ids = np.array([[1, 2], [rows - 1, 1]])
    model = built()
    first = again(model, tmp_path)
    assert_equal(first.predict(ids), model.predict(ids))
    model.fit(ids, np.ones((2, 1)), verbose=0)
    loaded, weights = again(model, tmp_path), built()
    assert_equal(loaded.predict(ids), model.predict(ids))
    model.save_weights(tmp_path / "weights")
    weights.load_weights(tmp_path / "weights")
    assert_equal(weights.predict(ids), model.predict(ids))
    for each in (model, loaded):
        each.fit(ids, np.ones((2, 1)), verbose=0)
    assert_equal(loaded.get_weights(), model.get_weights())
