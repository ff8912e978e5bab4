"""Training in one process with one replica: the same rules as a server's, without a server.

Under `dtrain launch --strategy single` it saves and resumes as a cluster does; under plain Python it keeps no
files.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dtrain.config import TrainingSection
from dtrain.messages import Sums
from dtrain.process.assignment import TaskAssignment
from dtrain.protocol.contributions import Outcome
from dtrain.roles.chief.start import pipelines_of
from dtrain.strategies.in_process.training import LocalReplica, LocalStrategy, LocalTraining
from dtrain.strategies.interface import TurnReplica
from dtrain.strategies.replicas.reduction import Nest, ReduceOp

if TYPE_CHECKING:  # loaded by the program that coordinates
    from dtrain.strategies.coordinator.cluster_coordinator import Coordination


class SingleReplica(LocalReplica):
    """The one replica: every gradient is applied at once."""

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        part = self.next_batch()
        if not examples:
            return self.training.pass_over(part)
        return self.training.apply([self.blocks()], [part], [sums], loss, examples)

    def all_reduce(self, op: ReduceOp, value: Nest) -> Nest:
        """Return the value, which is the sum and the mean of itself."""
        return value


class SingleStrategy(LocalStrategy):
    """One process that trains, leads, evaluates for itself."""

    has_coordinator = False
    coordination: "Coordination | None" = None

    def __init__(
        self, assignment: TaskAssignment | None = None, training: TrainingSection | None = None
    ) -> None:
        """Train alone, by `training`; or as the one task of a launch, with its run directory."""
        super().__init__(assignment.spec.training if assignment else training, assignment)
        pipelines = pipelines_of(assignment, self._beginnings.folder)
        self.context = replace(self.context, pipelines=pipelines)

    def make_replicas(self, training: LocalTraining) -> Sequence[TurnReplica]:
        return [SingleReplica(training)]

    def coordinate(self) -> "Coordination":
        """Begin to coordinate; a thread is the only worker."""
        from dtrain.strategies.coordinator import closures, cluster_coordinator, values

        self.shared = values.ProgramValues(closures.ProgramNames())
        self.coordination = cluster_coordinator.coordinate_alone(self.shared)
        return self.coordination

    def close(self, error: BaseException | None = None) -> None:
        if self.coordination is not None:
            self.coordination.end(farewell=error is None)
        super().close(error)
