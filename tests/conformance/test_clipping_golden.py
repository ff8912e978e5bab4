"""Clipping agrees with tf.clip_by_*: golden file f (clipping)."""

import numpy as np
import pytest
from conformance.golden import load_json
from row_by_row import every_row

from dtrain.learning.core import clipping
from dtrain.learning.core.sparse_rows import SparseRows

CASES = load_json("f_clipping.json")["cases"]


def array(value):
    """A golden array, in which NaN and infinities are strings; None stays None."""
    return None if value is None else np.array(value, dtype="f8").astype("f4")


def gradients_of(case):
    first, *rest = [array(gradient) for gradient in case["grads"]]
    return [SparseRows(np.array(case["ids"]), first) if "ids" in case else first, *rest]


def check(found, expected):
    assert (found is None) == (expected is None)
    if found is not None:
        rows = found.rows if isinstance(found, SparseRows) else found
        np.testing.assert_allclose(rows, array(expected), rtol=1e-5, atol=1e-6)


@every_row("case", CASES, ids=lambda case: f"{case['case']}-{case['clip']}")
def test_clipping_agrees_with_tensorflow(case):
    gradients, limit = gradients_of(case), case["clip"]
    clipped, norm = clipping.clip_by_global_norm(gradients, limit)
    assert norm == pytest.approx(float(case["global_norm"]), rel=1e-5, abs=1e-6, nan_ok=True)
    expected = case.get("clip_by_global_norm") or [case["clip_by_global_norm_values"], case["second"]]
    for found, wanted in zip(clipped, expected, strict=True):
        check(found, wanted)
    for gradient, wanted in zip(gradients, case.get("clip_by_norm", []), strict=False):
        check(None if gradient is None else clipping.clip_by_norm(gradient, limit), wanted)
    for gradient, wanted in zip(gradients, case.get("clip_by_value", []), strict=False):
        check(None if gradient is None else clipping.clip_by_value(gradient, -limit, limit), wanted)
