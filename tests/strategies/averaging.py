"""A strategy of a test's own: several replicas in this process, whose gradients are averaged in memory."""

from collections.abc import Sequence

from dtrain.messages import Sums, Verdict
from dtrain.protocol.contributions import Outcome
from dtrain.strategies.in_process.training import LocalReplica, LocalStrategy, LocalTraining
from dtrain.strategies.interface import TurnReplica

Contribution = tuple[LocalReplica, Sums | None, int]


class AveragingReplica(LocalReplica):
    """One of several, which take turns; the last one of a batch makes the step."""

    def __init__(self, training: LocalTraining, rank: int, held: dict[int, Contribution]) -> None:
        super().__init__(training, rank)
        self._held = held

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        self._held[self.next_batch()] = self, sums, examples
        if len(self._held) < self.training.cut.parts:
            return Outcome(Verdict.PENDING)
        parts = sorted(self._held)
        contributions = [self._held.pop(part) for part in parts]
        gradients = [replica.blocks() for replica, _, count in contributions if count]
        total = sum(count for _, _, count in contributions)
        return self.training.apply(gradients, parts, [each for _, each, _ in contributions], loss, total)


class AveragingStrategy(LocalStrategy):
    """Trains with several replicas in one process."""

    def __init__(self, replicas: int) -> None:
        super().__init__(replicas=replicas)

    def make_replicas(self, training: LocalTraining) -> Sequence[TurnReplica]:
        held: dict[int, Contribution] = {}
        return [AveragingReplica(training, rank, held) for rank in range(self.context.num_replicas)]
