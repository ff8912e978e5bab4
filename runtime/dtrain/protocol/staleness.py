"""The staleness of a gradient, and its consequences.

The staleness of a push is the number of versions applied between the pull that its weights came from and its
arrival.
"""

from collections import Counter
from dataclasses import dataclass, field

from dtrain.config.choices import StaleGradients
from dtrain.messages import Verdict


@dataclass(frozen=True)
class StalenessRule:
    """An asynchronous server's judgement of a gradient by its staleness.

    Attributes:
        policy: ``apply`` as it is; ``drop`` above `max_staleness`; ``scale`` the learning rate by 1 / max(1,
            staleness) (Zhang et al. 2015, arXiv:1511.05950).
    """

    policy: StaleGradients = StaleGradients.APPLY
    max_staleness: int | None = None

    def judge(self, staleness: int) -> tuple[Verdict, float]:
        """Return the verdict, and the factor on the learning rate."""
        if self.max_staleness is not None and staleness > self.max_staleness:
            return Verdict.STALE, 0.0
        return Verdict.ACCEPTED, 1.0 / max(1, staleness) if self.policy == StaleGradients.SCALE else 1.0


@dataclass
class StalenessHistogram:
    """Counts of each staleness, of one replica or of all."""

    counts: Counter[int] = field(default_factory=Counter)
    _pushes: int = 0
    _sum: int = 0

    def add(self, staleness: int) -> None:
        """Count one push."""
        self.counts[staleness] += 1
        self._pushes += 1
        self._sum += staleness

    @property
    def mean(self) -> float | None:
        """Mean staleness; None before the first push."""
        return self._sum / self._pushes if self._pushes else None
