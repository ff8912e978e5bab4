"""How much memory batches that were read ahead may take, where the program does not say it."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.errors import DtrainError
from dtrain.process.assignment import TaskAssignment

SHARE = 8
"""One part in so many of the memory is for batches that were read ahead."""
GROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")


@cache
def default_budget_bytes() -> int:
    """Return 1/8 of this process's memory, shared among the tasks of its run on this host."""
    return memory_bytes(GROUPS, OWN_GROUP) // SHARE // tasks_here(os.environ)


def memory_bytes(groups: Path, own_group: Path) -> int:
    """Return the least limit of the control groups that this process is in, or the machine's memory; the
    arguments are those of `own_limits`.
    """
    limits = own_limits("memory.max", groups, own_group)
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *(int(each[0]) for each in limits)])


def own_limits(name: str, groups: Path = GROUPS, own_group: Path = OWN_GROUP) -> Iterator[list[str]]:
    """Yield the words of a limit, in each of the control groups that this process is in and that has one.

    Args:
        name: of the file, for example `cpu.max`.
        groups: where control groups are mounted (version 2).
        own_group: the file that names this process's.
    """
    inner = ""
    with contextlib.suppress(OSError, IndexError):
        inner = own_group.read_text().splitlines()[-1].rpartition(":")[2].strip("/")
    folder = groups / inner
    while folder.is_relative_to(groups):
        with contextlib.suppress(OSError):  # no limit here
            words = (folder / name).read_text().split()
            if words and words[0] != "max":
                yield words
        folder = folder.parent


def tasks_here(environment: Mapping[str, str]) -> int:
    """Return how many tasks of this process's cluster have its host; 1 where it trains alone."""
    try:
        assignment = TaskAssignment.from_environment(environment)
    except (DtrainError, OSError):
        return 1  # what is wrong is said where the strategy is made
    if assignment is None:
        return 1
    cluster = assignment.cluster
    own = assignment.task if assignment.task in cluster else cluster.leader
    if own is None:
        return 1
    host = (cluster.address(own) or "").rpartition(":")[0]
    return max(1, sum((cluster.address(task) or "").rpartition(":")[0] == host for task in cluster.tasks()))


def size_bytes(value: Any) -> int:
    """Return about how much memory the arrays of a nested structure take."""
    if isinstance(value, np.ndarray):
        return value.nbytes + (sum(map(size_bytes, value.flat)) if value.dtype == object else 0)
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(size_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(size_bytes, value))
    return int(getattr(value, "nbytes", 0))
