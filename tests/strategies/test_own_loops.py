"""Loops of one's own over several replicas of one process: what replicas exchange, and how they end together."""

import re
import threading
from pathlib import Path

import numpy as np
import pytest
from strategies.shipped import mirrored

import dtrain as dt
from dtrain.distribute import PerReplica, get_replica_context
from dtrain.errors import CallsDifferError, ContextError, InputError
from dtrain.exchange.calls import ReplicaCall

HERE = Path(__file__).name


@pytest.fixture
def strategy():
    return mirrored(3)


def rank():
    return get_replica_context().replica_id_in_sync_group


def test_replicas_run_at_the_same_time(strategy):
    barrier = threading.Barrier(3, timeout=30)
    assert strategy.run(barrier.wait).values != (0,)


def test_each_replica_gets_its_own_of_distributed_values(strategy):
    given = PerReplica([1.0, 2.0, 3.0])
    found = strategy.run(lambda x, by: {"x": x * by}, (given,), {"by": 10})
    assert found["x"].values == (10.0, 20.0, 30.0)


def test_sums_are_added_up_in_the_order_of_replicas(strategy):
    large = [np.float32(1e8), np.float32(1), np.float32(-1e8)]
    found = strategy.run(lambda x: get_replica_context().all_reduce("SUM", x), (PerReplica(large),))
    assert found.values == ((large[0] + large[1]) + large[2],) * 3


def different(strategy, call):
    """The messages that the replicas got, by rank, and the error of `run`."""
    messages = {}

    def in_replica():
        try:
            call(get_replica_context())
        except CallsDifferError as error:
            messages[rank()] = str(error)
            raise

    with pytest.raises(CallsDifferError) as raised:
        strategy.run(in_replica)
    assert isinstance(raised.value, RuntimeError)
    return messages, str(raised.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda context: context.all_reduce("SUM" if rank() else "MEAN", np.ones(2)),
        lambda context: context.all_reduce("SUM", np.ones(2 if rank() else 3)),
        lambda context: context.all_reduce("SUM", np.ones(2, np.float32 if rank() else np.float64)),
        lambda context: context.all_reduce("SUM", [np.ones(2)] if rank() else (np.ones(2),)),
        lambda context: context.all_gather(np.ones((2, 2 if rank() else 3)), 0),
        lambda context: context.all_gather(np.ones(2), 0) if rank() else context.merge_call(print),
    ],
    ids=["operation", "shape", "dtype", "form", "other axis", "function"],
)
def test_calls_that_differ_raise_in_all_replicas_and_name_both_places(strategy, call):
    messages, raised = different(strategy, call)
    assert set(messages) == {0, 1, 2}
    assert set(messages.values()) == {raised}
    places = re.findall(rf"{HERE}:(\d+)", raised)
    assert len(places) == 2


def test_a_replica_that_ends_without_a_call_ends_the_wait_of_the_others(strategy):
    messages, raised = different(strategy, lambda context: rank() == 2 or context.all_reduce("SUM", 1.0))
    assert set(messages) == {0, 1}
    assert "replica 2 has ended" in raised
    assert HERE in raised


def test_an_error_in_one_replica_ends_all_and_shows_the_line_that_raised_it(strategy):
    ended = []

    def in_replica():
        try:
            if rank() == 1:
                raise KeyError("mine")
            get_replica_context().all_reduce("SUM", 1.0)
        finally:
            ended.append(rank())

    with pytest.raises(KeyError, match="mine") as raised:
        strategy.run(in_replica)
    assert sorted(ended) == [0, 1, 2]
    assert "in_replica" in [entry.name for entry in raised.traceback]


def test_replicas_go_on_after_a_run_that_failed(strategy):
    with pytest.raises(ZeroDivisionError):
        strategy.run(lambda: 1 // 0)
    assert strategy.run(rank).values == (0, 1, 2)


def test_a_result_of_a_reduction_is_not_written_to(strategy):
    def in_replica():
        result = get_replica_context().all_reduce("SUM", np.ones(2))
        with pytest.raises(ValueError, match="read-only"):
            result += 1

    strategy.run(in_replica)


def test_run_and_reduce_belong_outside_of_replicas(strategy):
    for call in (lambda: strategy.run(rank), lambda: strategy.reduce("SUM", 1.0, None)):
        with pytest.raises(ContextError, match="outside of all replicas"):
            strategy.run(call)


def test_the_scope_of_another_strategy_is_refused(strategy):
    with strategy.scope(), pytest.raises(ContextError), mirrored(2).scope():
        pass


def test_a_call_site_is_a_line_of_the_program():
    assert ReplicaCall.here("all_reduce").site.startswith(__file__)


def test_alone_a_function_runs_in_the_thread_that_calls_it():
    strategy = dt.get_strategy()
    found = strategy.run(lambda x: (x + 1, threading.current_thread().name), (1,))
    assert found == (2, threading.current_thread().name)
    assert strategy.reduce("SUM", np.float32(3), axis=None) == 3


def test_a_variable_made_in_replicas_is_one(strategy):
    def in_replica():
        made = dt.Variable(float(rank()), name="v", aggregation=dt.distribute.VariableAggregation.SUM)
        made.assign_add(rank())
        return made

    with strategy.scope():
        found = strategy.run(in_replica)
    assert type(found).__name__ == "MirroredVariable"
    assert [float(value) for value in found.values] == [3.0, 3.0, 3.0]


def test_an_assigned_value_of_another_shape_is_refused(strategy):
    with strategy.scope():
        variable = dt.Variable([1.0, 2.0], name="v")
    with pytest.raises(InputError, match=r"variable v: expected shape \(2,\), found \(3,\)"):
        variable.assign([1.0, 2.0, 3.0])


def test_a_function_that_returns_nothing_is_named_where_its_sum_is_asked_for(strategy):
    with pytest.raises(
        InputError, match=r"found None; does the function that strategy\.run ran return one\?"
    ):
        strategy.reduce("SUM", strategy.run(lambda: None), axis=None)
