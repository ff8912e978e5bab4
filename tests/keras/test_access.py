"""Programs read and write values as Keras lets them: `.numpy()`, weights of layers and models, copies, seeds.

The numbers are those of the mathematics: one step of gradient descent on a line, and its penalties.
"""

import json

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import InputError, SpecError
from dtrain.strategies.context import PROGRAM_SEED
from dtrain.strategies.single import SingleStrategy

X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
Y = np.array([[1.0], [2.0]], np.float32)


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SingleStrategy().scope():
        yield
    PROGRAM_SEED.clear()


def line(**arguments):
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,), **arguments)])
    model.compile(dt.optimizers.SGD(0.1), "mse", metrics=["mae"])
    model.layers[0].set_weights([np.array([[0.5], [-0.5]]), np.zeros(1)])
    return model


def test_a_layers_variables_show_what_fit_makes_of_them():
    model = line()
    kernel, bias = model.layers[0].weights
    assert kernel is model.layers[0].kernel is model.trainable_variables[0]
    error = X @ [[0.5], [-0.5]] - Y
    expected = np.array([[0.5], [-0.5]]) - 0.1 * 2 * X.T @ error / 2
    model.fit(X, Y, batch_size=2, verbose=0)
    np.testing.assert_allclose(kernel.numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(bias.numpy(), -0.1 * error.mean() * 2, rtol=1e-6)
    np.testing.assert_allclose(model.layers[0].get_weights()[0], expected, rtol=1e-6)
    assert [each.name for each in model.weights] == ["dense/kernel", "dense/bias"]
    assert (kernel.shape, str(kernel.dtype), model.layers[0].count_params()) == ((2, 1), "float32", 3)


def test_results_have_numpy_and_the_arithmetic_of_numpy():
    model = line()
    outputs = model(X)
    assert type(outputs.numpy()) is np.ndarray
    np.testing.assert_allclose((outputs - Y).numpy(), [[-1.5], [-2.5]])
    assert (outputs[0, 0].numpy(), outputs.shape, str(outputs.dtype)) == (-0.5, (2, 1), "float32")
    assert dt.losses.MeanSquaredError()(Y, outputs).numpy() == np.float32((1.5**2 + 2.5**2) / 2)
    metric = dt.metrics.MeanAbsoluteError()
    assert metric(Y, outputs).numpy() == 2.0
    assert metric(Y, Y).numpy() == metric.result() == 1.0


def test_the_rate_and_the_count_of_an_optimizer_are_read_and_assigned():
    model = line()
    assert model.optimizer.lr.numpy() == np.float32(0.1)
    model.fit(X, Y, batch_size=1, verbose=0)
    assert model.optimizer.iterations.numpy() == 2
    model.optimizer.learning_rate.assign(0.0)
    assert model.optimizer.learning_rate == 0.0
    before = model.get_weights()[0]
    model.fit(X, Y, verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], before)
    assert json.loads(json.dumps(model.optimizer.get_config()))["learning_rate"] == 0.0


def test_models_that_share_a_layer_see_what_its_variable_is_assigned():
    encoder = dt.Sequential([dt.layers.Dense(1, input_shape=(2,))])
    whole = dt.Sequential([encoder, dt.layers.Dense(2)])
    whole.compile("sgd", "mse")
    whole.fit(X, X, verbose=0)
    np.testing.assert_array_equal(encoder.layers[0].kernel.numpy(), whole.get_weights()[0])
    encoder.layers[0].kernel.assign(np.zeros((2, 1)))
    np.testing.assert_array_equal(whole.predict(X), whole.predict(-X))


def test_frozen_layers_and_moving_averages_are_not_trainable():
    norm = dt.layers.BatchNormalization(input_shape=(2,))
    model = dt.Sequential([norm])
    assert [each.name.split("/")[1] for each in norm.trainable_weights] == ["gamma", "beta"]
    assert len(norm.non_trainable_variables) == len(model.non_trainable_weights) == 2
    assert norm.moving_variance.numpy().tolist() == [1, 1]
    norm.trainable = False
    assert norm.trainable_weights == []
    assert len(norm.non_trainable_weights) == 4


def test_what_a_model_consists_of():
    model = line(kernel_regularizer=dt.regularizers.L2(0.1))
    assert model.losses[0].numpy() == np.float32(0.1 * 0.5)
    assert [each.name for each in model.metrics] == ["mae"]
    assert [each.shape for each in (*model.inputs, *model.outputs)] == [(None, 2), (None, 1)]
    assert dt.Model(model.inputs, model.outputs).count_params() == 3


