"""A part without examples makes no calls, whenever the others find that out."""

from types import SimpleNamespace

import numpy as np
import pytest

from dtrain.errors import CallsDifferError
from dtrain.roles.collective.calls import CallLog, CallMemory
from dtrain.strategies.multi_worker_mirrored.step_calls import StepCalls
from dtrain.strategies.replicas.reduction import ReduceOp

OWN, OTHER = 0, 1


class Round:
    number, version, is_void, places = 1, 0, False, (OWN, OTHER)


def test_a_part_that_ends_without_examples_while_another_waits_is_no_other_program():
    log = CallLog(CallMemory.make(2))
    clock = SimpleNamespace(now=lambda: 0.0)
    waits = SimpleNamespace(clock=clock, waiting=lambda what: None)
    driver = SimpleNamespace(
        now=Round(),
        across=None,
        version=0,
        owes=lambda place: False,
        owners=lambda late, what: f"the owners of {late}, {what}",
        await_others=lambda since_s, what: log.end(OTHER, examples=0),
    )
    calls = StepCalls(log, driver, lambda: None, waits)
    value = np.array([1.5, -2.0], np.float32)
    found = calls.all_reduce(OWN, lambda place: ({}, {}), ReduceOp.SUM, value)
    np.testing.assert_array_equal(found, value)


def test_a_part_with_examples_that_ends_while_another_waits_raises_in_that_one_with_its_place():
    log = CallLog(CallMemory.make(2))
    driver = SimpleNamespace(
        now=Round(),
        across=None,
        version=0,
        owes=lambda place: False,
        owners=lambda late, what: f"the owners of {late}, {what}",
        await_others=lambda since_s, what: log.end(OTHER, examples=3),
    )
    waits = SimpleNamespace(clock=SimpleNamespace(now=lambda: 0.0), waiting=lambda what: None)
    calls = StepCalls(log, driver, lambda: None, waits)
    with pytest.raises(CallsDifferError, match=r"part 0 waits in all_reduce of SUM .*py:\d+, and part 1 has"):
        calls.all_reduce(OWN, lambda place: ({}, {}), ReduceOp.SUM, np.ones(2))
