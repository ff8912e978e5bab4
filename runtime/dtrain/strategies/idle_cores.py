"""The cores of this process that have nothing to do, for a program that takes no part in a cluster.

A load average still tells of what ended a minute ago, and tells nothing yet of what has just begun; so the
kernel's counts of busy time are read twice.
"""

import os
from functools import cache

import psutil

from dtrain.data.prefetching.budget import own_limits

WINDOW_S = 0.05
"""The kernel counts in hundredths of a second."""
USUAL = 0.25
"""The load, in cores, that other programs always cause. A core that is only this busy counts as idle."""


@cache
def idle_cores() -> int:
    """Return how many cores have nothing to do while this process waits for `WINDOW_S`, at least 1 and at
    most what its control groups let it have. It is measured once for a process.
    """
    busy = dict(enumerate(psutil.cpu_percent(WINDOW_S, percpu=True)))
    idle = USUAL + sum(1 - busy.get(core, 0) / 100 for core in os.sched_getaffinity(0))
    quotas = [int(quota) / int(period) for quota, period in own_limits("cpu.max")]
    return max(1, int(min([idle, *quotas])))
