"""`training.overlap`: whether a step begins and ends layer by layer, with values that come late and gradients
that leave early.

It pays where a link is slow, and costs a few percent where the processors do all of the work
(docs/design/performance.md#layer-by-layer-over-grpc). Numbers are the same with it and without.
"""

from dataclasses import dataclass

from dtrain.config.choices import Overlapping
from dtrain.roles.worker.driver import ReplicaDriver

SLOW_LINK_MBIT_S = 3000.0
"""Below this speed of a link layers overlap: a step gained at 1 Gbit/s, and lost a little at 10 Gbit/s."""


@dataclass
class Overlap:
    """The decision of one process, which measures its link at most once.

    Attributes:
        choice: `training.overlap`.
        link_mbit_s: as it was measured; None before.
    """

    choice: Overlapping
    link_mbit_s: float | None = None

    def decide(self, exchange: ReplicaDriver) -> bool:
        """Return whether the layers of a replica that has its first values overlap."""
        if self.choice == Overlapping.OFF or not exchange.can_overlap:
            return False
        if self.choice == Overlapping.ON:
            return True
        if self.link_mbit_s is None:
            self.link_mbit_s = exchange.measure_link()
        return self.link_mbit_s < SLOW_LINK_MBIT_S
