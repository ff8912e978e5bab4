"""Models with several outputs: losses, their weights, metrics and sample weights by output, with Keras's
names and numbers.

KERAS was computed once with TensorFlow 2.15.1: the same model, weights, data and arguments through
`tf.keras`, `fit` of two epochs in batches of 4, unshuffled; numbers to 7 digits. SATURATED likewise, of one
Dense layer whose probabilities round to 0 and 1.
"""

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import InputError, SpecError
from dtrain.strategies.single import SingleStrategy

X = np.sin(np.arange(30)).reshape(10, 3).astype(np.float32)
PRICES, KINDS = X[:, :1] - 2 * X[:, 1:2], np.arange(10) % 3
WEIGHTS, OTHERS = np.linspace(0.5, 2, 10, dtype=np.float32), np.linspace(2, 0.1, 10, dtype=np.float32)
LOSSES = ["mse", "sparse_categorical_crossentropy"]
NAMED = dict(zip(["price", "kind"], LOSSES, strict=True))

CASES = {
    "loss_weights": ({"loss": NAMED, "loss_weights": {"kind": 2.0, "price": 0.5}}, {}),
    "metrics": ({"loss": LOSSES, "metrics": [["mae"], ["accuracy"]]}, {}),
    "weighted": (
        {
            "loss": NAMED,
            "metrics": {"kind": "accuracy"},
            "weighted_metrics": {"kind": "accuracy", "price": "mae"},
        },
        {"sample_weight": WEIGHTS},
    ),
    "weights by output": (
        {"loss": NAMED, "weighted_metrics": {"price": "mae"}},
        {"sample_weight": {"price": WEIGHTS, "kind": OTHERS}},
    ),
    "one loss": ({"loss": {"price": "mse"}}, {}),
}
KERAS = {
    "loss_weights": {
        "loss": [4.660448, 2.857982],
        "price_loss": [4.280869, 0.9995228],
        "kind_loss": [1.260007, 1.17911],
        "val_loss": [2.869756, 2.498363],
        "val_price_loss": [1.205616, 0.5259825],
        "val_kind_loss": [1.133474, 1.117686],
    },
    "metrics": {
        "loss": [4.662704, 1.561422],
        "price_loss": [3.410474, 0.385363],
        "kind_loss": [1.25223, 1.176059],
        "price_mae": [1.568084, 0.4968659],
        "kind_accuracy": [0.4, 0.4],
        "val_loss": [1.583683, 1.393367],
        "val_price_loss": [0.4236547, 0.2514837],
        "val_kind_loss": [1.160029, 1.141883],
        "val_price_mae": [0.5372974, 0.4294227],
        "val_kind_accuracy": [0.4, 0.3],
    },
    "weighted": {
        "loss": [4.873081, 1.898504],
        "price_loss": [3.314372, 0.4057474],
        "kind_loss": [1.558708, 1.492756],
        "price_mae": [1.432193, 0.4735757],
        "kind_accuracy": [0.4, 0.3],
        "kind_weighted_accuracy": [0.4, 0.28],
        "val_loss": [1.671737, 1.599192],
        "val_price_loss": [0.506497, 0.4452633],
        "val_kind_loss": [1.16524, 1.153929],
        "val_price_mae": [0.6148546, 0.5714086],
        "val_kind_accuracy": [0.3, 0.5],
        "val_kind_weighted_accuracy": [0.3, 0.5],
    },
    "weights by output": {
        "loss": [4.604616, 1.6454],
        "price_loss": [3.297162, 0.4206128],
        "kind_loss": [1.307455, 1.224787],
        "price_mae": [1.424608, 0.4788117],
        "val_loss": [1.699881, 1.583358],
        "val_price_loss": [0.5349088, 0.4420581],
        "val_kind_loss": [1.164972, 1.1413],
        "val_price_mae": [0.6341161, 0.572679],
    },
    "one loss": {
        "loss": [3.417152, 0.395219],
        "price_loss": [3.417152, 0.395219],
        "val_loss": [0.4434904, 0.2536664],
        "val_price_loss": [0.4434904, 0.2536664],
    },
}
SATURATED = {
    ("softmax", "sparse_categorical_crossentropy"): (5.648739, [4.796094, 2.463440, 2.377920]),
    ("softmax", "categorical_crossentropy"): (5.648739, [4.796094, 2.463440, 2.377920]),
    ("sigmoid", "binary_crossentropy"): (3.735656, [3.630624, 2.804485, 2.013586]),
}


