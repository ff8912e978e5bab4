"""The `data` section."""

from collections.abc import Iterator
from dataclasses import dataclass

from dtrain.config.problems import Problem, at_least


@dataclass(frozen=True)
class DataSection:
    """The data of a run.

    Attributes:
        pipelines: how many pipelines a function of an InputContext makes; None: as many as there are replicas
            (without servers: workers) when the run begins. It stays so when it is resumed with others.
    """

    pipelines: int | None = None

    def problems(self) -> Iterator[Problem]:
        """Yield the mistakes that types do not exclude."""
        yield from at_least(self, 1, "pipelines")
