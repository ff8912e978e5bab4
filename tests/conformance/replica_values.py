"""What the cases of the golden files m4 do with contexts, with values of replicas, and with `run`; see
`replica_cases`.
"""

import numpy as np
from conformance.replica_calls import f32, in_replicas, rank
from strategies.shipped import mirrored

from dtrain.distribute import (
    PerReplica,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)

# Contexts


def context(case, strategy, values):
    return CONTEXT[case["case"]](strategy)


def where(strategy=None):
    found = get_replica_context()
    seen = {"in_cross_replica_context": in_cross_replica_context(), "has_strategy": has_strategy()}
    if strategy is None:
        return seen | {
            "replica_context": "_DefaultReplicaContext" if found is not None else None,
            "num_replicas_in_sync": found.num_replicas_in_sync,
            "replica_id": found.replica_id_in_sync_group,
        }
    return seen | {"same_strategy": get_strategy() is strategy}


def in_scope(strategy):
    with strategy.scope():
        return where(strategy) | {"replica_context": get_replica_context()}


def in_run(strategy):
    def seen():
        found = get_replica_context()
        return where(strategy) | {
            "num_replicas_in_sync": found.num_replicas_in_sync,
            "replica_id": found.replica_id_in_sync_group,
            "devices": list(found.devices),
        }

    return in_replicas(strategy, seen, None)


def scope_within(strategy, other):
    with strategy.scope(), other.scope():
        return "entered"


def entered_in_run(strategy):
    def enter():
        with strategy.scope():
            pass

    return strategy.run(enter)


CONTEXT = {
    "outside every scope": lambda strategy: where(),
    "in strategy.scope()": in_scope,
    "in strategy.run, by replica": in_run,
    "scope of another strategy inside scope": lambda strategy: scope_within(strategy, mirrored(2)),
    "scope inside its own scope": lambda strategy: scope_within(strategy, strategy),
    "run inside run": lambda strategy: strategy.run(lambda: strategy.run(rank)),
    "scope inside run": entered_in_run,
    "all_reduce in the default replica context, outside every strategy": lambda strategy: (
        get_replica_context().all_reduce("SUM", f32([1, 2]))
    ),
    "all_gather in the default replica context": lambda strategy: get_replica_context().all_gather(
        f32([[1, 2]]), 0
    ),
}


# Values of replicas


def values_from_function(case, strategy, values):
    name = case["case"]
    if name == "called inside run":
        make = lambda: strategy.experimental_distribute_values_from_function(lambda context: 1.0)  # noqa: E731
        return PerReplica(in_replicas(strategy, make, None))
    made = strategy.experimental_distribute_values_from_function(VALUES[name])
    results = strategy.experimental_local_results(made)
    if name.startswith("num_replicas"):
        return list(results)
    kind = type(made).__name__
    return {"type": kind, "local_results": list(results), "local_results_type": type(results).__name__}


VALUES = {
    "float": lambda context: context.replica_id_in_sync_group + 1.5,
    "int": lambda context: context.replica_id_in_sync_group,
    "numpy": lambda context: np.arange(2) + context.replica_id_in_sync_group,
    "tensor": lambda context: np.array([1, 2], np.int32) + np.int32(context.replica_id_in_sync_group),
    "dict": lambda context: {"a": context.replica_id_in_sync_group, "b": context.num_replicas_in_sync},
    "list": lambda context: [context.replica_id_in_sync_group, 2.0],
    "tuple": lambda context: (context.replica_id_in_sync_group, 2.0),
    "string": lambda context: f"r{context.replica_id_in_sync_group}",
    "None": lambda context: None,
    "shapes differ": lambda context: np.zeros(context.replica_id_in_sync_group + 1, f32),
    "types differ": lambda context: 1.0 if context.replica_id_in_sync_group else "x",
    "structures differ": lambda context: [1.0] if context.replica_id_in_sync_group else {"a": 1.0},
    "lengths differ": lambda context: [1.0] * (context.replica_id_in_sync_group + 1),
    "same value": lambda context: 3.0,
    "num_replicas_in_sync * 100 + replica_id": lambda context: (
        context.num_replicas_in_sync * 100 + context.replica_id_in_sync_group
    ),
}


def local_results(case, strategy, values):
    def of_each(scale):
        return strategy.experimental_distribute_values_from_function(
            lambda context: context.replica_id_in_sync_group * scale
        )

    value = {
        "tensor": lambda: f32([1]),
        "int": lambda: 3,
        "list of tensors": lambda: [f32(1), f32(2)],
        "dict": lambda: {"a": 1},
        "None": lambda: None,
        "per-replica": lambda: of_each(10),
        "list of per-replica": lambda: [of_each(10), of_each(20)],
        "dict of per-replica": lambda: {"k": of_each(10)},
        "distributed result of a nest": lambda: strategy.run(lambda: {"a": f32(1), "b": (np.int32(rank()),)}),
    }[case["case"]]()
    found = strategy.experimental_local_results(value)
    return {"len": len(found), "type": type(found).__name__, "items": list(found)}


def run(case, strategy, values):
    return RUN[case["case"]](strategy)


def type_and_items(strategy, found):
    items = {} if found is None else {"items": list(strategy.experimental_local_results(found))}
    return {"type": type(found).__name__} | items


def of_ranks(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda context: context.replica_id_in_sync_group + 1.0
    )


RUN = {
    "returns None": lambda s: type_and_items(s, s.run(lambda: None)),
    "returns the Python int 1": lambda s: type_and_items(s, s.run(lambda: 1)),
    "returns its Python replica id": lambda s: in_replicas(s, rank, None),
    "a plain argument 1.0 and a per-replica keyword": lambda s: [
        f32(each) for each in s.run(lambda x, k: x * k, (1.0,), {"k": of_ranks(s)}).values
    ],
    "a nest of per-replica and plain": lambda s: list(
        s.run(lambda nest: nest["k"][0] * nest["k"][1], ({"k": [of_ranks(s), 1.0]},)).values
    ),
    "structures of the results differ": lambda s: s.run(lambda: [1.0] if rank() else {"a": 1.0}),
    "lengths of the results differ": lambda s: s.run(lambda: [1.0] * (rank() + 1)),
    "None in replica 0, a tensor in the others": lambda s: in_replicas(
        s, lambda: f32(1) if rank() else None, None
    ),
    "5 instead of a function": lambda s: s.run(5),
    "args is a tensor of 2, not a tuple": lambda s: s.run(rank, args=f32([1, 2])),
    "raises ZeroDivisionError in every replica": lambda s: s.run(lambda: 1 // 0),
}
