"""Kubernetes: a pod of an Indexed Job, of which each role of the cluster has one.

    DTRAIN_ROLE=worker  JOB_COMPLETION_INDEX=2

The job's manifest sets DTRAIN_ROLE, and its spec writes the addresses: the stable names of pods behind a
headless Service. Source: "Indexed Job" in the documentation of Kubernetes.
"""

from collections.abc import Mapping

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import ClusterSection
from dtrain.errors import SpecError
from dtrain.process.engines.place import Place

INDEX = "JOB_COMPLETION_INDEX"
ROLE = "DTRAIN_ROLE"
ENGINE = "Kubernetes"


def place(environment: Mapping[str, str], section: ClusterSection | None) -> Place | None:
    """Return this task's place; None outside of an Indexed Job.

    Args:
        environment: the variables.
        section: the spec's, which writes addresses.

    Raises:
        SpecError: the role is missing or wrong, or the spec has no address for the task.
    """
    index = environment.get(INDEX)
    if not index:
        return None
    if not index.isdecimal() or len(index) > 9:
        raise SpecError(f"{INDEX} in the environment: expected a number, found {index[:80]!r}")
    role = environment.get(ROLE, "")
    if role not in set(Role):
        raise SpecError(
            f"{INDEX} is in the environment: expected {ROLE} beside it, one of {', '.join(Role)}, found "
            f"{role[:80]!r}"
        )
    jobs: dict[str, tuple[str, ...]] = {}
    for name in Role if section is not None else ():
        value = getattr(section, name)
        if isinstance(value, tuple):
            jobs[name] = value
        elif value and name is not Role.EVALUATOR:
            raise SpecError(
                f"cluster.{name}: in an Indexed Job expected the addresses of its pods, found {value}"
            )
    task = TaskId(Role(role), int(index))
    cluster = ClusterSpec.from_lists(**{name: each for name, each in jobs.items() if name != Role.EVALUATOR})
    if task not in cluster and task != TaskId(Role.EVALUATOR, 0):
        raise SpecError(
            f"{ROLE} and {INDEX} in the environment say {task}, and the spec has no address for it"
        )
    return Place(task, cluster, ENGINE)