@pytest.fixture(autouse=True)
def alone():
    with SingleStrategy().scope():
        yield


def waves(model, size=1.0):
    """Weights that need no generator."""
    model.set_weights(
        [size * np.cos(np.arange(spec.size)).reshape(spec.shape) for spec in model.variable_specs]
    )
    return model


def model(**compiled):
    x = dt.layers.Input((3,))
    hidden = dt.layers.Dense(4, "tanh", name="hidden")(x)
    made = waves(
        dt.Model(
            x, [dt.layers.Dense(1, name="price")(hidden), dt.layers.Dense(3, "softmax", name="kind")(hidden)]
        )
    )
    made.compile(dt.optimizers.SGD(0.1), **compiled)
    return made


@pytest.mark.parametrize("case", CASES)
def test_names_and_numbers_are_kerass(case):
    compiled, weights = CASES[case]
    made = model(**compiled)
    validation = (X, {"kind": KINDS, "price": PRICES})
    found = made.fit(
        X,
        [PRICES, KINDS],
        batch_size=4,
        shuffle=False,
        epochs=2,
        verbose=0,
        validation_data=validation,
        **weights,
    )
    assert list(found.history) == list(KERAS[case])
    for name, expected in KERAS[case].items():
        assert found.history[name] == pytest.approx(expected, rel=1e-4), name
    results = made.evaluate(X, [PRICES, KINDS], return_dict=True, verbose=0)
    assert list(results) == made.metrics_names
    assert made.test_on_batch(X, (PRICES, KINDS)) == pytest.approx(list(results.values()))


@pytest.mark.parametrize(("activation", "loss"), SATURATED)
def test_a_saturated_output_learns_as_in_keras(activation, loss):
    made = dt.Sequential([dt.layers.Dense(3, activation, input_shape=(3,))])
    made.set_weights([60 * np.cos(np.arange(9)).reshape(3, 3), np.zeros(3)])
    made.compile(dt.optimizers.SGD(5.0), loss)
    y = KINDS if loss.startswith("sparse") else np.eye(3)[KINDS]
    before, losses = SATURATED[activation, loss]
    assert made.evaluate(X, y, verbose=0) == pytest.approx(before, rel=1e-4)
    assert made.fit(X, y, batch_size=5, shuffle=False, epochs=3, verbose=0).history["loss"] == pytest.approx(
        losses, rel=1e-4
    )


def test_one_thing_for_all_outputs():
    x = dt.layers.Input((3,))
    made = waves(dt.Model(x, [dt.layers.Dense(1, name="a")(x), dt.layers.Dense(1, name="b")(x)]))
    made.compile(
        "sgd", "mse", metrics=["mae", dt.metrics.RootMeanSquaredError(name="rmse")], loss_weights=2.0
    )
    assert made.metrics_names == ["loss", "a_loss", "b_loss", "a_mae", "a_rmse", "b_mae", "b_rmse"]
    results = made.evaluate(X, PRICES, return_dict=True, verbose=0)
    assert results["loss"] == pytest.approx(2 * (results["a_loss"] + results["b_loss"]))
    assert results["b_rmse"] ** 2 == pytest.approx(results["b_loss"], rel=1e-5)


def test_a_single_output_may_be_named_too():
    made = dt.Sequential([dt.layers.Dense(1, name="price", input_shape=(3,))])
    made.compile("sgd", {"price": "mse"}, metrics={"price": ["mae"]})
    assert list(made.fit(X, {"price": PRICES}, verbose=0).history) == ["loss", "mae"]


