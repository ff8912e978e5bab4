"""Which strategy this process trains with: from its environment, the classic flags, or alone."""

import os
import sys

from dtrain.assignment import TaskAssignment
from dtrain.classic_flags import read_classic_flags
from dtrain.cluster import Role
from dtrain.strategies.single import SingleStrategy
from dtrain.strategy import Strategy, current_strategy


def get_strategy() -> Strategy:
    """The strategy of the innermost ``with strategy.scope():``, else the one that this process's cluster asks for.

    The cluster comes from TF_CONFIG in the environment, or from the classic flags ``--ps_hosts --worker_hosts --job_name
    --task_index``; without either, one process trains alone. A ``ps`` task serves here and then raises SystemExit(0).
    Compare `tf.distribute.get_strategy`.

    Raises:
        SpecError: TF_CONFIG or the flags are wrong.
    """
    return current_strategy(_make)


def _make() -> Strategy:
    assignment = TaskAssignment.from_environment(os.environ)
    if assignment is None and (found := read_classic_flags(sys.argv[1:])):
        assignment = TaskAssignment.by_hand(*found)
    return SingleStrategy() if assignment is None else strategy_of(assignment)


def strategy_of(assignment: TaskAssignment) -> Strategy:
    """The strategy of a task; a ``ps`` task serves instead, and then raises SystemExit(0)."""
    if assignment.spec.training.strategy == "single":
        return SingleStrategy(directory=assignment.run_dir, seed=assignment.spec.training.seed)
    # Only now grpc is loaded: training alone does not need it.
    if assignment.task.role is Role.PS:
        from dtrain.roles.parameter_server_driver import serve

        serve(assignment)
        raise SystemExit(0)
    from dtrain.strategies.parameter_server import ParameterServerStrategy

    return ParameterServerStrategy(assignment)
