"""Loops of one's own, variables and reductions of central storage are TensorFlow's: golden file m3 beside its runs
of `fit` (test_threads_golden.py).
"""

import numpy as np
import pytest
from conformance.encoded import check_equal
from conformance.golden import load_json, load_npz
from conformance.left_out import LEFT_OUT
from conformance.loops_of_cases import Loop
from conformance.test_custom_loops_golden import check_trained, name_of
from row_by_row import every_row

import dtrain as dt
from dtrain.config import CentralStorageSection
from dtrain.distribute import PerReplica, VariableAggregation, VariableSynchronization, get_replica_context
from dtrain.errors import DtrainError
from dtrain.strategies.mirrored import CentralStorage

GOLDEN = load_json("m3_central_storage.json")
ARRAYS = load_npz("m3_central_storage.npz")


def central(replicas):
    return CentralStorage(CentralStorageSection(replicas=replicas))


def is_nan(case):
    """Whether TensorFlow's weights are NaN in the end: a replica without examples spoils its normalization."""
    return any(isinstance(value, str) for value in case["values"][-1])


LOOPS = [case for case in GOLDEN["loops"] if not is_nan(case)]


@every_row("case", LOOPS, ids=name_of)
def test_loop(case, tmp_path):
    loop = Loop(central(case["replicas"]), case, ARRAYS["data/x"], ARRAYS["data/y"], tmp_path)
    loop.run()
    check_trained(loop.outcome(), case)


def test_every_other_loop_is_left_out_for_a_reason():
    others = [name_of(case) for case in GOLDEN["loops"] if is_nan(case)]
    assert all("BatchNormalization" in name for name in others)
    assert "loops with BatchNormalization" in LEFT_OUT["m3_central_storage.json"]


def given(case):
    return PerReplica([np.float32(each) for each in case["per_replica"]])


def made(strategy, value, aggregation, **more):
    with strategy.scope():
        return dt.Variable(value, aggregation=VariableAggregation[aggregation], **more)


def changed(case, strategy):
    """What `assign` and its kin in replicas make of a variable."""
    variable = made(strategy, 1.0, case["aggregation"])
    change = getattr(variable, case["what"].split()[-3])

    def in_replica(x):
        change(x)

    strategy.run(in_replica, (given(case),))
    return float(variable.numpy())


def in_replicas(case, strategy):
    """What each replica gets of `all_reduce` or `all_gather`."""

    def call(x):
        context = get_replica_context()
        if case["what"] == "all_reduce":
            return context.all_reduce(case["reduce_op"], x)
        return context.all_gather(x[None], axis=0)

    found = strategy.experimental_local_results(strategy.run(call, (given(case),)))
    return list(found) * (case["replicas"] if len(found) == 1 else 1)


def gathered(case, strategy):
    return strategy.gather(PerReplica([each[None] for each in given(case).values]), axis=0)


def read_outside(case, strategy):
    on_read = VariableSynchronization.ON_READ
    variable = made(strategy, 0.0, "SUM", synchronization=on_read)

    def in_replica(x):
        variable.assign(x)

    strategy.run(in_replica, (given(case),))
    return ["AggregatingVariable", float(variable.numpy())]


def applied(case, strategy):
    variable = made(strategy, [1.0, 2.0], "MEAN")
    with strategy.scope():
        sgd = dt.optimizers.SGD(0.1)

    def step(x):
        sgd.apply_gradients([(np.stack([x, 2 * x]), variable)])

    strategy.run(step, (given(case),))
    return {"variable": variable.numpy().tolist(), "iterations": int(sgd.iterations)}


def places(case, strategy):
    found = strategy.extended
    names = [
        [name.removeprefix("/") for name in of] for of in (found.worker_devices, found.parameter_devices)
    ]
    return [strategy.num_replicas_in_sync, *names]


def scoped(case, strategy):
    return strategy.extended.variable_created_in_scope(made(strategy, 1.0, "MEAN"))


DONE = {
    "variable (initially 1.0)": changed,
    "reduce": lambda case, strategy: strategy.reduce(case["reduce_op"], given(case), axis=None),
    "all_": in_replicas,
    "gather": gathered,
    "a variable made in the scope": scoped,
    "num_replicas_in_sync": places,
    "on-read variable": read_outside,
    "SGD(0.1)": applied,
}
REASONS = LEFT_OUT["m3_central_storage.json"]
MISC = [case for case in GOLDEN["misc"] if not any(each in case["what"] for each in REASONS)]


@every_row("case", MISC, ids=lambda case: f"{case['what']}, {case['replicas']}")
def test_variables_and_reductions(case):
    act = next(act for what, act in DONE.items() if case["what"].startswith(what))
    strategy = central(case["replicas"])
    if "error" in case:
        with pytest.raises(DtrainError):
            act(case, strategy)
        return
    expected = case["value"]
    check_equal(plain(act(case, strategy)), expected["created_in_scope"] if act is scoped else expected)


def plain(found):
    """Lists in the place of arrays, as the file has them."""
    if isinstance(found, list):
        return [plain(each) for each in found]
    return found.tolist() if isinstance(found, np.ndarray | np.generic) else found
