"""Metrics agree with TensorFlow's after every batch: golden file i."""

import json

import numpy as np
from conformance.golden import load_json
from row_by_row import every_row

from dtrain.learning import metrics
from dtrain.learning.core.configuration import to_data

CASES = load_json("i_metrics.json")["cases"]


def array(value):
    """A golden array, in which NaN and infinities are strings; None stays None."""
    return None if value is None else np.array(value, "f8").astype("f4")


def check(metric, expected):
    tolerance = (
        {"rtol": 1e-4, "atol": 1e-4} if isinstance(metric, metrics.AUC) else {"rtol": 1e-5, "atol": 1e-5}
    )
    np.testing.assert_allclose(metric.result(), array(expected), **tolerance)


@every_row("index", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i]['metric']}-{CASES[i]['args']}")
def test_results_agree_with_tensorflow(index):
    case = CASES[index]
    metric = metrics.get(json.loads(json.dumps(to_data(getattr(metrics, case["metric"])(**case["args"])))))
    parts = []
    if case.get("result_before_any_batch") is not None:
        check(metric, case["result_before_any_batch"])
    for batch in case["batches"]:
        arrays = [array(batch[key]) for key in ("y_true", "y_pred") if batch[key] is not None]
        for each in (metric, parts.append(metric.copy()) or parts[-1]):
            each.update_state(*arrays, sample_weight=array(batch["sample_weight"]))
        check(metric, batch["result"])
    merged = metric.copy()
    merged.merge_state(parts)
    np.testing.assert_allclose(merged.result(), metric.result())
    metric.reset_state()
    check(metric, case["result_after_reset"])
