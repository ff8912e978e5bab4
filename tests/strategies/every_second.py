"""A strategy of a test's own: one replica, of whose gradients every second one is applied."""

from collections.abc import Sequence

from dtrain.messages import Sums
from dtrain.protocol.contributions import Outcome
from dtrain.strategies.in_process.training import APPLIED, LocalReplica, LocalStrategy, LocalTraining
from dtrain.strategies.interface import TurnReplica


class PatientReplica(LocalReplica):
    """Leaves the variables as they are after the first, third, ... step; every step counts its batch."""

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        training, part = self.training, self.next_batch()
        gradient = self.blocks()
        if training.global_step % 2:
            return training.apply([gradient], [part], [sums], loss, examples)
        training.advance(lambda: training.state.dealer.settle(part), [sums], loss, examples)
        return APPLIED


class EverySecondStrategy(LocalStrategy):
    """Trains in one process, at half the pace."""

    def make_replicas(self, training: LocalTraining) -> Sequence[TurnReplica]:
        return [PatientReplica(training)]
