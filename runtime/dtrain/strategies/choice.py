"""Which strategy this process trains with: from its environment, the classic flags, or alone."""

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

from dtrain.cluster import Role
from dtrain.config import PlainSettings, RunSpec, SingleSection, TrainingSettings, with_program
from dtrain.config.wishes import checked_wishes, different_wish, refuse_new_layout
from dtrain.errors import SpecError
from dtrain.process.access import check_access
from dtrain.process.allocation import keep_freed_memory
from dtrain.process.assignment import TaskAssignment
from dtrain.process.private_variables import own_environment
from dtrain.process.tensorflow.classic_flags import read_classic_flags
from dtrain.process.threads import share_cores
from dtrain.runs.files import RunFiles, write_record
from dtrain.strategies.interface import Strategy, current_strategy
from dtrain.strategies.single import SingleStrategy
from dtrain.variables.partitioning import Partitioner, partitioner_config

CONSTRUCTOR = "ParameterServerStrategy"


class TrainingArguments(PlainSettings, total=False):
    """The fields of a spec's `training` section, as a program may give them; a partitioner, also under
    TensorFlow's name `variable_partitioner`, may be one of `dt.distribute.partitioners`.
    """

    partitioner: dict[str, int] | Partitioner | None
    variable_partitioner: dict[str, int] | Partitioner | None


def get_strategy() -> Strategy:
    """Return the strategy of the innermost ``with strategy.scope():``, else the one that this process's
    cluster asks for.

    The cluster comes from TF_CONFIG in the environment, or from the classic flags ``--ps_hosts --worker_hosts
    --job_name --task_index``; without either, one process trains alone. A ``ps`` task serves here and then
    raises SystemExit(0). Compare `tf.distribute.get_strategy`.

    Raises:
        SpecError: TF_CONFIG or the flags are wrong.
    """
    return current_strategy(lambda: _make({}))


class ParameterServerStrategy(Strategy):
    """``dt.ParameterServerStrategy(updates="sync", backup_workers=1)``: as `get_strategy`, with the program's
    own wishes.

    What it makes is an instance of it, also where one process trains alone. A process has one strategy: it is
    made at the first call, and a later one with the same wishes, or none, returns it. Compare
    `tf.distribute.ParameterServerStrategy`.

    Args:
        training: see `TrainingArguments`. What the spec or the command line says of them, whatever it is,
            wins.

    Raises:
        SpecError: there is no such field, or its value is wrong; the process has a strategy with other
            wishes; the launcher has laid out another cluster.
    """

    def __new__(cls, **training: Unpack[TrainingArguments]) -> Strategy:  # type: ignore[misc]
        """Return the strategy of this process."""
        wishes = checked_wishes(_with_plain_partitioner(dict(training)), CONSTRUCTOR)
        said: Mapping[str, object] = wishes
        strategy = current_strategy(lambda: _make(wishes))
        if (name := different_wish(strategy.wishes, wishes)) is not None:
            before = (
                f"{name}={strategy.wishes[name]!r}"
                if name in strategy.wishes
                else f"{name} left at its default"
            )
            raise SpecError(
                f"{CONSTRUCTOR}: {name}={said[name]!r}, but this process has a strategy already, made "
                f"with {before}; "
                "say it where the first is made (dt.get_strategy() makes one, and so does a model outside "
                "of any scope)"
            )
        return strategy


ParameterServerStrategy.register(SingleStrategy)


def _with_plain_partitioner(training: Mapping[str, Any]) -> dict[str, Any]:
    """Name a partitioner as a spec does; TensorFlow's name for the argument is another one."""
    plain = dict(training)
    if "variable_partitioner" in plain:
        if "partitioner" in plain:
            raise SpecError(f"{CONSTRUCTOR}: give either partitioner or variable_partitioner, not both")
        plain["partitioner"] = plain.pop("variable_partitioner")
    if (config := partitioner_config(plain.get("partitioner"))) is not None:
        plain["partitioner"] = config
    return plain


def _make(wishes: TrainingSettings) -> Strategy:
    """Make the strategy of this process."""
    environment = own_environment()
    assignment = TaskAssignment.from_environment(environment)
    if assignment is None and (found := read_classic_flags(sys.argv[1:])):
        assignment = TaskAssignment.by_hand(*found, environment)
    if assignment is not None:
        check_access(assignment.cluster, assignment.secret, assignment.spec.security, by_command=False)
    who = CONSTRUCTOR if wishes else "dt.get_strategy()"
    spec = with_program(assignment.spec if assignment else RunSpec(), wishes, who)
    if assignment is not None and assignment.launched:
        refuse_new_layout(assignment.spec, wishes, CONSTRUCTOR, sys.argv[0])
    if assignment is None:
        share_cores(spec.training, None)
        strategy: Strategy = SingleStrategy(training=spec.training)
    else:
        assignment = replace(assignment, spec=spec)
        _write_down(assignment, wishes)
        strategy = strategy_of(assignment)
    strategy.wishes = wishes
    return strategy


def _write_down(assignment: TaskAssignment, wishes: TrainingSettings) -> None:
    """Leader of a launch: tell the launcher what the program has wished; a run survives a lost worker by
    that, not by the spec.
    """
    if (
        wishes
        and assignment.launched
        and assignment.run_dir is not None
        and assignment.task == assignment.cluster.leader
    ):
        with contextlib.suppress(OSError):  # a full disk under it
            write_record(RunFiles(assignment.run_dir).spec, assignment.spec)


def strategy_of(assignment: TaskAssignment) -> Strategy:
    """Return the strategy of a task; a ``ps`` task serves instead, and then raises SystemExit(0)."""
    training = assignment.spec.training
    if isinstance(training, SingleSection):
        share_cores(training, assignment)
        return SingleStrategy(assignment)
    keep_freed_memory()
    # Only now grpc is loaded: training alone does not need it.
    if assignment.task.role is Role.PS:
        from dtrain.roles.parameter_server.driver import serve

        serve(assignment)
        raise SystemExit(0)
    share_cores(training, assignment)
    from dtrain.strategies.parameter_server import strategy

    ParameterServerStrategy.register(strategy.ParameterServerStrategy)
    return strategy.ParameterServerStrategy(assignment)
