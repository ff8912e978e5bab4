"""What TensorFlow's replicas compute, each alone or together: golden file h2, over replicas in threads."""

import re

import numpy as np
import pytest
from conformance.golden import load_json
from conformance.left_out import LEFT_OUT
from row_by_row import every_row
from strategies.shipped import mirrored

import dtrain as dt
from dtrain.distribute import (
    PerReplica,
    VariableAggregation,
    VariableSynchronization,
    get_replica_context,
)
from dtrain.errors import InputError
from dtrain.learning import losses, optimizers

CASES = load_json("h2_strategy.json")["cases"]


def cases(*prefixes):
    found = [case for case in CASES if case["op"].startswith(prefixes)]
    return every_row("case", found, ids=lambda case: f"{case['op']}-{case['replicas']}")


AVERAGE, REGULARIZATION, KERAS, SGD = (
    "strategy.run(tf.nn.compute_average_loss)",
    "strategy.run(tf.nn.scale_regularization_loss)",
    "Keras MeanSquaredError",
    "SGD(",
)
REDUCE, GATHER = "strategy.reduce", "strategy.gather"
ALL_REDUCE, ALL_REDUCE_ROWS, ALL_GATHER = (
    "replica_context.all_reduce",
    "replica_context.all_reduce(IndexedSlices",
    "replica_context.all_gather",
)
MIRRORED_VARIABLE, ON_READ_VARIABLE = "mirrored variable", "on-read variable"
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


def answers_as(case, answer):
    """Fail unless a function of a strategy and the replicas' values gives TensorFlow's answer."""
    strategy = mirrored(case["replicas"])
    values = PerReplica(replicas(case)) if "per_replica" in case else None
    if "error" in case:
        with pytest.raises(InputError):
            answer(strategy, values)
        return
    found = answer(strategy, values)
    same(found, case["value"])


def same(found, expected):
    if isinstance(expected, dict):
        assert found.keys() >= expected.keys()
        for name, each in expected.items():
            same(found[name], each)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@cases(REDUCE)
def test_values_of_replicas_are_reduced(case):
    answers_as(case, lambda strategy, values: strategy.reduce(case["reduce_op"], values, axis=case["axis"]))


@cases(GATHER)
def test_values_of_replicas_are_gathered(case):
    answers_as(case, lambda strategy, values: strategy.gather(values, axis=case["axis"]))


@cases(ALL_REDUCE_ROWS)
def test_replicas_reduce_rows(case):
    def reduce(rows):
        return get_replica_context().all_reduce(case["reduce_op"], rows)

    def answer(strategy, values):
        pairs = zip(case["ids"], case["values_in"], strict=True)
        rows = PerReplica([dt.SparseRows(np.array(ids), np.array(rows, np.float32)) for ids, rows in pairs])
        first = strategy.run(reduce, (rows,)).values[0]
        return {"indices": first.ids, "values": first.rows, "dense": first.dense((5, 2))}

    answers_as(case, answer)


@cases(ALL_REDUCE)
def test_replicas_reduce(case):
    def reduce(x):
        return get_replica_context().all_reduce(case["reduce_op"], x)

    if not case["op"].startswith(ALL_REDUCE_ROWS):
        answers_as(case, lambda strategy, values: strategy.run(reduce, (values,)).values)


@cases(ALL_GATHER)
def test_replicas_gather(case):
    def gather(x):
        return get_replica_context().all_gather(x, case["axis"])

    answers_as(case, lambda strategy, values: strategy.run(gather, (values,)).values[0])


@cases(MIRRORED_VARIABLE)
def test_replicas_assign_a_mirrored_variable(case):
    method = case["op"].split()[4]

    def answer(strategy, values):
        with strategy.scope():
            variable = dt.Variable(1.0, aggregation=VariableAggregation[case["aggregation"]])
        strategy.run(lambda x: getattr(variable, method)(x), (values,))
        return variable.values

    answers_as(case, answer)


@cases(ON_READ_VARIABLE)
def test_copies_of_a_variable_that_is_synchronized_on_reading(case):
    def answer(strategy, values):
        with strategy.scope():
            variable = dt.Variable(
                1.0,
                aggregation=VariableAggregation[case["aggregation"]],
                synchronization=VariableSynchronization.ON_READ,
            )
        if values is None:
            variable.assign(6.0)
        else:
            strategy.run(lambda x: variable.assign(x), (values,))
        return {"local": variable.values, "read_outside": variable.numpy()}

    answers_as(case, answer)


def test_every_other_case_is_left_out_for_a_reason():
    tested = (AVERAGE, REGULARIZATION, KERAS, SGD, REDUCE, GATHER, ALL_REDUCE, ALL_GATHER)
    tested += (MIRRORED_VARIABLE, ON_READ_VARIABLE)
    others = {case["op"] for case in CASES if not case["op"].startswith(tested)}
    assert {op for op in others if not op.startswith(tuple(LEFT_OUT["h2_strategy.json"]))} == set()
