"""What parts have given to the calls of a round stays until the next one, also for an heir that goes on."""

import numpy as np
import pytest

from dtrain.errors import InputError
from dtrain.exchange.calls import GivenCall, ReplicaCall
from dtrain.roles.collective import calls
from dtrain.roles.collective.calls import CallLog, CallMemory


def values(number):
    return [np.full((2, number), number, np.float32), np.array(number), np.zeros((0, 3), np.int8)]


def said(text):
    return ReplicaCall("all_reduce", text, "a.py:1")


def test_calls_of_any_shape_are_read_as_they_were_given_and_an_heir_adds_to_them():
    mine = CallLog(CallMemory.make(3))
    successor = CallLog(mine.memory)
    for log in (mine, successor):
        log.begin(7)
    for number in range(3):
        mine.give(1, number, GivenCall(said("x" * 100 * number), values(number)))
    assert (successor.made(1), successor.made(0)) == (3, 0)
    successor.give(1, 0, GivenCall(said("again"), values(9)))  # it computes the part from its beginning
    successor.give(1, 3, GivenCall(said("last"), values(3)))
    for log in (mine, successor):
        for number in (3, 0, 2, 1):
            call = log.call(1, number)
            assert call.call == said("last" if number == 3 else "x" * 100 * number)
            for found, expected in zip(call.arrays, values(number), strict=True):
                assert found.dtype == expected.dtype
                assert found.shape == expected.shape
                assert found.tobytes() == expected.tobytes()


def test_a_new_round_begins_with_no_calls():
    log = CallLog(CallMemory.make(1))
    log.begin(1)
    log.give(0, 0, GivenCall(said("a"), [np.ones(5)]))
    log.end(0)
    log.begin(2)
    assert (log.made(0), log.ended(0)) == (0, None)
    log.give(0, 0, GivenCall(said("b"), [np.zeros(3)]))
    assert log.call(0, 0).call == said("b")


def test_too_much_for_a_step_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(calls, "REGION_BYTES", 4096)
    log = CallLog(CallMemory.make(2))
    log.give(0, 0, GivenCall(said(""), [np.ones(300)]))
    with pytest.raises(InputError, match=r"take more than 4096 bytes; expected"):
        log.give(0, 1, GivenCall(said(""), [np.ones(300)]))
