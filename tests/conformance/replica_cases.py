"""What each case of the golden files m4 does, by its operation: functions of the case, a strategy and the given
per-replica values, which return what TensorFlow's answer is compared with.
"""

import numpy as np
from conformance.replica_calls import TABLE_SHAPE, argument, f32, in_replicas, rank
from conformance.replica_values import context, local_results, of_ranks, run, values_from_function

import dtrain as dt
from dtrain.distribute import (
    CommunicationOptions,
    PerReplica,
    VariableAggregation,
    get_replica_context,
    in_cross_replica_context,
)

# all_reduce


def all_reduce(case, strategy, values):
    op = argument(case["reduce_op"])
    return in_replicas(strategy, lambda x: ALL_REDUCE.get(case["case"], plain_reduce)(op, x), values)


def plain_reduce(op, x):
    return get_replica_context().all_reduce(op, x)


def reduced(*values):
    """A function of ``(op, x)`` that reduces something else than x."""
    return lambda op, x: plain_reduce(op, values[0])


def two_calls(op, x):
    return plain_reduce("SUM", x) + plain_reduce("MEAN", x * x)


def called_by_first(op, x):
    return plain_reduce(op, x) if rank() == 0 else x


def called_twice_by_first(op, x):
    return plain_reduce(op, plain_reduce(op, x)) if rank() == 0 else plain_reduce(op, x)


def different_operations(op, x):
    return plain_reduce("SUM" if rank() == 0 else "MEAN", x)


def crossed(op, x):
    for each in (x[:1], x) if rank() == 0 else (x, x[:1]):
        plain_reduce(op, each)


def raises_in_last(op, x):
    if rank() == get_replica_context().num_replicas_in_sync - 1:
        raise KeyError("mine")
    return plain_reduce(op, x)


def rows_and_values(op, x):
    rows, second = plain_reduce(op, [dt.SparseRows(*x), x[1]])
    return rows.ids, rows.rows, rows.dense(TABLE_SHAPE), second


ALL_REDUCE = {
    "an empty list instead of x": reduced([]),
    "None instead of x": reduced(None),
    "the Python number 2.5 instead of x": reduced(2.5),
    "the Python number 3 instead of x": reduced(3),
    "the list of Python numbers [1, 2] instead of x": reduced([1, 2]),
    "a Python int computed from the shape (2)": lambda op, x: plain_reduce(op, x.shape[0]),
    "[x, None]": lambda op, x: plain_reduce(op, [x, None]),
    "replica_id_in_sync_group": lambda op, x: plain_reduce(op, rank()),
    "two calls": two_calls,
    "called by replica 0 only": called_by_first,
    "called twice by replica 0, once by the others": called_twice_by_first,
    "operations differ": different_operations,
    "replica 0 reduces x[:1] then x, the others x then x[:1]": crossed,
    "the last replica raises KeyError('mine') before the call": raises_in_last,
    "[IndexedSlices(ids, values, [4, 2]), values]: result indices, values, dense, second": rows_and_values,
    "options=CommunicationOptions(bytes_per_pack=8)": lambda op, x: get_replica_context().all_reduce(
        op, x, CommunicationOptions(bytes_per_pack=8)
    ),
    "options is a dict": lambda op, x: get_replica_context().all_reduce(op, x, {"bytes_per_pack": 8}),
}


# all_gather and merge_call


def all_gather(case, strategy, values):
    axis = argument(case["axis"])
    given = {
        "IndexedSlices(x, [0, 1], [4, 3])": lambda x: dt.SparseRows(np.array([0, 1]), x),
        "the Python number 2.0 instead of x": lambda x: 2.0,
        "the list of Python numbers [1.0, 2.0]": lambda x: [1.0, 2.0],
    }.get(case["case"], lambda x: x)
    gathered = in_replicas(strategy, lambda x: get_replica_context().all_gather(given(x), axis), values)
    # TensorFlow's files say which tensor a Python number is.
    return [f32(each) if isinstance(each, float) else each for each in map(_as_tensors, gathered)]


def _as_tensors(value):
    return [f32(each) for each in value] if isinstance(value, list) and isinstance(value[0], float) else value


def merge_call(case, strategy, values):
    return in_replicas(strategy, MERGE_CALL[case["case"]], values)


def merged(function, *args, **kwargs):
    return get_replica_context().merge_call(function, args, kwargs)


def saw_none(x):
    return x if merged(lambda strategy, v: None, x) is None else -x


def nested_args(x):
    def add(strategy, nest, k):
        return strategy.reduce("SUM", nest[0], None) + strategy.reduce("SUM", nest[1]["k"], None)

    return merged(add, [x, {"k": x}], k=1) + merged(add, [x, {"k": x}], k=1) / 2


def int_of_each(x):
    return merged(lambda strategy, v: np.array(strategy.experimental_local_results(v), f32), rank() * 10)


def by_first(x):
    if rank() == 0:
        return merged(lambda strategy, v: v, x)
    return x


def different_functions(x):
    if rank() == 0:
        return merged(lambda strategy, v: strategy.reduce("SUM", v, None), x)
    return merged(lambda strategy, v: v, x)


