"""Layers of images return what Keras's return: golden file n. Random ones have ranges of a single value."""

import numpy as np
import pytest
from conformance.golden import load_json, load_npz
from row_by_row import every_row

import dtrain as dt
from dtrain.learning.layers.preprocessing.images import contrasted

CASES = load_json("n_preprocessing.json")["images"]
ARRAYS = load_npz("n_preprocessing.npz")


@every_row("cls", sorted({case["cls"] for case in CASES}))
def test_images_are_kerass(cls):
    for case in CASES:
        if case["cls"] == cls:
            layer = getattr(dt.layers, cls)(**case["args"])
            y, expected = layer(ARRAYS[case["x"]], training=case["training"]), ARRAYS[case["y"]]
            assert y.dtype == np.float32
            np.testing.assert_allclose(y, expected, rtol=1e-4, atol=2e-2, err_msg=str(case))


@pytest.mark.parametrize("factor", [0.3, 1.0, 1.7])
def test_contrast_is_kerass(factor):
    found = contrasted(ARRAYS["batch"], np.float32(factor))[0]
    np.testing.assert_allclose(found, ARRAYS[f"contrast/{factor}"], rtol=1e-4, atol=1e-3)
