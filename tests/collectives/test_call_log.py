"""What parts have given to the calls of a round stays until the next one, also for an heir that goes on."""

import numpy as np
import pytest

from dtrain.errors import InputError
from dtrain.roles.collective import calls
from dtrain.roles.collective.calls import CallLog, GivenCall


def values(number):
    return [np.full((2, number), number, np.float32), np.array(number), np.zeros((0, 3), np.int8)]


def test_calls_of_any_shape_are_read_as_they_were_given_and_an_heir_adds_to_them():
    mine = CallLog.make(3)
    successor = CallLog(mine._memory, 3)
    for number in range(3):
        mine.give(1, 7, GivenCall(b"x" * 100 * number, values(number)))
    assert (successor.made(1, 7), successor.made(0, 7), successor.made(1, 8)) == (3, 0, 0)
    successor.give(1, 7, GivenCall(b"last", values(3)))
    for log in (mine, successor):
        for number in (3, 0, 2, 1):
            call = log.read(1, 7, number)
            assert call.said == (b"last" if number == 3 else b"x" * 100 * number)
            for found, expected in zip(call.arrays, values(number), strict=True):
                assert found.dtype == expected.dtype
                assert found.shape == expected.shape
                assert found.tobytes() == expected.tobytes()


def test_a_new_round_begins_with_no_calls():
    log = CallLog.make(1)
    log.give(0, 1, GivenCall(b"a", [np.ones(5)]))
    assert log.made(0, 2) == 0
    log.give(0, 2, GivenCall(b"b", [np.zeros(3)]))
    assert log.read(0, 2, 0).said == b"b"


def test_too_much_for_a_step_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(calls, "PART_BYTES", 4096)
    log = CallLog.make(2)
    log.give(0, 1, GivenCall(b"", [np.ones(300)]))
    with pytest.raises(InputError, match=r"take more than 4096 bytes; expected"):
        log.give(0, 1, GivenCall(b"", [np.ones(300)]))
