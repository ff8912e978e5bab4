"""Layers that prepare data return what Keras's return: golden file n, written by peers/preprocessing_golden.py."""

import json

import numpy as np
import pytest
from conformance.golden import load_json
from row_by_row import every_row

import dtrain as dt
from dtrain.errors import DtrainError

CASES = load_json("n_preprocessing.json")["cases"]
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def array(described):
    if isinstance(described, list):
        return [array(each) for each in described]
    return np.array(described["value"], object if described["dtype"] == "string" else described["dtype"])


def called(case):
    layer = getattr(dt.layers, case["cls"])(**case["args"])
    if "adapt" in case:
        layer.adapt(array(case["adapt"]), batch_size=case.get("batch_size"))
    call = {key: array(each) for key, each in case["call"].items()}
    return layer, layer(array(case["x"]), **call)


@every_row("index", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i]['cls']}-{CASES[i]['args']}")
def test_values_are_kerass(index):
    case = CASES[index]
    if "error" in case:
        if (
            case["error"]["message"].startswith("Exception encountered")
            and case["args"].get("output_mode") == "one_hot"
        ):
            assert called(case)[1].ndim == 3, "Keras refuses encodings of more than two axes"
            return
        with pytest.raises(DtrainError):
            called(case)
        return
    layer, y = called(case)
    expected = array(case["y"])
    assert y.shape == expected.shape
    if expected.dtype.kind in "fiu":
        assert y.dtype == expected.dtype
        np.testing.assert_allclose(y, expected, **TOLERANCE)
    else:
        assert y.tolist() == expected.tolist()
    if "vocabulary" in case:
        assert layer.get_vocabulary() == case["vocabulary"]
    if "bin_boundaries" in case:
        np.testing.assert_allclose(layer.bin_boundaries, case["bin_boundaries"], **TOLERANCE)


@every_row("cls", sorted({case["cls"] for case in CASES}))
def test_a_layer_with_its_state_goes_through_data_and_back(cls):
    for case in CASES:
        if case["cls"] == cls and "error" not in case:
            layer, y = called(case)
            again = type(layer).from_config(json.loads(json.dumps(layer.get_config())))
            np.testing.assert_array_equal(again(array(case["x"])) if not case["call"] else y, y)
            assert again.get_config() == layer.get_config()
