"""What TensorFlow's replicas compute, each alone or from the sum of their gradients: golden file h2, as far
as one process goes.
"""

import re

import numpy as np
import pytest
from conformance.golden import load_json
from conformance.left_out import LEFT_OUT

from dtrain.learning import losses, optimizers

CASES = load_json("h2_strategy.json")["cases"]


def cases(*prefixes):
    found = [case for case in CASES if case["op"].startswith(prefixes)]
    return pytest.mark.parametrize("case", found, ids=lambda case: f"{case['op']}-{case['replicas']}")


AVERAGE, REGULARIZATION, KERAS, SGD = (
    "strategy.run(tf.nn.compute_average_loss)",
    "strategy.run(tf.nn.scale_regularization_loss)",
    "Keras MeanSquaredError",
    "SGD(",
)
SGD_OP = re.compile(
    r"SGD\((?P<rate>[\d.e-]+).*\)\.apply_gradients of x\[:(?P<elements>\d+)\] to \[(?P<value>.*)\]"
)
"""An example of what it matches: ``SGD(0.1, clip).apply_gradients of x[:2] to [1,2]``."""


def replicas(case):
    return [np.array(values, np.float32) for values in case["per_replica"]]


@cases(AVERAGE)
def test_average_losses(case):
    size = case["global_batch_size"]
    found = [losses.compute_average_loss(each, None, size, case["replicas"]) for each in replicas(case)]
    np.testing.assert_allclose(found, case["value"], rtol=1e-5, atol=1e-6)


@cases(REGULARIZATION)
def test_regularization_losses(case):
    found = [losses.scale_regularization_loss(case["loss"], case["replicas"])] * case["replicas"]
    np.testing.assert_allclose(found, case["value"], rtol=1e-5, atol=1e-6)


@cases(KERAS)
def test_losses_of_each_replica(case):
    loss = losses.MeanSquaredError(reduction=case["reduction"])
    found = [loss(np.zeros((len(each), 1)), each[:, np.newaxis]) for each in replicas(case)]
    if (
        "error" in case
    ):  # TensorFlow will not average in a replica; here the mean over the replicas is the protocol's
        assert np.shape(found) == (case["replicas"],)
    else:
        np.testing.assert_allclose(found, case["value"], rtol=1e-5, atol=1e-6)


@cases(SGD)
def test_gradients_are_summed_then_clipped(case):
    op = SGD_OP.fullmatch(case["op"])
    assert op is not None, case["op"]
    gradients = [each[: int(op["elements"])] for each in replicas(case)]
    if not case.get("skip_gradients_aggregation"):
        gradients = [sum(gradients)] * len(gradients)
    for gradient, expected in zip(gradients, case["value"], strict=True):
        values = {"v": np.array(op["value"].split(","), np.float32)}
        optimizer = optimizers.SGD(float(op["rate"]), **case.get("clip", {}))
        optimizer.apply(values, {"v": gradient}, {"v": optimizer.initial_slots(values["v"])}, 0)
        np.testing.assert_allclose(values["v"], expected, rtol=1e-4, atol=1e-5)


def test_every_other_case_is_left_out_for_a_reason():
    tested = (AVERAGE, REGULARIZATION, KERAS, SGD)
    others = {case["op"] for case in CASES if not case["op"].startswith(tested)}
    assert {op for op in others if not op.startswith(tuple(LEFT_OUT["h2_strategy.json"]))} == set()
