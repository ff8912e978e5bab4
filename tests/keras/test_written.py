"""Layers, models, losses, steps and loops that programs write: TensorFlow's numbers."""

import json

import numpy as np
import pytest
from keras.written_programs import PROGRAMS, REFERENCE

import dtrain as dt

EXPECTED = json.loads(REFERENCE.read_text())


def assert_close(given, expected, where):
    if isinstance(expected, dict):
        assert set(given) == set(expected), where
        for name, each in expected.items():
            assert_close(given[name], each, f"{where}: {name}")
    elif isinstance(expected, list) and any(not isinstance(each, float) for each in expected):
        for number, pair in enumerate(zip(given, expected, strict=True)):
            assert_close(*pair, f"{where} {number}")
    elif expected is None:
        assert given is None
    else:
        np.testing.assert_allclose(given, expected, rtol=2e-4, atol=1e-6, err_msg=where)


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_tensorflow_s(name):
    assert_close(PROGRAMS[name](dt, dt), EXPECTED[name], name)
