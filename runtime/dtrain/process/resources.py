"""The resources of this process: threads for arithmetic, freed memory that is kept, open files, limits.

`dtrain launch` shares the cores among its tasks. Without it each would take them all, and threads that wait
for each other while those of another process have the core take up to a hundred times as long. So a program
alone takes no more than were idle as it began. A launcher may not know that training is `deterministic`:
the program may have wished it.

By default glibc returns a message's memory to the kernel when the message is done, and the next message
faults the same pages in again, one by one: 500 faults in a step that moves 2.7 MB, an eighth of its CPU
time and more of its wall time. Each thread also has a heap of its own, in which it keeps the memory of its
last answer: a server of 80 MB of variables with two clients holds 340-380 MB at most with one heap for all,
650-680 without.
"""

import contextlib
import ctypes
import os
import resource
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from dtrain.cluster.hosts import host_of
from dtrain.config import CentralStorageSection, MirroredSection, TrainingSection
from dtrain.errors import RunError
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


_CORES_OF_TASK = "SLURM_CPUS_PER_TASK"
_CORES_OF_STEP = "SLURM_CPUS_ON_NODE"


def usable_cores(environment: Mapping[str, str]) -> int:
    """Return the cores that this process may use.

    Under Slurm these are at most what the job has on this node, or for each task: not every site binds
    processes to that.
    """
    cores = len(os.sched_getaffinity(0))
    said = environment.get(_CORES_OF_TASK) or environment.get(_CORES_OF_STEP, "")
    return min(cores, max(1, int(said))) if said.isdecimal() and len(said) < 7 else cores


def share_cores(
    training: TrainingSection, assignment: TaskAssignment | None, idle: int | None = None
) -> None:
    """Limit this process to its share of the machine's cores, or of those that are idle if that is given;
    without an assignment it trains alone.
    """
    cores = len(os.sched_getaffinity(0))
    limit = threads(training, assignment, idle or usable_cores(os.environ), os.environ)
    if limit is not None and limit < cores:
        import threadpoolctl

        threadpoolctl.threadpool_limits(limit)


def threads(
    training: TrainingSection, assignment: TaskAssignment | None, cores: int, environment: Mapping[str, str]
) -> int | None:
    """Return the number of threads for this task: its share of the cores among the training tasks here.

    It is None where a launcher or the user has set a number. Replicas in threads share the task's. Slurm may
    have given separate cores to each task.
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
    if assignment is None or environment.get(_CORES_OF_TASK):
        return cores
    cluster = assignment.cluster
    task = assignment.task
    here = cluster.address(task if task in cluster else cluster.leader) if cluster.leader else None
    replicas = [cluster.address(replica) for replica in cluster.replicas(training.chief_trains)]
    return max(1, cores // max(1, sum(host_of(address) == host_of(here) for address in replicas)))


_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

KEPT_BYTES = 64 * 1024 * 1024
"""At most so much free memory stays with an arena: the chunks of a message of 32 MB are there for the next
one. With 16 MiB a server takes 38 ms of CPU to hear one over gRPC and send it back, with 64 it takes 22."""
MAPPED_BYTES = 8 * 1024 * 1024
"""Arrays from this size on are mapped and unmapped by themselves: a large server keeps no unused memory."""
HEAPS = 1


@cache
def keep_freed_memory() -> None:
    """Tune this process's allocator, once, before its second thread allocates; only glibc's is tuned."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_ARENA_MAX, HEAPS)


def allow_open_files(needed: int | None = None) -> None:
    """Raise the soft limit to `needed`, or a `RunError` if the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed is None:
        needed = hard
    elif hard != resource.RLIM_INFINITY and hard < needed:
        raise RunError(
            f"this cluster needs {needed} open files, and {hard} are allowed (`ulimit -Hn`); raise that, or "
            "start fewer tasks"
        )
    if soft != resource.RLIM_INFINITY and (needed == resource.RLIM_INFINITY or soft < needed):
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


def own_memory_bytes(groups: Path = _GROUPS, own_group: Path = _OWN_GROUP) -> int:
    """Return the least limit of this process's control groups, or the machine's memory; see `own_limits`."""
    limits = own_limits("memory.max", groups, own_group)
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *(int(each[0]) for each in limits)])


def own_limits(name: str, groups: Path = _GROUPS, own_group: Path = _OWN_GROUP) -> Iterator[list[str]]:
    """Yield the words of a limit, such as `cpu.max`, in each control group of this process that has one.

    `groups` is where control groups (version 2) are mounted, and `own_group` the file that names this
    process's.
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
