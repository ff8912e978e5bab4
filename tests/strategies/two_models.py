"""A strategy of a test's own: two models, each trained by descent on its part of every batch; each version is
their average, with which both go on after some steps of their own.
"""

from collections.abc import Sequence

from dtrain.messages import Sums, Verdict
from dtrain.protocol.contributions import Outcome
from dtrain.strategies.in_process.training import APPLIED, LocalReplica, LocalStrategy, LocalTraining
from dtrain.strategies.interface import TurnReplica

Held = dict[int, tuple[Sums | None, int]]


class OwnModel(LocalReplica):
    """A replica with values of its own, which it descends at the optimizer's rate."""

    def __init__(self, training: LocalTraining, rank: int, models: list["OwnModel"], held: Held) -> None:
        super().__init__(training, rank)
        self.weights = {name: value.copy() for name, value in training.weights.items()}
        self._models, self._held = models, held

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        training = self.training
        rate = training.optimizer["config"]["learning_rate"]
        for name, gradient in self.gradients.items() if examples else ():
            self.weights[name] -= rate * gradient
        self._held[self.next_batch()] = sums, examples
        if len(self._held) < len(self._models):
            return Outcome(Verdict.PENDING)
        training.advance(self._average, [each for each, _ in self._held.values()], loss, examples)
        self._held.clear()
        return APPLIED

    def _average(self) -> None:
        training = self.training
        for part in self._held:
            training.state.dealer.settle(part)
        for name, value in training.weights.items():
            value[...] = sum(each.weights[name] for each in self._models) / len(self._models)
            if training.global_step % 2:
                for each in self._models:
                    each.weights[name][...] = value


class TwoModels(LocalStrategy):
    """Averages two models after every second step of each."""

    def __init__(self) -> None:
        super().__init__(replicas=2)

    def make_replicas(self, training: LocalTraining) -> Sequence[TurnReplica]:
        models: list[OwnModel] = []
        held: Held = {}
        models += [OwnModel(training, rank, models, held) for rank in range(2)]
        return models