def test_a_saved_model_is_compiled_as_it_was(tmp_path):
    made = model(
        loss=NAMED,
        loss_weights=[0.5, 2.0],
        metrics={"kind": ["accuracy"]},
        weighted_metrics={"kind": "accuracy"},
    )
    made.save(tmp_path / "two.safetensors")
    loaded = dt.load_model(tmp_path / "two.safetensors")
    assert loaded.evaluate(X, [PRICES, KINDS], return_dict=True) == made.evaluate(
        X, [PRICES, KINDS], return_dict=True
    )


def test_what_does_not_fit_the_outputs():
    for wrong, message in (
        (
            {"loss": {"price": "mse", "size": "mse"}},
            "expected losses for the outputs price, kind; found size",
        ),
        ({"loss": ["mse"] * 3}, r"expected losses for 2 outputs \(price, kind\), found 3"),
        (
            {"loss": NAMED, "metrics": {"size": "mae"}},
            "expected metrics for the outputs price, kind; found size",
        ),
        (
            {"loss": NAMED, "loss_weights": [1.0]},
            r"expected loss_weights for 2 outputs \(price, kind\), found 1",
        ),
    ):
        with pytest.raises(InputError, match=message):
            model(**wrong)
    with pytest.raises(SpecError, match="metrics of different names, found 'mae' twice"):
        model(loss=NAMED, metrics={"price": ["mae", "mae"]})
    made = model(loss=NAMED)
    for y, more, message in (
        ([PRICES], {}, r"expected targets for 2 outputs \(price, kind\), found 1"),
        ([PRICES, None], {}, "expected elements of arrays, found None"),
        ({"price": PRICES}, {}, r"kind \(Dense\): .*expected"),
        ([PRICES, KINDS], {"sample_weight": [WEIGHTS] * 3}, "expected sample weights for 2 outputs"),
        (
            [PRICES, KINDS],
            {"class_weight": {0: 1.0, 1: 2.0, 2: 1.0}},
            "class_weight: expected the targets of one output",
        ),
    ):
        with pytest.raises(InputError, match=message):
            made.fit(X, y, verbose=0, **more)


def test_inputs_and_outputs_by_name(tmp_path):
    x, z = dt.Input((3,), name="x"), dt.Input((1,), name="z")
    both = dt.layers.concatenate([dt.layers.Dense(2)(x), z])
    outputs = {"price": dt.layers.Dense(1, name="price")(both), "kind": dt.layers.Dense(3, name="kind")(both)}
    made = waves(dt.Model({"x": x, "z": z}, outputs))
    made.compile("sgd", {"price": "mse", "kind": dt.losses.SparseCategoricalCrossentropy(from_logits=True)})
    data = {"z": PRICES, "x": X}
    made.fit(dt.data.Dataset.from_tensor_slices((data, {"price": PRICES, "kind": KINDS})).batch(5), verbose=0)
    assert made.metrics_names == ["loss", "kind_loss", "price_loss"], "as in Keras in the order of the names"
    found = made.predict(data, verbose=0)
    assert {name: array.shape for name, array in found.items()} == {"kind": (10, 3), "price": (10, 1)}
    assert list(found) == ["price", "kind"], "as in Keras in the order in which the model was given them"
    made.save(tmp_path / "named.safetensors")
    loaded = dt.load_model(tmp_path / "named.safetensors")
    assert list(loaded.predict(data, verbose=0)) == ["price", "kind"]
    np.testing.assert_array_equal(loaded.predict(data, verbose=0)["price"], found["price"])
    assert (made.input_shape, made.output_shape) == ([(None, 3), (None, 1)], [(None, 3), (None, 1)])
    with pytest.raises(SpecError, match=r"found 'size' for price \(Dense\); give it name='size'"):
        dt.Model({"x": x, "z": z}, {"size": outputs["price"]})


def test_a_single_output_by_name():
    x = dt.Input((3,))
    made = dt.Model(x, {"price": dt.layers.Dense(1, name="price")(x)})
    assert made.predict(X, verbose=0)["price"].shape == (10, 1)
    with pytest.raises(ValueError, match="size"):
        dt.Model.from_config(made.get_config() | {"output_keys": ["size"]})
