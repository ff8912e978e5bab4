"""What the replicas of several workers exchange, one each: golden file m6.

An all_reduce of a function's own argument fails in TensorFlow within a tf.function, and works eagerly, as in
dtrain, which has this mode alone.
"""

import functools

import numpy as np
from collectives.test_calls_between_hosts import Tasks
from conformance.golden import load_json
from conformance.left_out import LEFT_OUT
from conformance.workers_in_processes import OfProcesses, on_processes
from conformance.workers_in_threads import on_workers, scope_in_thread
from row_by_row import every_row

import dtrain as dt
from dtrain.distribute import VariableAggregation, VariableSynchronization, get_replica_context
from dtrain.errors import CallsDifferError, DtrainError
from dtrain.strategies.replicas.calls import PeerProcesses

CASES = load_json("m6_multiworker_collectives.json")["cases"]
GRAPH_ALONE = "all_reduce of an argument itself"
TABLE_SHAPE = (4, 2)


def name_of(case):
    return ", ".join(str(case[key]) for key in ("op", "case", "reduce_op", "axis", "workers") if key in case)


def arrays(value, dtype):
    """A worker's value with arrays in the place of lists."""
    if isinstance(value, dict):
        return {name: arrays(each, dtype) for name, each in value.items()}
    return np.array(value, dtype)[()]


def in_run(strategy, method, *arguments):
    return strategy.run(lambda: getattr(get_replica_context(), method)(*arguments))


def reduce(strategy, case, given):
    value = np.float32(3) if case.get("case") == "the plain tensor 3.0" else given
    return strategy.reduce(case["reduce_op"], value, axis=case["axis"])


def all_reduce(strategy, case, given):
    if "ids" in case:
        rows = dt.SparseRows(np.array(case["ids"][strategy.loops.first]), given)
        return in_run(strategy, "all_reduce", case["reduce_op"], rows).dense(TABLE_SHAPE)
    return in_run(strategy, "all_reduce", case["reduce_op"], given)


def merge_call(strategy, case, given):
    return in_run(strategy, "merge_call", lambda s, value: s.reduce("SUM", value, axis=None), (given,))


def variable(strategy, case, value, **more):
    with scope_in_thread(strategy):
        return dt.Variable(value, aggregation=VariableAggregation[case["reduce_op"]], **more)


def on_read(strategy, case, given):
    made = variable(strategy, case, [0.0, 0.0], synchronization=VariableSynchronization.ON_READ)
    strategy.run(lambda: made.assign(given))
    return made.numpy()


def mirrored(strategy, case, given):
    made = variable(strategy, case, [1.0, 2.0])
    strategy.run(lambda: made.assign_add(given))
    return made.numpy()


def first_set(strategy, case, given):
    """The file says what the first worker has set, which is what all read."""
    own = np.float32(case["value"]) + strategy.loops.first
    with scope_in_thread(strategy):
        return dt.Variable(own).numpy()


def value_contexts(strategy, case, given):
    return strategy.experimental_distribute_values_from_function(
        lambda context: context.num_replicas_in_sync * 100 + context.replica_id_in_sync_group
    ).values[0]


OPERATIONS = {
    "reduce": reduce,
    "all_reduce": all_reduce,
    "gather": lambda s, case, given: s.gather(given, axis=case["axis"]),
    "all_gather": lambda s, case, given: in_run(s, "all_gather", given, case["axis"]),
    "merge_call": merge_call,
    "on-read variable": on_read,
    "mirrored variable": mirrored,
    "experimental_local_results": lambda s, case, given: len(
        s.experimental_local_results(s.run(lambda: given))
    ),
    "replica_id_in_sync_group": lambda s, case, given: s.run(
        lambda: get_replica_context().replica_id_in_sync_group
    ),
    "value contexts": value_contexts,
    "variable first set": first_set,
}


def check_equal(found, expected, dtype):
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        for name, each in expected.items():
            check_equal(found[name], each, dtype)
        return
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert dtype is None or dtype == "int32" or np.asarray(found).dtype == dtype


def left_out(case):
    return any(name_of(case).startswith(key) for key in LEFT_OUT["m6_multiworker_collectives.json"])


TESTED = [case for case in CASES if not left_out(case) and not case["op"].startswith(GRAPH_ALONE)]


def answer(case, strategy):
    """What one worker finds; an error that dtrain raises on purpose."""
    operation = next(act for key, act in OPERATIONS.items() if case["op"].startswith(key))
    try:
        return operation(strategy, case, arrays(case["per_worker"][strategy.loops.first], case["dtype"]))
    except DtrainError as error:
        return error


@functools.cache
def answers_of_processes(workers):
    """What each of so many processes finds in all cases, one after another."""
    cases = [case for case in TESTED if case["workers"] == workers]
    found = on_processes(workers, lambda strategy: [answer(case, strategy) for case in cases])
    return {id(case): each for case, *each in zip(cases, *found, strict=True)}


@functools.cache
def answers_over_streams(workers):
    """The same of tasks that have streams to each other, as those of several hosts."""
    cases = [case for case in TESTED if case["workers"] == workers]
    tasks = Tasks(workers)

    def program(rank, calls):
        strategy = OfProcesses(PeerProcesses(workers, rank, lambda: calls))
        return [answer(case, strategy) for case in cases]

    try:
        found = tasks.together(program)
    finally:
        tasks.close()
    return {id(case): each for case, *each in zip(cases, *found, strict=True)}


def of_streams(case):
    return answers_over_streams(case["workers"])[id(case)]


def of_threads(case):
    return on_workers(case["workers"], lambda strategy: answer(case, strategy))


def of_processes(case):
    return answers_of_processes(case["workers"])[id(case)]


@every_row("found_by", [of_threads, of_processes, of_streams])
@every_row("case", TESTED, ids=name_of)
def test_workers_get_tensorflow_s_values(case, found_by):
    found = found_by(case)
    if "error" in case:
        assert all(isinstance(each, DtrainError) for each in found)
        return
    expected = case.get("value_of_workers") or [case["value"]] * case["workers"]
    for each, value in zip(found, expected, strict=True):
        check_equal(each, value, case["value_dtype"])


def test_every_case_of_the_graph_alone_has_an_eager_twin():
    eager = {
        (case["reduce_op"], case["workers"]) for case in CASES if case["op"] == "all_reduce, eagerly in run"
    }
    assert eager == {(c["reduce_op"], c["workers"]) for c in CASES if c["op"].startswith(GRAPH_ALONE)}


def test_processes_that_make_different_calls_all_hear_of_both_places():
    def program(strategy):
        first = strategy.loops.first == 0
        try:
            if first:
                strategy.run(lambda: get_replica_context().all_reduce("SUM", np.ones(2, np.float32)))
            else:
                strategy.run(lambda: get_replica_context().all_gather(np.ones(2, np.float32), 0))
        except CallsDifferError as error:
            return [str(error)]
        return []

    [first], [second] = on_processes(2, program)
    assert first == second
    assert first.count(f"{__file__}:") == 2
