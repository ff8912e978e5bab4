"""The number of threads that the arithmetic of each task may use, and the variables that limit it."""

from collections.abc import Mapping

from dtrain.config import RunSpec
from dtrain.process.threads import THREAD_LIMITS, USERS_LIMIT


def threads_per_task(spec: RunSpec, cores: int, replicas: int | None = None) -> int:
    """Return how many threads each task may use: the cores shared by the tasks that train, at least 1.

    Args:
        spec: of the run.
        cores: of the host.
        replicas: how many tasks train on it; None: all of the spec.
    """
    if spec.training.deterministic:
        return 1
    return max(1, cores // max(1, spec.replicas if replicas is None else replicas))


def thread_variables(
    spec: RunSpec, cores: int, environment: Mapping[str, str], replicas: int | None = None
) -> dict[str, str]:
    """Return the variables that limit each task's threads; a user's limit holds unless deterministic."""
    users = None if spec.training.deterministic else environment.get(USERS_LIMIT)
    return limits_beside(environment, users or str(threads_per_task(spec, cores, replicas)))


def limits_beside(environment: Mapping[str, str], threads: str) -> dict[str, str]:
    """Return the variables that limit a task's threads, without those that the user has set."""
    return {name: threads for name in THREAD_LIMITS if name not in environment}
