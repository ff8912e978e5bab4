"""Which strategy this process trains with: from its environment, the classic flags, or alone."""

import os
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dtrain.allocation import keep_freed_memory
from dtrain.assignment import TaskAssignment
from dtrain.cluster import Role
from dtrain.cluster.classic_flags import read_classic_flags
from dtrain.config import TrainingSection
from dtrain.errors import SpecError
from dtrain.strategies.single import SingleStrategy
from dtrain.strategies.threads import share_cores
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


def parameter_server_strategy(**training: Any) -> Strategy:
    """``dt.ParameterServerStrategy(updates="sync", backup_workers=1)``: as `get_strategy`, with the program's own wishes.

    Args:
        training: fields of the spec's `training` section. What the spec or the command line says otherwise than by default wins.

    Raises:
        SpecError: there is no such field, or its value is wrong.
    """
    return current_strategy(lambda: _make(training))


def _make(wishes: Mapping[str, Any] | None = None) -> Strategy:
    assignment = TaskAssignment.from_environment(os.environ)
    if assignment is None and (found := read_classic_flags(sys.argv[1:])):
        assignment = TaskAssignment.by_hand(*found)
    if wishes:
        training = _with_wishes(assignment.spec.training if assignment else TrainingSection(), wishes)
        assignment = assignment and replace(assignment, spec=replace(assignment.spec, training=training).resolved())
    return SingleStrategy() if assignment is None else strategy_of(assignment)


def _with_wishes(section: TrainingSection, wishes: Mapping[str, Any]) -> TrainingSection:
    defaults = {field.name: field.default for field in fields(TrainingSection)}
    for name in wishes:
        if name not in defaults:
            near = get_close_matches(name, defaults, 1)
            raise SpecError(
                f"ParameterServerStrategy: there is no argument {name!r}" + (f"; do you mean {near[0]}?" if near else "")
            )
    for name, kind in get_type_hints(TrainingSection).items():
        if name in wishes and not _fits(wishes[name], kind):
            expected = " or ".join(map(str, get_args(kind))) if get_origin(kind) is Literal else getattr(kind, "__name__", kind)
            raise SpecError(f"ParameterServerStrategy: {name}: expected {expected}, found {wishes[name]!r}")
    free = {name: value for name, value in wishes.items() if getattr(section, name) == defaults[name]}
    merged = replace(section, **free)
    for path, problem in merged.problems():
        raise SpecError(f"ParameterServerStrategy: {'.'.join(map(str, path))}: {problem}")
    return merged


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value has the type of a field. (A spec file is checked by pydantic, which is too slow to load in every task.)"""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(kind))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, get_origin(kind) or kind) and (kind is bool or not isinstance(value, bool))


def strategy_of(assignment: TaskAssignment) -> Strategy:
    """The strategy of a task; a ``ps`` task serves instead, and then raises SystemExit(0)."""
    if assignment.spec.training.strategy == "single":
        return SingleStrategy(assignment)
    keep_freed_memory()
    # Only now grpc is loaded: training alone does not need it.
    if assignment.task.role is Role.PS:
        from dtrain.roles.parameter_server.driver import serve

        serve(assignment)
        raise SystemExit(0)
    share_cores(assignment)
    from dtrain.strategies.parameter_server import ParameterServerStrategy

    return ParameterServerStrategy(assignment)