MERGE_CALL = {
    "reduce SUM, axis None": lambda x: merged(lambda strategy, v: strategy.reduce("SUM", v, None), x),
    "reduce MEAN, axis 0, plus keyword k=1.5": lambda x: merged(
        lambda strategy, v, k: f32(strategy.reduce("MEAN", v, 0) + k), x, k=1.5
    ),
    "local result 0": lambda x: merged(lambda s, v: s.experimental_local_results(v)[0], x),
    "returns the per-replica values themselves": lambda x: merged(lambda strategy, v: v, x),
    "returns (v, SUM of v)": lambda x: merged(lambda s, v: (v, s.reduce("SUM", v, None)), x),
    "returns None: the replica sees None (value x) or not (-x)": saw_none,
    "nested args": nested_args,
    "an equal Python int arrives as that int": lambda x: merged(
        lambda s, v: f32(isinstance(v, int) and v), 7
    ),
    "different Python ints arrive as per-replica values": int_of_each,
    "strategy.run inside": lambda x: merged(lambda s, v: s.run(lambda y: y * 2, (v,)), x),
    "in_cross_replica_context()": lambda x: merged(lambda s: f32(in_cross_replica_context())),
    "the function raises ZeroDivisionError": lambda x: merged(lambda s: 1 // 0),
    "called by replica 0 only": by_first,
    "different functions (replica 0: SUM; others: identity)": different_functions,
}


# reduce and gather


def reduce(case, strategy, values):
    name = case["case"]
    if name == "called inside run":
        return strategy.run(lambda: strategy.reduce("SUM", f32(1), axis=None))
    if name == "axis not given":
        return strategy.reduce(case["reduce_op"], values)
    if name == "nest returned by run":
        values = strategy.run(lambda x: x, (values,))
    if name.startswith("IndexedSlices"):
        rows = PerReplica([dt.SparseRows(*each) for each in values.values])
        return strategy.reduce(case["reduce_op"], rows, axis=None).dense(TABLE_SHAPE)
    if values is None:
        values = plain_value(strategy, name)
    return strategy.reduce(argument(case["reduce_op"]), values, axis=argument(case["axis"]))


def plain_value(strategy, name):
    if name == "a mirrored variable [1, 2]":
        return variable(strategy, [1.0, 2.0])
    values = {"the plain tensor [1, 2]": f32([1, 2]), "the Python number 3.0": 3.0}
    return {**values, "the Python number 0": 0, "None": None}[name]


def gather(case, strategy, values):
    name = case["case"]
    if (
        name == "IndexedSlices"
    ):  # its rows are those of the reduction of rows; what they are rows of is ours to say
        values = PerReplica([dt.SparseRows(*each).dense(TABLE_SHAPE) for each in values.values])
    if name == "called inside run":
        return strategy.run(lambda: strategy.gather(f32([1]), axis=0))
    if name == "the plain tensor [1, 2]":
        values = f32([1, 2])
    if name == "Python floats":
        values = of_ranks(strategy)
    return strategy.gather(values, argument(case["axis"]))


# Variables


def variable(strategy, value, aggregation=VariableAggregation.MEAN):
    with strategy.scope():
        return dt.Variable(value, aggregation=aggregation)


def update(case, strategy, values):
    v = variable(strategy, [1.0, 2.0])
    if case["case"] == "[1, 2] assign_add [10, 20]":
        returned = strategy.extended.update(v, lambda v, x: v.assign_add(x), (f32([10, 20]),))
        return {"variable": [list(each) for each in v.values], "returned": returned}
    given = PerReplica([f32([index, 1]) for index in range(case["replicas"])])
    strategy.extended.update(v, lambda v, x: v.assign(x), (given,))
    return [list(each) for each in v.values]


def reduce_to(case, strategy, values):
    op, _, where_to = case["case"].partition(" to ")
    return strategy.extended.reduce_to(
        op, values, variable(strategy, [0.0, 0.0]) if "var" in where_to else where_to
    )


def batch_reduce_to(case, strategy, values):
    doubled = strategy.run(lambda x: 2 * x, (values,))
    v = variable(strategy, [0.0, 0.0])
    return strategy.extended.batch_reduce_to("SUM", [(values, v), (doubled, v)])


def extended(case, strategy, values):
    found = strategy.extended
    return {
        "parameter_devices": list(found.parameter_devices),
        "worker_devices": list(found.worker_devices),
        "num_replicas_in_sync": strategy.num_replicas_in_sync,
        "created_in_scope": found.variable_created_in_scope(variable(strategy, 1.0)),
        "created_outside": found.variable_created_in_scope(dt.Variable(1.0)),
        "experimental_require_static_shapes": found.experimental_require_static_shapes,
    }


def of_variables(case, strategy, values):
    replicas = case["replicas"]
    v = variable(strategy, [0.0, 0.0])
    if case["case"] == "created inside run, eagerly":
        return type(strategy.run(lambda: dt.Variable(1.0))).__name__
    v.assign(PerReplica([f32([1, index]) for index in range(replicas)]))
    if case["case"] == "assign of a per-replica value outside run":
        return [list(each) for each in v.values]
    if case["case"] == "a mirrored variable read outside run":
        kind = type(v).__name__
        return {"type": kind, "value": list(v.numpy()), "len_values": len(v.values), "plus_one": list(v + 1)}
    return in_replicas(strategy, lambda: v + f32([1, 1]), None)


ANSWERS = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "merge_call": merge_call,
    "context": context,
    "experimental_distribute_values_from_function": values_from_function,
    "experimental_local_results": local_results,
    "run": run,
    "reduce": reduce,
    "gather": gather,
    "extended.update": update,
    "extended.reduce_to": reduce_to,
    "extended.batch_reduce_to": batch_reduce_to,
    "extended": extended,
    "variable": of_variables,
}
