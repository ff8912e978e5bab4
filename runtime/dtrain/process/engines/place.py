"""A task's place in a cluster, and how the tasks of a spec are laid over hosts that only have numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import ClusterSection
from dtrain.errors import SpecError

ORDER = (Role.CHIEF, Role.PS, Role.WORKER, Role.EVALUATOR)
"""The order in which tasks take the hosts of an engine that numbers them."""


@dataclass(frozen=True)
class Place:
    """One task in its cluster, as an engine says.

    Attributes:
        task: which one it is.
        cluster: where all tasks are; empty for a task that trains alone.
        engine: the engine's name, for messages.
        serves_at: where it serves, if the cluster cannot say it.
    """

    task: TaskId
    cluster: ClusterSpec
    engine: str
    serves_at: str | None = None


def default_counts(hosts: int) -> ClusterSection:
    """Return the tasks of so many hosts where no spec says: a chief, a server, and workers."""
    return ClusterSection(chief=1, ps=int(hosts > 1), worker=max(0, hosts - 2))


def place_by_number(
    engine: str,
    number: int,
    addresses: Sequence[str],
    counts: ClusterSection | None,
    first: TaskId | None = None,
) -> Place:
    """Return the place of the task on host `number`: chief, servers, workers, evaluator, in this order.

    Args:
        engine: its name, for messages.
        number: of this task's host, from 0.
        addresses: ``host:port`` of every task, by number.
        counts: how many tasks of each role there are; None: see `default_counts`.
        first: the task on host 0, where it is not the chief; the others keep their order behind it.

    Raises:
        SpecError: there are more or fewer tasks than hosts, or no host of this number.
    """
    if not 0 <= number < len(addresses):
        raise SpecError(
            f"{engine} says that this is task {number} of {len(addresses)}, which are 0 to "
            f"{len(addresses) - 1}"
        )
    counts = counts or default_counts(len(addresses))
    tasks = [TaskId(role, index) for role in ORDER for index in range(counts.count(role))]
    tasks.sort(key=lambda task: task != first)
    if len(tasks) != len(addresses):
        raise SpecError(
            f"{engine} has started {len(addresses)} tasks, and the spec has {len(tasks)}: {counts}; expected "
            "one task of the spec for each"
        )
    jobs: dict[Role, dict[int, str]] = {}
    for task, address in zip(tasks, addresses, strict=True):
        if task.role is not Role.EVALUATOR and len(addresses) > 1:
            jobs.setdefault(task.role, {})[task.index] = address
    return Place(tasks[number], ClusterSpec(jobs), engine)
