"""Replicas of one process in a thread each: the same numbers as by turns, and one end for all."""

import signal
import threading

import numpy as np
import pytest
from strategies.averaging import AveragingStrategy
from strategies.mirroring import MirroringStrategy
from strategies.test_averaging import built, fitted

import dtrain as dt
from dtrain.distribute import ReduceOp
from dtrain.errors import DtrainError, ProgramError
from dtrain.strategies.interface import Replica
from dtrain.strategies.single import SingleStrategy

chance = np.random.default_rng(7)
X = chance.normal(size=(24, 4)).astype(np.float32)
Y = X.sum(1, keepdims=True)


EARLIER = set()
"""The threads of replicas that were there as the test began: a strategy of another test may not be freed yet."""


@pytest.fixture(autouse=True)
def earlier():
    EARLIER.clear()
    EARLIER.update(_of_replicas())


def _of_replicas():
    return [each for each in threading.enumerate() if each.name.startswith("replica")]


def threads():
    """Those that this test has begun."""
    return [each for each in _of_replicas() if each not in EARLIER]


def fit(model, **more):
    return model.fit(X, Y, batch_size=6, epochs=2, verbose=0, **more)


def acting(strategy, act):
    """A model whose step first calls `act` with the step's replica."""

    class Acting(dt.Sequential):
        def train_step(self, step):
            act(step._replica)
            return super().train_step(step)

    with strategy.scope():
        model = Acting([dt.layers.Dense(1, input_shape=(4,))])
        model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("replicas", [2, 3])
def test_threads_have_the_bits_of_turns(replicas):
    """Dropout, moving averages and metrics included, with parts of uneven sizes and empty ones."""
    models = [built(strategy(replicas)) for strategy in (AveragingStrategy, MirroringStrategy)]
    turns, together = [fitted(model) for model in models]
    assert together == turns
    for weight, other in zip(*(model.get_weights() for model in models), strict=True):
        assert np.array_equal(weight, other)
    assert not threads()


def test_all_replicas_compute_at_the_same_time_while_hooks_run_in_the_program_s_thread():
    meeting, hooks = threading.Barrier(3, timeout=60), []
    note = dt.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: hooks.append(("begin", batch, threading.current_thread())),
        on_train_batch_end=lambda batch, logs: hooks.append(("end", batch, threading.current_thread())),
    )
    fit(acting(MirroringStrategy(3), lambda replica: meeting.wait()), callbacks=[note])
    main = threading.current_thread()
    assert hooks == [(what, batch, main) for _ in range(2) for batch in range(4) for what in ("begin", "end")]


def test_replicas_reduce_what_they_give():
    found = {}

    def act(replica):
        value = {"loss": float(replica.rank), "pair": [np.full(2, replica.rank + 1.0), np.ones(1)]}
        found[replica.rank] = [replica.all_reduce(op, value) for op in (ReduceOp.SUM, ReduceOp.MEAN)]

    fit(acting(MirroringStrategy(3), act))
    assert found.keys() == {0, 1, 2}
    for total, mean in found.values():
        assert (total["loss"], mean["loss"]) == (3.0, 1.0)
        assert [each.tolist() for each in total["pair"]] == [[6.0, 6.0], [3.0]]
        assert [each.tolist() for each in mean["pair"]] == [[2.0, 2.0], [1.0]]


def test_one_replica_s_sum_is_its_value_and_elsewhere_there_is_one_clear_error():
    seen = []
    fit(acting(SingleStrategy(), lambda replica: seen.append(replica.all_reduce(ReduceOp.MEAN, 4.0))))
    assert set(seen) == {4.0}

    class Pushes(Replica):
        """Such as a replica of parameter servers."""

    with pytest.raises(ProgramError, match="all_reduce: Pushes exchanges no values with other replicas"):
        Replica.all_reduce(object.__new__(Pushes), ReduceOp.SUM, 1.0)
    assert issubclass(ProgramError, DtrainError)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_error_in_one_ends_all_with_that_error(error):
    def act(replica):
        if replica.rank == 1:
            raise error("of rank 1")
        replica.all_reduce(ReduceOp.SUM, 1.0)

    with pytest.raises(error, match="of rank 1"):
        fit(acting(MirroringStrategy(3), act))
    assert not threads()


def test_an_interrupt_of_the_program_ends_the_waits_of_all():
    """As Ctrl-C does: the main thread waits for its replicas when it is interrupted, in their second step."""
    steps = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a runner of tests may ignore it

    def act(replica):
        steps.append(replica.rank)
        if replica.rank == 0 or steps.count(1) == 1:
            replica.all_reduce(ReduceOp.SUM, 1.0)  # the second time in vain: the other one never comes
        else:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            assert replica._meeting.aborted.wait(60)

    try:
        with pytest.raises(KeyboardInterrupt):
            fit(acting(MirroringStrategy(2), act))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not threads()


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_batch_whose_gradients_are_refused_ends_as_the_batch_that_it_is(replicas):
    """It is begun again, as another batch takes its step."""
    seen = []
    note = dt.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: seen.append(("begin", batch)),
        on_train_batch_end=lambda batch, logs: seen.append(("end", batch)),
    )
    x, y = np.ones((12, 2), np.float32), np.ones((12, 1), np.float32)
    x[4:8] = np.nan
    with dt.MirroredStrategy([f"CPU:{rank}" for rank in range(replicas)]).scope():
        model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,))])
        model.compile("sgd", "mse")
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[note])
    assert seen == [(what, batch) for batch in (0, 1, 1, 2) for what in ("begin", "end")]
