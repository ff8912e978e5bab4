"""A model's variables as those of its strategy: every replica has a copy, and `Model.weights` shows them."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dtrain.strategies.replicas.contexts import Group, ReplicaContext, here
from dtrain.strategies.replicas.variable import Variable, VariableAggregation
from dtrain.types import Array
from dtrain.variables import VariableSpec


class ModelVariables:
    """The variables of one model.

    They share the arrays of `Model.weights`. Those that are not trained, such as moving averages, differ from
    replica to replica; outside of the replicas they are their mean, as TensorFlow's are.

    Attributes:
        group: the replicas.
        by_name: every variable.
    """

    def __init__(self, group: Group, specs: tuple[VariableSpec, ...], values: Mapping[str, Array]) -> None:
        self.group = group
        self.by_name = {
            spec.name: Variable.of(
                as_array(values[spec.name]),
                spec.name,
                group,
                VariableAggregation.NONE if spec.trainable else VariableAggregation.MEAN,
                on_read=not spec.trainable,
                trainable=spec.trainable,
            )
            for spec in specs
        }
        self._draws = [itertools.count() for _ in range(group.replicas)]

    def bind(self, values: Mapping[str, Array]) -> None:
        """Let all copies share these arrays."""
        for name, variable in self.by_name.items():
            variable.set_all(as_array(values[name]))

    def seen_here(self) -> dict[str, Array]:
        """Return the values as the calling line sees them: a replica's own, or what all have in common."""
        index = self.index()
        if index is not None:
            return {name: variable.copy_of(index) for name, variable in self.by_name.items()}
        return {
            name: variable.common() if variable.on_read else variable.copy_of(0)
            for name, variable in self.by_name.items()
        }

    def index(self) -> int | None:
        """Return the number of the calling replica in its process; None outside of all replicas."""
        place = here()
        return place.index if isinstance(place, ReplicaContext) and place.group is self.group else None

    def take_state(self, index: int, updates: Mapping[str, Array]) -> None:
        """Let a replica's copies of variables that are not trained have new values."""
        for name, value in updates.items():
            variable = self.by_name[name]
            if variable.home is not None:
                variable.assign(value)
            else:
                variable.set_copy(index, np.array(value))

    def rng(self, index: int, seed: int) -> Callable[[], np.random.Generator]:
        """Return what makes the random numbers of a replica's next pass, which follow from the seed."""
        words = [seed, self.group.first + index, next(self._draws[index])]
        return lambda: np.random.default_rng(words)


def as_array(value: Any) -> Array:
    """Return a variable's value as an array in memory; a table may not be one yet."""
    return value if isinstance(value, np.ndarray) else np.array(value)
