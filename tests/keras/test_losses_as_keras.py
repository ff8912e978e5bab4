"""Losses and metrics as functions, by Keras's other names, and the focal losses: TensorFlow's numbers."""

import json
from pathlib import Path

import numpy as np
import pytest

import dtrain as dt
from dtrain.strategies.single import SingleStrategy

HERE = Path(__file__).parent
FOUND = json.loads((HERE / "losses_reference.json").read_text())


def data(logits):
    rng = np.random.default_rng(7)
    y = np.eye(4, dtype=np.float32)[[0, 2, 1]]
    p = rng.uniform(0.05, 1, (3, 4)).astype(np.float32)
    return y, (np.log(p) * 2).astype(np.float32) if logits else p / p.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("case", FOUND["losses"], ids=lambda case: f"{case[0]}-{case[1]}")
def test_value_and_gradient_are_tensorflows(case):
    name, arguments, value, gradient = case
    loss = getattr(dt.losses, name)(**arguments)
    found, by_p = loss.value_and_gradient(*data(arguments.get("from_logits", False)))
    np.testing.assert_allclose(found, value, rtol=2e-6)
    np.testing.assert_allclose(by_p, gradient, rtol=2e-5, atol=1e-7)
    assert dt.losses.deserialize(dt.losses.serialize(loss)) == loss


@pytest.mark.parametrize("name", FOUND["functions"])
def test_a_function_gives_a_number_for_each_vector(name):
    y, p = data(False)
    function = getattr(dt.losses, name)
    np.testing.assert_allclose(function(y, p).numpy(), FOUND["functions"][name], rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(function(y[0], p[0]).numpy(), FOUND["vectors"][name], rtol=2e-6, atol=1e-7)


def test_functions_are_given_to_compile_and_are_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SingleStrategy().scope():
        model = dt.Sequential(
            [dt.layers.Dense(1, input_shape=(2,), kernel_initializer=dt.initializers.zeros)]
        )
        model.compile("sgd", dt.losses.mse, metrics=[dt.metrics.mae, dt.metrics.binary_accuracy])
        x, y = np.ones((4, 2)), np.full(4, 2.0)
        assert model.evaluate(x, y, verbose=0) == [4.0, 2.0, 0.0]
        assert model.metrics_names == ["loss", "mean_absolute_error", "binary_accuracy"]
        model.save("m.safetensors")
        assert dt.load_model("m.safetensors").evaluate(x, y, verbose=0) == [4.0, 2.0, 0.0]
