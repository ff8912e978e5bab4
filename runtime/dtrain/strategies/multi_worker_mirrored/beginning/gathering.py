"""How long the leader waits for the other replicas before a call of `fit` begins."""

import threading
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from dtrain.config.choices import TooFew
from dtrain.errors import TooFewReplicasError
from dtrain.process.clock import SYSTEM
from dtrain.runs.reporting import Reporter

LOOK_S = 0.2


@dataclass
class Gathering:
    """The wait for one call of `fit`.

    Attributes:
        expected: the ranks of the others.
        name_of: the task of a rank.
        gone: returns the ranks that have been there and are lost, or have left.
        reporter: told for whom the leader waits.
        too_few: what follows if some do not come.
        start_s: how long they may take.
    """

    expected: Set[int]
    name_of: Callable[[int], str]
    gone: Callable[[], Set[int]]
    reporter: Reporter
    too_few: TooFew
    start_s: float
    since_s: float = field(default_factory=SYSTEM.now, init=False)

    def suffice(self, there: Mapping[int, str], more: threading.Condition) -> bool:
        """Return whether training begins with the replicas that are there; if not, wait a little for `more`.

        Raises:
            TooFewReplicasError: some have not come in time, or have gone, and the spec does not do without.
        """
        missing = self.expected - there.keys()
        awaited = missing - self.gone()
        waited_s = SYSTEM.now() - self.since_s
        if awaited and waited_s < self.start_s:
            self.reporter.waiting(self._names(awaited))
            more.wait(LOOK_S)
            return False
        self.reporter.waiting(None)
        if missing and self.too_few != TooFew.SHRINK:
            raise TooFewReplicasError(
                f"too few replicas: {self._names(missing)} did not come within {self.start_s:g} s "
                f"(wait.start_s), or have gone; training.too_few is {self.too_few}"
            )
        if missing:
            why = "it is gone" if not awaited else f"waited {waited_s:.0f} s (wait.start_s)"
            self.reporter.warn(f"begins without {self._names(missing)}: {why}")
        return True

    def _names(self, ranks: Set[int]) -> str:
        return ", ".join(map(self.name_of, sorted(ranks)))