def test_a_copy_has_values_of_its_own():
    model = line()
    for other in (dt.models.clone_model(model), dt.models.model_from_json(model.to_json(indent=1))):
        other.set_weights(model.get_weights())
        np.testing.assert_array_equal(other.predict(X), model.predict(X))
        other.layers[0].set_weights([np.zeros((2, 1)), np.zeros(1)])
        assert model.predict(X).any()
    wide = dt.models.clone_model(
        model, clone_function=lambda each: type(each).from_config(each.get_config() | {"units": 3})
    )
    assert wide.output_shape == (None, 3)


def test_the_last_layer_is_removed_and_the_others_keep_their_values():
    model = dt.Sequential([dt.layers.Dense(3, input_shape=(2,)), dt.layers.Dense(1)])
    kernel = model.get_weights()[0]
    model.pop()
    np.testing.assert_allclose(model.predict(X), X @ kernel, rtol=1e-6)


def test_a_class_of_ones_own_is_registered_once():
    @dt.utils.register_keras_serializable("mine")
    class Twice(dt.layers.Layer):
        def forward(self, weights, x, call):
            return 2 * x, None

    model = dt.Sequential([Twice(input_shape=(2,))])
    text = model.to_json()
    np.testing.assert_array_equal(dt.models.model_from_json(text).predict(X), 2 * X)
    dt.utils.get_custom_objects().clear()
    with pytest.raises(SpecError, match="unknown layer 'Twice'"):
        dt.models.model_from_json(text)
    with dt.utils.custom_object_scope({"Twice": Twice}):
        assert dt.models.model_from_json(text).layers[0].name == "twice"


def test_a_seed_gives_the_same_first_values_again():
    found = []
    for seed in (3, 3, 4):
        dt.utils.set_random_seed(seed)
        found.append(
            (dt.Sequential([dt.layers.Dense(2, input_shape=(2,))]).get_weights()[0], np.random.rand())
        )
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    assert not np.array_equal(found[0][0], found[2][0])


def set_in(model, values):
    model.layers[0].set_weights(values)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: set_in(line(), [np.zeros((2, 1))]), "dense.*expected 2 arrays, found 1"),
        (lambda: set_in(line(), [np.zeros(2)] * 2), r"dense/kernel has shape \(2, 1\)"),
        (lambda: dt.layers.Dense(1).kernel, "has no kernel before it stands in a model that is built"),
        (lambda: dt.layers.Dense(1).count_params(), "stands in no model that is built"),
        (lambda: dt.models.model_from_json("[]"), "expected the class and the config of a model"),
        (lambda: dt.utils.set_random_seed(-1), "expected a whole number"),
        (lambda: dt.Sequential().pop(), "the stack has no layer"),
    ],
)
def test_what_cannot_be_read_or_set_is_said_in_a_sentence(act, message):
    with pytest.raises((InputError, SpecError, AttributeError), match=message):
        act()


PROGRAM = """
import numpy as np
import dtrain as dt

x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,))])
model.compile(dt.optimizers.SGD(0.1), "mse")
layer = model.layers[0]
kernel = layer.kernel
model.fit(x, x.sum(axis=1), epochs=2, verbose=0)
assert np.array_equal(kernel.numpy(), layer.get_weights()[0])
assert np.allclose(model.predict(x), x @ kernel.numpy() + layer.bias.numpy(), atol=1e-6)
print("KERNEL", kernel.numpy().round(4).tolist())
"""


def test_every_task_of_a_cluster_shows_the_trained_values(launcher):
    (launcher.folder / "program.py").write_text(PROGRAM)
    launch = launcher.start("--ps", "1", "--workers", "2", "--updates", "sync", "program.py")
    assert launch.end() == 0, launch.err
    told = {text.partition("KERNEL ")[2] for text in launch.out.splitlines() if "KERNEL " in text}
    assert len(told) == 1, launch.out


def test_results_that_are_whole_numbers_have_numpy_too():
    found = dt.reduce_sum(dt.cast(dt.math.less(0.5, np.ones(3)), dt.int32))
    assert (found.numpy(), found.numpy().dtype) == (3, np.int32)
    assert dt.argmax([1.0, 3.0]).numpy() == dt.argmax([[1.0, 3.0]], axis=1)[0].numpy() == 1
    assert dt.reduce_mean([1, 2]).numpy() == 1  # TensorFlow's: an int32


def test_layers_that_prepare_data_have_results_as_others():
    layer = dt.layers.Normalization()
    layer.adapt(np.array([[1.0, 2.0], [3.0, 5.0]]))
    np.testing.assert_array_equal(layer.mean.numpy(), [[2.0, 3.5]])  # Keras keeps the axis of examples
    np.testing.assert_array_equal(layer.variance.numpy(), [[1.0, 2.25]])
    assert dt.layers.StringLookup(vocabulary=["a"])(["a", "b"]).numpy().tolist() == [1, 0]
