"""Collective calls over streams: tasks are threads of one process. Bits and errors are those of one host."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from collectives.test_calls import call, summed, value

from dtrain.errors import CallsDifferError, PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import Hello
from dtrain.process.secret import new_secret
from dtrain.roles.collective.calls_over_hosts import CallsBetweenHosts, StreamPair
from dtrain.roles.collective.rules import Waits
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.streams import Listener, open_stream

SECRET = new_secret()
"""As a launch makes it: the keys of a secret that a person has chosen take a tenth of a second each."""

SIZES = (0, 1, 1000, 16_384, 16_385, 100_001)
PATIENCE_S = 30.0


class Tasks:
    """Tasks with a stream from each to every other."""

    def __init__(self, count, patience_s=PATIENCE_S):
        names = [f"worker:{rank}" for rank in range(count)]
        credentials = [
            Credentials.made(Hello(run_id="calls", cluster_hash="0", task=name), SECRET) for name in names
        ]
        self.listeners = [Listener("127.0.0.1:1", own, lambda hello: None, 16) for own in credentials]
        self.waited = []
        pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
        to = {
            (one, other): open_stream(
                names[other], self.listeners[other].address, "calls", credentials[one], PATIENCE_S
            )
            for one, other in pairs
        }
        come = {
            (one, other): self.listeners[one].accept(names[other], "calls", float("inf"))
            for one, other in pairs
        }
        waits = Waits(names.__getitem__, self.waited.append, patience_s)
        self.calls = []
        for rank in range(count):
            others = [other for other in range(count) if other != rank]
            ways = {other: StreamPair(to[rank, other], come[rank, other]) for other in others}
            self.calls.append(CallsBetweenHosts(ways, rank, waits))

    def together(self, program):
        """Run `program(rank, calls)` in a thread each; return what each returned or raised."""

        def run(rank):
            try:
                return program(rank, self.calls[rank])
            except (CallsDifferError, PeerLostError, PeerRefusedError, WaitTimeoutError) as error:
                return error

        with ThreadPoolExecutor(len(self.calls)) as pool:
            return list(pool.map(run, range(len(self.calls))))

    def close(self):
        for each in self.calls:
            each.close()
        for each in self.listeners:
            each.stop()


@pytest.fixture
def tasks():
    made = []

    def make(count, **more):
        made.append(Tasks(count, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("count", [2, 3, 5])
def test_sums_have_the_bits_of_adding_up_by_rank(tasks, count):
    def program(rank, calls):
        found = [
            calls.all_reduce(call(), [value(rank, size, turn)])[0]
            for turn in range(3)
            for size in SIZES
            if size
        ]
        return [each.tobytes() for each in found]

    expected = [summed(count, size, turn).tobytes() for turn in range(3) for size in SIZES if size]
    assert tasks(count).together(program) == [expected] * count


def test_several_arrays_of_any_dtype_and_shape_go_in_one_call(tasks):
    def given(rank):
        large = np.arange(30_000).reshape(100, 300) * (rank + 1)
        return [np.float64(rank), large, np.zeros((0, 3), np.float32), np.array([True, rank == 1])]

    def program(rank, calls):
        arrays = [np.asarray(each) for each in given(rank)]
        return [(each.dtype, each.shape, each.tolist()) for each in calls.all_reduce(call(), arrays)]

    sums = [sum(each) for each in zip(given(0)[:3], given(1)[:3], given(2)[:3], strict=True)]
    sums.append(np.array([True, True]))
    expected = [(np.asarray(each).dtype, np.shape(each), np.asarray(each).tolist()) for each in sums]
    assert tasks(3).together(program) == [expected] * 3


@pytest.mark.parametrize("size", SIZES)
def test_an_exchange_gives_all_arrays_to_all_whatever_their_shapes(tasks, size):
    """One of them is large where others are small; what was given may change at once."""

    def program(rank, calls):
        mine = value(rank, size * rank, 0)
        found = calls.exchange(call(), [mine])
        mine[...] = -1
        return [each.tobytes() for (each,) in found]

    expected = [value(rank, size * rank, 0).tobytes() for rank in range(3)]
    assert tasks(3).together(program) == [expected] * 3


@pytest.mark.parametrize("size", [3, 30_000])
def test_calls_that_differ_raise_in_all_and_the_next_ones_go_on(tasks, size):
    def program(rank, calls):
        with pytest.raises(CallsDifferError) as raised:
            calls.all_reduce(call(1 if rank else 2), [np.ones(size + rank)])
        return str(raised.value), float(calls.all_reduce(call(3), [np.ones(2)])[0].sum())

    (text, total), *others = tasks(3).together(program)
    assert others == [(text, total)] * 2
    assert ("replica 0 all_reduce of SUM 2" in text, "replica 1 all_reduce of SUM 1" in text, total) == (
        True,
        True,
        6.0,
    )


def test_a_task_that_ends_ends_the_call_of_all_others_and_is_named(tasks):
    made = tasks(3)

    def program(rank, calls):
        calls.all_reduce(call(), [np.ones(2)])
        if rank == 2:
            return calls.close()
        return calls.all_reduce(call(), [np.ones(30_000)])

    first, second, _ = made.together(program)
    assert isinstance(first, PeerLostError)
    assert isinstance(second, PeerLostError)
    assert any("worker:2 has ended" in str(each) for each in (first, second))
    with pytest.raises(PeerLostError):
        made.calls[0].all_reduce(call(), [np.ones(2)])


def test_a_task_that_is_late_is_named_while_it_is_waited_for_and_when_it_does_not_come(tasks):
    made = tasks(2, patience_s=0.2)
    (late, _) = made.together(lambda rank, calls: calls.exchange(call(), []) if rank == 0 else None)
    assert isinstance(late, WaitTimeoutError)
    assert "worker:1, call 1" in str(late)
    assert "worker:1, call 1" in [str(whom) for whom in made.waited]


@pytest.mark.parametrize(
    "kinds",
    [[("|O", (1,))], [("<f4", (-1,))], [("<f4", (1 << 40,))], [("no dtype", (1,))], [["<f4"]]],
    ids=["objects", "a negative length", "more than there is", "no dtype", "another form"],
)
def test_a_task_that_describes_arrays_that_cannot_be_is_refused(tasks, kinds):
    made = tasks(2)
    text = msgspec.msgpack.encode((call(), kinds))
    head = np.array([1, len(text)], np.int64).view(np.uint8)
    made.calls[1]._ways[0].to.send(np.concatenate([head, np.frombuffer(text, np.uint8)]))
    with pytest.raises(PeerRefusedError, match="worker:1 describes its call"):
        made.calls[0].exchange(call(), [np.ones(1)])
