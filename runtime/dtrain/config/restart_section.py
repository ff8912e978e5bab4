"""The `restart` section, one a role."""

from collections.abc import Iterator
from dataclasses import dataclass

from dtrain.config.choices import RestartPolicy
from dtrain.config.cluster_section import ROLES
from dtrain.config.problems import Problem, at_least


@dataclass(frozen=True)
class RestartSection:
    """The restarts of tasks of one role. The pause doubles; 60 healthy seconds reset the count."""

    policy: RestartPolicy = RestartPolicy.ON_FAILURE
    max: int = 3
    backoff_s: float = 1.0

    def problems(self) -> Iterator[Problem]:
        """Yield the mistakes that types do not exclude."""
        yield from at_least(self, 0, "max", "backoff_s")


NO_RESTART = RestartSection(policy=RestartPolicy.NEVER)
DEFAULT_RESTART = {role: RestartSection(max=1 if role == "chief" else 3) for role in ROLES}
