"""The processor of simulations."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def one_processor() -> Iterator[None]:
    """Keep the threads of a simulation, of which one runs at a time, on one processor: a third faster."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(allowed)[os.getpid() % len(allowed)]})
    yield
    os.sched_setaffinity(0, allowed)
