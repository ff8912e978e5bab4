"""Layers compute what TensorFlow's Keras computed: golden file g."""

import numpy as np
import pytest
from conformance.golden import load_json, load_npz
from row_by_row import every_row

from dtrain.learning import layers
from dtrain.learning.core import regularizers
from dtrain.learning.layers import Call

LEFT_OUT: dict[str, str] = {}
"""Cases that do not apply, by name, each with its reason."""

CASES = {case["name"]: case for case in load_json("g_layers.json")["cases"]}
ARRAYS = load_npz("g_layers.npz")
FORWARD = {"rtol": 1e-5, "atol": 1e-6}
LOOSE = {"rtol": 1e-4, "atol": 1e-5}
LOOSE_FORWARD = ("Conv", "Normalization", "LSTM", "GRU", "RNN")


def named(prefix):
    """The arrays below a path of the golden file, by the rest of their path."""
    return {key.removeprefix(prefix): ARRAYS[key] for key in ARRAYS if key.startswith(prefix)}


def layer_of(case):
    if case["cls"] == "gelu_approx":
        return layers.Activation("gelu_tanh")
    return layers.classes()[case["cls"]](**case["args"])


@every_row("name", [name for name in CASES if name not in LEFT_OUT])
def test_layer_agrees_with_keras(name):
    case, golden = CASES[name], named(f"{name}/")
    layer = layer_of(case)
    layer = type(layer).from_config(layer.get_config())
    x, weights = golden["x"], named(f"{name}/weight/")
    declared = {weight.name: weight for weight in layer.declare(x.shape[1:])}
    assert list(declared) == case["weights"]
    assert [n for n, weight in declared.items() if weight.trainable] == case["trainable"]
    assert {n: weight.shape for n, weight in declared.items()} == {
        n: value.shape for n, value in weights.items()
    }

    call = Call(training=case.get("training", False), rng=np.random.default_rng(0))
    before = x.copy()
    y, cache = layer.forward(weights, x, call)
    outputs = y if isinstance(y, list) else [y]
    forward = LOOSE if any(word in case["cls"] for word in LOOSE_FORWARD) else FORWARD
    for index, output in enumerate(outputs):
        np.testing.assert_allclose(output, golden[f"y{index or ''}"], **forward)
        assert output.dtype == np.float32
    np.testing.assert_array_equal(x, before, "forward must leave its input alone")
    shapes = layer.output_shape(x.shape[1:])
    assert (shapes if isinstance(shapes, list) else [shapes]) == [output.shape[1:] for output in outputs]
    for weight, value in named(f"{name}/after/").items():
        np.testing.assert_allclose(call.updates.get(weight, weights[weight]), value, **LOOSE)

    dy = [golden[f"dy{index or ''}"].copy() for index in range(len(outputs))]
    gradients = {n: np.full_like(weights[n], np.nan) for n in case["trainable"]}
    dx = layer.backward(weights, cache, dy if isinstance(y, list) else dy[0], gradients, call)
    if "dx" in golden:
        np.testing.assert_allclose(dx, golden["dx"], **LOOSE)
    penalties = {n: regularizers.get(weight.regularizer) for n, weight in declared.items()}
    for weight, gradient in gradients.items():
        np.testing.assert_allclose(gradient, golden[f"dweight/{weight}"], **LOOSE, err_msg=weight)
    if "regularization_loss" in golden:
        loss = sum(penalty(weights[n]) for n, penalty in penalties.items() if penalty)
        np.testing.assert_allclose(loss, golden["regularization_loss"], **FORWARD)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.get("sparse_gradient")])
def test_sparse_gradient_agrees_with_keras(name):
    case, golden = CASES[name], named(f"{name}/")
    layer, weights, call = layer_of(case), named(f"{name}/weight/"), Call(training=True)
    _, cache = layer.forward(weights, golden["x"], call)
    layer.backward(weights, cache, golden["dy"].copy(), {}, call)
    rows = call.sparse_gradients["embeddings"]
    assert np.all(np.diff(rows.ids) > 0)
    np.testing.assert_array_equal(rows.ids, np.unique(golden["dweight_slices_indices/embeddings"]))
    np.testing.assert_allclose(rows.dense(weights["embeddings"].shape), golden["dweight/embeddings"], **LOOSE)
