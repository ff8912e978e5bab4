"""Programs with masks, states, attention and noise train as in TensorFlow 2.15.1.

The numbers beside it are TensorFlow's; `layer_reference.py` wrote them.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from keras.layer_programs import PROGRAMS, numbers_of

import dtrain as dt

REFERENCE = json.loads(Path(__file__).with_name("layer_reference.json").read_text())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains_as_in_tensorflow(name):
    found = numbers_of(dt, name)
    expected = REFERENCE[name]
    assert found["history"].keys() == expected["history"].keys()
    for part in ("evaluated", "predicted", "trained"):
        np.testing.assert_allclose(found[part], expected[part], rtol=2e-4, atol=2e-5, err_msg=part)
    for key, values in expected["history"].items():
        np.testing.assert_allclose(found["history"][key], values, rtol=2e-4, atol=2e-5, err_msg=key)
