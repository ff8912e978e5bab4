"""Collective calls of real processes: sums in the order of ranks, errors in all where one differs or has died."""

import os
import pickle
import signal
import traceback

import numpy as np
import pytest

from dtrain.errors import CallsDifferError
from dtrain.roles.collective.calls import RESULTS, CallMemory, Calls
from dtrain.roles.collective.rules import Waits
from dtrain.wire.one_host.synchronization import Doorbells, pairs

SIZES = (1, 1000, 8192, 8193, 100_000)


def check(said):
    if len(set(said.values())) > 1:
        raise CallsDifferError(" and ".join(f"{rank}: {text.decode()}" for rank, text in said.items()))


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
            calls = Calls(memory, Doorbells(ends[rank]), rank, range(ranks), check, Waits(patience_s=20))
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


def summed(ranks, size, turn, mean=False):
    total = value(0, size, turn)
    for rank in range(1, ranks):
        total = total + value(rank, size, turn)
    return total / np.float32(ranks) if mean else total


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_sums_and_means_have_the_bits_of_adding_up_by_rank(ranks):
    def program(rank, calls):
        return [
            calls.all_reduce(b"x", [value(rank, size, turn), np.array(rank)], mean=mean)[0].tobytes()
            for turn, (size, mean) in enumerate((size, mean) for size in SIZES for mean in (False, True))
        ]

    expected = [
        summed(ranks, size, turn, mean).tobytes()
        for turn, (size, mean) in enumerate((size, mean) for size in SIZES for mean in (False, True))
    ]
    assert together(ranks, program) == [expected] * ranks


def test_large_results_stay_what_they_are_and_cannot_be_written():
    def program(rank, calls):
        kept = []
        for turn in range(RESULTS + 3):
            (result,) = calls.all_reduce(b"x", [value(rank, 20_000, turn)])
            if rank == 1:
                kept.append(result[5:])
        assert not kept[0].flags.writeable if rank else True
        return [each.tobytes() for each in kept]

    expected = [summed(2, 20_000, turn)[5:].tobytes() for turn in range(RESULTS + 3)]
    assert together(2, program) == [[], expected]


def test_arrays_that_are_written_in_place_are_not_copied():
    def program(rank, calls):
        results = []
        for turn in range(3):
            (place,) = calls.places([("float32", (50_000,))])
            place[...] = value(rank, 50_000, turn)
            results.append(calls.all_reduce(b"x", [place])[0].tobytes())
        return results

    assert together(2, program) == [[summed(2, 50_000, turn).tobytes() for turn in range(3)]] * 2


@pytest.mark.parametrize("size", [3, 20_000])
def test_an_exchange_gives_all_arrays_to_all_whatever_their_shapes(size):
    def program(rank, calls):
        found = []
        for turn in range(3):
            arrays = [np.full((rank + 1, size), turn, np.int64), np.array([rank == 1])]
            found.append(
                [[each.shape, int(each.sum())] for both in calls.exchange(b"x", arrays) for each in both]
            )
        return found

    expected = [
        [each for r in range(3) for each in ([(r + 1, size), turn * (r + 1) * size], [(1,), int(r == 1)])]
        for turn in range(3)
    ]
    assert together(3, program) == [expected] * 3


def test_calls_that_differ_raise_in_all_with_both_places():
    def program(rank, calls):
        calls.all_reduce(b"sum at a.py:1", [np.ones(2)])
        return calls.all_reduce(b"sum at a.py:7" if rank else b"sum at a.py:5", [np.ones(3 + rank)])

    for told in together(3, program):
        assert told == (
            "dtrain.errors.CallsDifferError: 0: sum at a.py:5 and 1: sum at a.py:7 and 2: sum at a.py:7"
        )


@pytest.mark.parametrize("size", [10, 50_000])
def test_a_death_ends_the_call_of_all_others_with_the_name_of_the_dead(size):
    def program(rank, calls):
        calls.all_reduce(b"x", [np.ones(size)])
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        calls.all_reduce(b"x", [np.ones(size)])

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
                calls.all_reduce(b"x", [np.ones(1)])
            except TimeoutError as error:
                return str(named[0]), str(error)[:60]
        return calls._doorbells.wait(10) and calls._doorbells.wait(10)

    told, _ = together(2, program)
    assert told == ("replica 1, call 1", "waited 0.2 s for replica 1, call 1; expected it within that ")
