"""How many threads the arithmetic of a task that was started by hand may use.

`dtrain launch` shares the cores among its tasks. Without it each would take them all, and threads that wait for each other while
those of another task have the core take a hundred times as long.
"""

import os
from collections.abc import Mapping

from dtrain.assignment import TaskAssignment

USERS_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def share_cores(assignment: TaskAssignment) -> None:
    """Let this process use its share of the machine's cores, from now on."""
    cores = len(os.sched_getaffinity(0))
    limit = threads_by_hand(assignment, cores, os.environ)
    if limit is not None and limit < cores:
        import threadpoolctl

        threadpoolctl.threadpool_limits(limit)


def threads_by_hand(assignment: TaskAssignment, cores: int, environment: Mapping[str, str]) -> int | None:
    """The cores of this machine, shared by the training tasks on it; None where a launcher or the user has said how many."""
    if assignment.launched:
        return None
    training = assignment.spec.training
    if training.deterministic:
        return 1
    if any(name in environment for name in USERS_LIMITS):
        return None
    cluster, task = assignment.cluster, assignment.task
    here = cluster.address(task if task in cluster else cluster.leader) if cluster.leader else None
    replicas = [cluster.address(replica) for replica in cluster.replicas(training.chief_trains)]
    return max(1, cores // max(1, sum(_host(address) == _host(here) for address in replicas)))


def _host(address: str | None) -> str:
    return (address or "").rpartition(":")[0]
