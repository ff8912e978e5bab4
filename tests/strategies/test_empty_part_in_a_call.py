"""A part without examples makes no calls, whenever the others find that out."""

from types import SimpleNamespace

import numpy as np
import pytest

from dtrain.errors import CallsDifferError
from dtrain.protocol.part_dealer import NO_PART
from dtrain.roles.collective.calls import CallLog, CallMemory
from dtrain.strategies.multi_worker_mirrored.step_calls import StepCalls
from dtrain.strategies.replicas.reduction import ReduceOp

OWN, OTHER = 0, 1


class Driver:
    """One that computes part 0 of a round; `comes` is called with it while it waits."""

    base, version, is_void, over_hosts = 1, 0, False, None

    def __init__(self, comes):
        self.comes = comes

    def slots(self):
        return (OWN, OTHER)

    def number_of(self, slot):
        return NO_PART

    def awaited(self, what):
        return what

    def await_others(self, since_s, what):
        self.comes(self)


def calls_of(log, comes):
    """The calls of part 0; `comes` happens while it waits."""
    waits = SimpleNamespace(clock=SimpleNamespace(now=lambda: 0.0), waiting=lambda what: None)
    return StepCalls(log, Driver(comes), lambda: None, waits)


def test_a_part_that_ends_without_examples_while_another_waits_is_no_other_program():
    log = CallLog(CallMemory.make(2))
    calls = calls_of(log, lambda driver: log.end(OTHER, examples=0))
    value = np.array([1.5, -2.0], np.float32)
    found = calls.all_reduce(OWN, lambda place: ({}, {}), ReduceOp.SUM, value)
    np.testing.assert_array_equal(found, value)


def test_a_part_with_examples_that_ends_while_another_waits_raises_in_that_one_with_its_place():
    log = CallLog(CallMemory.make(2))
    calls = calls_of(log, lambda driver: log.end(OTHER, examples=3))
    with pytest.raises(CallsDifferError, match=r"part 0 waits in all_reduce of SUM .*py:\d+, and part 1 has"):
        calls.all_reduce(OWN, lambda place: ({}, {}), ReduceOp.SUM, np.ones(2))


def test_a_part_whose_round_is_void_has_not_ended_for_those_that_have_not_heard_of_it_yet():
    log = CallLog(CallMemory.make(2))
    calls = calls_of(log, lambda driver: setattr(driver, "is_void", True))
    calls.all_reduce(OWN, lambda place: ({}, {}), ReduceOp.SUM, np.ones(2))
    calls.all_reduce(OWN, lambda place: ({}, {}), ReduceOp.SUM, np.ones(2))  # it is not given any more
    calls.finish(OWN, 3, lambda place: ({}, {}))
    assert (log.made(OWN), log.ended(OWN)) == (1, None)
