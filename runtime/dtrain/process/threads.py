"""The number of threads for a task's arithmetic, unless a launcher has set it.

`dtrain launch` shares the cores among its tasks. Without it each would take them all, and threads that wait
for each other while those of another process have the core take up to a hundred times as long. So a program
alone takes no more than were idle as it began. A launcher may not know that training is `deterministic`: the
program may have wished it.
"""

import os
from collections.abc import Mapping

from dtrain.config import CentralStorageSection, MirroredSection, TrainingSection
from dtrain.process.assignment import TaskAssignment

USERS_LIMIT = "OMP_NUM_THREADS"
"""The variable by which users limit threads: what it says holds for every library."""
NUMPY_LIMITS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", USERS_LIMIT)
"""Variables that numpy's libraries read, the strongest first."""
THREAD_LIMITS = (
    *NUMPY_LIMITS,
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
"""Every variable by which a launcher limits the threads of a task."""


def share_cores(
    training: TrainingSection, assignment: TaskAssignment | None, idle: int | None = None
) -> None:
    """Limit this process to its share of the machine's cores, or of those that are idle if that is given;
    without an assignment it trains alone.
    """
    cores = len(os.sched_getaffinity(0))
    limit = threads(training, assignment, idle or cores, os.environ)
    if limit is not None and limit < cores:
        import threadpoolctl

        threadpoolctl.threadpool_limits(limit)


def threads(
    training: TrainingSection, assignment: TaskAssignment | None, cores: int, environment: Mapping[str, str]
) -> int | None:
    """Return the number of threads for this task: its share of the cores among the training tasks here.

    It is None where a launcher or the user has set a number. Replicas in threads share the task's.
    """
    if training.deterministic:
        return 1
    said = next((environment[name] for name in NUMPY_LIMITS if name in environment), None)
    if isinstance(training, MirroredSection | CentralStorageSection):
        own = max(1, cores // training.replicas)  # the program may have more than the launcher knew of
        fewer = said is not None and said.isdecimal() and own < int(said)
        return own if said is None or (fewer and assignment is not None and assignment.launched) else None
    if said is not None or (assignment is not None and assignment.launched):
        return None
    if assignment is None:
        return cores
    cluster = assignment.cluster
    task = assignment.task
    here = cluster.address(task if task in cluster else cluster.leader) if cluster.leader else None
    replicas = [cluster.address(replica) for replica in cluster.replicas(training.chief_trains)]
    return max(1, cores // max(1, sum(_host(address) == _host(here) for address in replicas)))


def _host(address: str | None) -> str:
    return (address or "").rpartition(":")[0]
