"""The `checkpoint` section."""

from collections.abc import Iterator
from dataclasses import dataclass

from dtrain.config.problems import Problem, at_least


@dataclass(frozen=True)
class CheckpointSection:
    """When to save (always at step 0 and the end), how many checkpoints to keep, where copies go."""

    every_s: float | None = 30.0
    every_steps: int | None = None
    keep: int = 5
    keep_every_n_hours: float | None = None
    remote: str | None = None

    def problems(self) -> Iterator[Problem]:
        """Yield the mistakes that types do not exclude."""
        if self.remote is not None and "://" not in self.remote:
            yield ("remote",), f"expected a URL such as s3://bucket/run, found {self.remote!r}"
        yield from at_least(self, 0.1, "every_s")
        yield from at_least(self, 1, "every_steps", "keep")
        yield from at_least(self, 0, "keep_every_n_hours")
