"""The state of an optimizer between loops of one's own, `fit` and files."""

from dtrain.checkpoints import OptimizerState
from dtrain.learning.optimizers import Optimizer
from dtrain.strategies.replicas.applying import ReplicaApplication
from dtrain.strategies.replicas.variable import Variable
from dtrain.types import Array


def state_of_loop(optimizer: Optimizer, variables: list[Variable]) -> OptimizerState | None:
    """Return how far an optimizer has come in loops over these variables; None: it was not used there.

    Variables that it has not updated have the slots with which they would begin.
    """
    application = ReplicaApplication.known(optimizer)
    if application is None or not any(variable in application.slots for variable in variables):
        return None
    slots: dict[str, dict[str, Array]] = {}
    for variable in variables:
        own = application.slots.get(variable)
        for name, array in (own[0] if own else optimizer.initial_slots(variable.copy_of(0))).items():
            slots.setdefault(name, {})[variable.name] = array.copy()
    return OptimizerState(int(optimizer.iterations), slots)


def leave_loop(optimizer: Optimizer, variables: list[Variable]) -> None:
    """Let the next loop go on from what `fit` makes of these variables' slots."""
    application = ReplicaApplication.known(optimizer)
    if application is not None:
        application.forget(variables)
