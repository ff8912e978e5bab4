"""Training in one process: the same rules as a server's, without anybody to talk to."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from dtrain.errors import NonFiniteGradientError
from dtrain.messages import Verdict
from dtrain.protocol import placement
from dtrain.protocol.replica_memory import ReplicaMemory
from dtrain.roles.evaluator import CheckpointWeights
from dtrain.roles.store import Store, any_non_finite
from dtrain.strategy import Array, Problem, Session, StepResult, Strategy, scope_of


class SingleSession:
    """The variables in this process's memory; see `Session`."""

    rank = 0
    replicas = 1
    batches_per_step = 1

    def __init__(self, problem: Problem, nan_policy: str = "refuse") -> None:
        plan = placement.plan(problem.variables, servers=1)
        weights, self._gradients = ReplicaMemory(plan), ReplicaMemory(plan)
        for name, value in problem.initial_values().items():
            weights.variables[name][...] = value
        # The model reads the variables where the optimizer writes them.
        self._store = Store(plan.layout(0), problem.optimizer, weights.blocks[0])
        self._nan_policy = nan_policy
        self._max_steps = problem.max_steps
        self._step = 0
        self.weights: dict[str, Array] = weights.variables
        arrays = self._gradients.variables
        self.gradients: dict[str, Array] = {spec.name: arrays[spec.name] for spec in problem.variables if spec.trainable}
        self.updates: dict[str, Array] = {spec.name: arrays[spec.name] for spec in problem.variables if not spec.trainable}
        for name, update in self.updates.items():
            update[...] = self.weights[name]

    @property
    def global_step(self) -> int:
        """Updates made so far."""
        return self._step

    @property
    def finished(self) -> bool:
        """Whether the last step is done."""
        return self._step >= self._max_steps

    def step(self, loss: float, examples: int) -> StepResult:
        """Apply the gradients at once."""
        blocks = self._gradients.blocks[0]
        if any_non_finite(blocks):
            if self._nan_policy == "fail":
                raise NonFiniteGradientError(f"the gradient of step {self._step + 1} holds NaN or infinity (loss {loss})")
            return StepResult(Verdict.REFUSED, self._step)
        self._store.apply(blocks, self._step)
        self._step += 1
        return StepResult(Verdict.ACCEPTED, self._step)

    def close(self, error: BaseException | None = None) -> None:
        """Nothing is held."""


class SingleStrategy:
    """One process that trains, leads, evaluates for itself; see `Strategy`."""

    trains = True
    is_leader = True
    evaluates = False
    has_evaluator = False
    num_replicas = 1
    num_replicas_in_sync = 1
    rank = 0

    def __init__(self, directory: Path | None = None, seed: int = 0) -> None:
        self.directory = directory
        self.seed = seed

    def open(self, problem: Problem) -> Session:
        """See `Strategy.open`."""
        return SingleSession(problem)

    def scope(self) -> AbstractContextManager[Strategy]:
        """Within it, models belong to this strategy."""
        return scope_of(self)

    def checkpoints(self) -> Iterator[CheckpointWeights]:
        """There is no evaluator."""
        return iter(())

    def evaluated(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Nobody asks."""

    def close(self) -> None:
        """Nothing is held."""
