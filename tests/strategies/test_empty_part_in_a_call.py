"""A part without examples makes no calls, whenever the others find that out."""

from types import SimpleNamespace

import numpy as np

from dtrain.roles.collective.calls import CallLog
from dtrain.strategies.multi_worker_mirrored.step_calls import StepCalls
from dtrain.strategies.replicas.reduction import ReduceOp

OWN, OTHER = 0, 1


class EndsBetweenLooks:
    """A round of two parts; the other one is complete, and empty, from the third look at it on."""

    number, version, is_void, places = 1, 0, False, (OWN, OTHER)

    def __init__(self):
        self.looks = 0

    def is_ready(self, place):
        self.looks += place == OTHER
        return place == OTHER and self.looks > 2

    def is_empty(self, place):
        return self.is_ready(place)


def test_a_part_that_ends_without_examples_while_another_waits_is_no_other_program():
    doorbells = SimpleNamespace(ring=lambda: None)
    clock = SimpleNamespace(now=lambda: 0.0)
    waits = SimpleNamespace(clock=clock, waiting=lambda what: None)
    driver = SimpleNamespace(
        now=EndsBetweenLooks(),
        across=None,
        version=0,
        owes=lambda place: False,
        owners=lambda late, what: f"the owners of {late}, {what}",
        await_others=lambda since_s, what: None,
    )
    calls = StepCalls(CallLog.make(2), driver, doorbells, waits)
    value = np.array([1.5, -2.0], np.float32)
    found = calls.all_reduce(OWN, lambda place: ({}, {}), ReduceOp.SUM, value)
    np.testing.assert_array_equal(found, value)
