"""Losses and their gradients agree with TensorFlow's: golden file h."""

import json

import numpy as np
import pytest
from conformance.golden import load_json, load_npz
from row_by_row import every_row

from dtrain.learning import losses
from dtrain.learning.core.configuration import to_data

GOLDEN = load_json("h_losses.json")
ARRAYS = load_npz("h_losses.npz")
VARIANTS = {variant["key"]: (case, variant) for case in GOLDEN["cases"] for variant in case["variants"]}


def weights_of(case, kind):
    if kind == "sample_col":
        return ARRAYS[f"{case['name']}/w_sample"][:, np.newaxis]
    return (
        {"none": None, "scalar": 0.3}[kind]
        if kind in ("none", "scalar")
        else ARRAYS[f"{case['name']}/w_{kind}"]
    )


@every_row("key", VARIANTS)
def test_loss_and_gradient_agree_with_tensorflow(key):
    case, variant = VARIANTS[key]
    loss = getattr(losses, case["loss"])(**case["args"], reduction=variant["reduction"])
    loss = losses.get(json.loads(json.dumps(to_data(loss))))
    y_true, y_pred = ARRAYS[f"{case['name']}/y_true"], ARRAYS[f"{case['name']}/y_pred"]
    weights = weights_of(case, variant["weights"])
    expected = ARRAYS[f"{key}/loss"]
    np.testing.assert_allclose(loss(y_true, y_pred, weights), expected, rtol=1e-5, atol=1e-6)
    value, gradient = loss.value_and_gradient(y_true, y_pred, weights)
    assert value == pytest.approx(expected.sum(), rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(gradient, ARRAYS[f"{key}/grad"], rtol=1e-4, atol=1e-5)
    assert gradient.dtype == np.float32


@every_row(
    "case",
    GOLDEN["compute_average_loss"],
    ids=lambda case: case.get("case") or str(case["global_batch_size"]),
)
def test_average_loss_agrees_with_tensorflow(case):
    dtype = case.get("dtype", "float32")
    per_example = np.array(case["per_example_loss"], None if case.get("case") == "int_loss" else dtype)
    arguments = {
        "sample_weight": case.get("sample_weight"),
        "global_batch_size": case.get("global_batch_size"),
    }
    if "error" in case:
        with pytest.raises((ValueError, TypeError)):
            losses.compute_average_loss(per_example, **arguments)
        return
    found = losses.compute_average_loss(per_example, **arguments)
    assert float(found) == pytest.approx(case["value"], rel=1e-5, abs=1e-6)
    assert found.dtype == dtype
