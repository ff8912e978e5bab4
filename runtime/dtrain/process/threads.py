"""How many threads the arithmetic of a task may use, as far as a launcher has not said it.

`dtrain launch` shares the cores among its tasks. Without it each would take them all, and threads that wait
for each other while those of another task have the core take a hundred times as long. That training is
`deterministic` a launcher may not know: the program may have wished it.
"""

import os
from collections.abc import Mapping

from dtrain.config import TrainingSection
from dtrain.process.assignment import TaskAssignment

USERS_LIMIT = "OMP_NUM_THREADS"
"""The variable by which users limit threads: what it says holds for every library."""
NUMPY_LIMITS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", USERS_LIMIT)
"""What numpy's libraries read, the strongest first."""
THREAD_LIMITS = (
    *NUMPY_LIMITS,
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
"""Every variable by which a launcher limits the threads of a task."""


def share_cores(training: TrainingSection, assignment: TaskAssignment | None) -> None:
    """Let this process use its share of the machine's cores, from now on; without an assignment it trains
    alone.
    """
    cores = len(os.sched_getaffinity(0))
    limit = threads(training, assignment, cores, os.environ)
    if limit is not None and limit < cores:
        import threadpoolctl

        threadpoolctl.threadpool_limits(limit)


def threads(
    training: TrainingSection, assignment: TaskAssignment | None, cores: int, environment: Mapping[str, str]
) -> int | None:
    """Share the cores of this machine among the training tasks on it.

    Returns:
        How many threads this task may use; None where it is alone, or where a launcher or the user has said
        it.
    """
    if training.deterministic:
        return 1
    if assignment is None or assignment.launched or any(name in environment for name in NUMPY_LIMITS):
        return None
    cluster = assignment.cluster
    task = assignment.task
    here = cluster.address(task if task in cluster else cluster.leader) if cluster.leader else None
    replicas = [cluster.address(replica) for replica in cluster.replicas(training.chief_trains)]
    return max(1, cores // max(1, sum(_host(address) == _host(here) for address in replicas)))


def _host(address: str | None) -> str:
    return (address or "").rpartition(":")[0]
