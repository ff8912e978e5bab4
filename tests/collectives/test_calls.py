"""Collective calls of real processes: sums in the order of ranks, errors in all where one differs or has died."""

import os
import pickle
import signal
import traceback

import numpy as np
import pytest

from dtrain.exchange.calls import ReplicaCall
from dtrain.roles.collective.calls import RESULTS, CallMemory, Calls
from dtrain.roles.collective.rules import Waits
from dtrain.wire.one_host.synchronization import NotifySockets, pairs

SIZES = (1, 1000, 8192, 8193, 100_000)


def call(line=0):
    """The same sum, by its place in the program."""
    return ReplicaCall("all_reduce", f"SUM {line}", f"a.py:{line}")


def together(ranks, program):
    """Run `program(rank, calls)` in a process each; return what each returned, raised, or None if it died."""
    memory = CallMemory.make(ranks)
    ends = pairs(range(ranks))
    children = []
    for rank in range(ranks):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            for other, sockets in ends.items():
                if other != rank:
                    for each in sockets.values():
                        each.close()
            calls = Calls(memory, NotifySockets(ends[rank]), rank, Waits(patience_s=20))
            try:
                told = pickle.dumps(program(rank, calls))
            except BaseException:
                told = pickle.dumps(traceback.format_exc().splitlines()[-1])
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(told)
            os._exit(0)
        os.close(writing)
        children.append((child, reading))
    for sockets in ends.values():
        for each in sockets.values():
            each.close()
    told = []
    for child, reading in children:
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        told.append(pickle.loads(text) if text else None)
    return told


def value(rank, size, turn):
    return np.sin(np.arange(size, dtype=np.float32) * (rank + 1) + turn)


def summed(ranks, size, turn):
    total = value(0, size, turn)
    for rank in range(1, ranks):
        total = total + value(rank, size, turn)
    return total


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_sums_have_the_bits_of_adding_up_by_rank(ranks):
    def program(rank, calls):
        return [
            calls.all_reduce(call(), [value(rank, size, turn), np.array(rank)])[0].tobytes()
            for turn, size in enumerate(SIZES)
        ]

    expected = [summed(ranks, size, turn).tobytes() for turn, size in enumerate(SIZES)]
    assert together(ranks, program) == [expected] * ranks


def test_large_results_stay_what_they_are_and_cannot_be_written():
    def program(rank, calls):
        kept = []
        for turn in range(RESULTS + 3):
            (result,) = calls.all_reduce(call(), [value(rank, 20_000, turn)])
            if rank == 1:
                kept.append(result[5:])
        assert not kept[0].flags.writeable if rank else True
        return [each.tobytes() for each in kept]

    expected = [summed(2, 20_000, turn)[5:].tobytes() for turn in range(RESULTS + 3)]
    assert together(2, program) == [[], expected]


@pytest.mark.parametrize("size", [3, 20_000])
def test_an_exchange_gives_all_arrays_to_all_whatever_their_shapes(size):
    def program(rank, calls):
        found = []
        for turn in range(3):
            arrays = [np.full((rank + 1, size), turn, np.int64), np.array([rank == 1])]
            found.append(
                [[each.shape, int(each.sum())] for both in calls.exchange(call(), arrays) for each in both]
            )
        return found

    expected = [
        [each for r in range(3) for each in ([(r + 1, size), turn * (r + 1) * size], [(1,), int(r == 1)])]
        for turn in range(3)
    ]
    assert together(3, program) == [expected] * 3


def test_calls_that_differ_raise_in_all_with_both_places():
    def program(rank, calls):
        calls.all_reduce(call(1), [np.ones(2)])
        return calls.all_reduce(call(7 if rank else 5), [np.ones(3 + rank)])

    for told in together(3, program):
        assert told.startswith(
            "dtrain.errors.CallsDifferError: replicas made different calls: replica 0 all_reduce of SUM 5 at "
            "a.py:5, replica 1 all_reduce of SUM 7 at a.py:7; every replica must"
        )


@pytest.mark.parametrize("size", [10, 50_000])
def test_a_death_ends_the_call_of_all_others_with_the_name_of_the_dead(size):
    def program(rank, calls):
        calls.all_reduce(call(), [np.ones(size)])
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        calls.all_reduce(call(), [np.ones(size)])

    first, dead, third = together(3, program)
    assert dead is None
    for told in (first, third):
        assert told == (
            "dtrain.errors.PeerLostError: replica 1 has ended in the midst of collective calls: its call "
            "(number 2) will not come"
        )


def test_a_replica_that_is_not_there_is_named_while_it_is_waited_for():
    def program(rank, calls):
        named = []
        calls._waits = Waits(waiting=named.append, patience_s=0.2 if rank == 0 else 20)
        if rank == 0:
            try:
                calls.all_reduce(call(), [np.ones(1)])
            except TimeoutError as error:
                return str(named[0]), str(error)[:60]
        return calls._notify_sockets.wait(10) and calls._notify_sockets.wait(10)

    told, _ = together(2, program)
    assert told == ("replica 1, call 1", "waited 0.2 s for replica 1, call 1; expected it within that ")
