"""The processor of simulations, and the search for garbage in them."""

import gc
import os
from collections.abc import Iterator

import pytest

SELDOM = 50_000
"""A search for so many new objects: a simulation makes many, and drops nearly all at once."""


@pytest.fixture(autouse=True)
def processors() -> Iterator[list[int]]:
    """Keep the threads of a simulation, of which one runs at a time, on one processor, and let none interrupt the one
    that wakes it: half as expensive. Yield the processors that there are.
    """
    allowed, policy, threshold = os.sched_getaffinity(0), os.sched_getscheduler(0), gc.get_threshold()
    there = sorted(allowed)
    os.sched_setaffinity(0, {there[os.getpid() % len(there)]})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    gc.set_threshold(SELDOM)
    yield there
    gc.set_threshold(*threshold)
    os.sched_setscheduler(0, policy, os.sched_param(0))
    os.sched_setaffinity(0, allowed)
