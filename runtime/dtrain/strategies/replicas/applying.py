"""The place where an optimizer is applied to variables with copies in replicas: slots, sums, updates.

While copies of a variable share an array, so do their slots, and an update is made once for all replicas.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dtrain.errors import ContextError, InputError
from dtrain.exchange.calls import ReplicaCall
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.optimizers.applied import Gradient, Pairs
from dtrain.learning.optimizers.optimizer import Optimizer, Slots
from dtrain.strategies.replicas import reduction
from dtrain.strategies.replicas.contexts import CrossReplica, ReplicaContext, here
from dtrain.strategies.replicas.reduction import ReduceOp
from dtrain.types import Array


class ReplicaApplication:
    """One optimizer in loops of one's own; `slots` holds, by variable, those of each replica here."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._built = False
        self.slots: dict[Any, list[Slots]] = {}

    @classmethod
    def of(cls, optimizer: Optimizer) -> "ReplicaApplication":
        """Return the application of an optimizer, the same at every call."""
        made: ReplicaApplication = optimizer.__dict__.setdefault("_applied_here", cls(optimizer))
        return made

    @staticmethod
    def known(optimizer: Optimizer) -> "ReplicaApplication | None":
        """Return the application of an optimizer; None: it was not applied in a loop of one's own."""
        made: ReplicaApplication | None = optimizer.__dict__.get("_applied_here")
        return made

    def build(self, variables: Sequence[Any]) -> None:
        self._built = True
        for variable in variables:
            self._add(variable)

    def aggregated(self, pairs: Pairs) -> Pairs:
        place = here()
        if not isinstance(place, ReplicaContext):
            return pairs
        gradients, call = _handed_in("aggregate_gradients", pairs)
        sums = iter(place.meet(call, gradients, partial(place.group.summed, call, ReduceOp.SUM)))
        return [(None if gradient is None else next(sums), variable) for gradient, variable in pairs]

    def apply(self, pairs: Pairs, *, aggregates: bool) -> None:
        for _, variable in pairs:
            variable.group.check("apply_gradients")
        place = here()
        if isinstance(place, CrossReplica) and place.strategy.num_replicas_in_sync > 1:
            raise ContextError(
                "apply_gradients: expected to be in a replica, found the scope of a strategy with several; "
                "call it within a function of strategy.run"
            )
        gradients, call = _handed_in("apply_gradients", pairs)
        variables = [variable for gradient, variable in pairs if gradient is not None]
        if not isinstance(place, ReplicaContext):
            self._update_all(variables, gradients)
            return

        def decide(of_replicas: Sequence[Any]) -> None:
            if aggregates:
                self._update_all(variables, place.group.summed(call, ReduceOp.SUM, of_replicas))
            else:
                self._update_each(variables, of_replicas)

        place.meet(call, gradients, decide)

    def known_slots(self, variable: Any) -> Slots | None:
        """Return a variable's slots, from loops of one's own or else from `fit`; None: it has none."""
        own = self.slots.get(variable)
        return own[0] if own is not None else self._resumed(variable, goes_on=False)

    def finalize(self, variables: Sequence[Any]) -> None:
        for variable in variables:
            for value, slots in self._copies(variable):
                self._optimizer.finalize(value, slots)

    def forget(self, variables: Sequence[Any]) -> None:
        """Drop the slots of variables, and use those of `fit` when they are next updated."""
        self._built = False
        for variable in variables:
            self.slots.pop(variable, None)

    def restore(self, slots: Mapping[Any, Slots], steps: int) -> None:
        """Go on from slots of variables, after so many updates."""
        self._optimizer.iterations.assign(steps)
        for variable, own in slots.items():
            self.slots[variable] = [own] * variable.group.replicas

    # Inner parts

    def _add(self, variable: Any) -> list[Slots]:
        """Return the slots of a variable; all replicas share new ones."""
        known = self.slots.get(variable)
        if known is None:
            made = self._resumed(variable) or self._optimizer.initial_slots(variable.copy_of(0))
            known = self.slots[variable] = [made] * variable.group.replicas
        return known

    def _resumed(self, variable: Any, *, goes_on: bool = True) -> Slots | None:
        """Return the slots of a variable where `fit`, or a file, has left the optimizer.

        With `goes_on` the loop counts its updates from there; a `fit` that is under way counts its own.
        """
        state = None if variable.find_state is None else variable.find_state(self._optimizer)
        if state is None:
            return None
        if goes_on:
            self._optimizer.iterations.assign(state.step)
        return {name: np.array(of_variable[variable.name]) for name, of_variable in state.slots.items()}

    def _know(self, variables: Sequence[Any]) -> None:
        """Make slots at the first update; an optimizer of Keras's newer kind then accepts no others."""
        unknown = [variable for variable in variables if variable not in self.slots]
        if unknown and self._built and not self._optimizer.is_legacy_optimizer:
            raise InputError(
                f"{self._optimizer.name}: does not know variable {unknown[0].name}; call build with all "
                "variables before the first update"
            )
        self.build(variables)

    def _update_all(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        self._know(variables)
        clipped = self._clipped(gradients)
        step = int(self._optimizer.iterations)
        for variable, gradient in zip(variables, clipped, strict=True):
            for value, slots in self._copies(variable):
                self._update(variable, value, gradient, slots, step)
        self._count(variables)

    def _update_each(self, variables: Sequence[Any], of_replicas: Sequence[Sequence[Any]]) -> None:
        self._know(variables)
        step = int(self._optimizer.iterations)
        for variable in variables:
            self._part(variable)
        for index, gradients in enumerate(of_replicas):
            for variable, gradient in zip(variables, self._clipped(gradients), strict=True):
                slots = self.slots[variable][index]
                self._update(variable, variable.copy_of(index), gradient, slots, step)
        self._count(variables)

    def _count(self, variables: Sequence[Any]) -> None:
        self._optimizer.iterations.assign_add(1)
        variables[0].group.updates = int(self._optimizer.iterations)

    def _clipped(self, gradients: Sequence[Any]) -> list[Any]:
        found = self._optimizer.clip({str(index): each for index, each in enumerate(gradients)})
        return [found[str(index)] for index in range(len(gradients))]

    def _update(self, variable: Any, value: Array, gradient: Any, slots: Slots, step: int) -> None:
        self._update_freely(variable, value, gradient, slots, step)
        if (constraint := getattr(variable, "constraint", None)) is not None:
            value[...] = constraint(value)

    def _update_freely(self, variable: Any, value: Array, gradient: Any, slots: Slots, step: int) -> None:
        if isinstance(gradient, SparseRows):
            self._optimizer.update_rows(value, gradient.ids, gradient.rows, slots, step)
            return
        try:
            whole = np.broadcast_to(gradient, value.shape)
        except ValueError:
            raise InputError(
                f"apply_gradients: {variable.name}: expected a gradient of shape {value.shape}, found "
                f"{gradient.shape}"
            ) from None
        self._optimizer.update(value, np.ascontiguousarray(whole), slots, step)

    def _copies(self, variable: Any) -> list[tuple[Array, Slots]]:
        """Return each copy that is an array of its own, with its slots."""
        of_replicas = self._add(variable)
        found: dict[tuple[int, int], tuple[Array, Slots]] = {}
        seen: set[int] = set()
        for index, slots in enumerate(of_replicas):
            value = variable.copy_of(index)
            key = id(value), id(slots)
            if key not in found and id(value) in seen:
                value = value.copy()
                variable.set_copy(index, value)
                key = id(value), id(slots)
            seen.add(id(value))
            found[key] = value, slots
        return list(found.values())

    def _part(self, variable: Any) -> None:
        """Give every replica an array and slots of its own."""
        slots = self.slots[variable]
        for index in range(1, variable.group.replicas):
            if any(slots[index] is slots[other] for other in range(index)):
                slots[index] = {name: array.copy() for name, array in slots[index].items()}
            if any(variable.copy_of(index) is variable.copy_of(other) for other in range(index)):
                variable.set_copy(index, variable.copy_of(index).copy())


def _handed_in(kind: str, pairs: Pairs) -> tuple[list[Any], ReplicaCall]:
    """Return the gradients that are not None, and the call; raise an `InputError` for another dtype."""
    gradients = []
    said = []
    for gradient, variable in pairs:
        if gradient is None:
            said.append(f"{variable.name}: None")
            continue
        leaf = _as_gradient(gradient, variable)
        gradients.append(leaf)
        said.append(f"{variable.name}: {reduction.described(leaf)}")
    return gradients, ReplicaCall.here(kind, ", ".join(said))


def _as_gradient(gradient: Gradient, variable: Any) -> reduction.Leaf:
    leaf = reduction.as_summand(gradient, f"apply_gradients: {variable.name}")
    dtype = leaf.rows.dtype if isinstance(leaf, SparseRows) else leaf.dtype
    if dtype != variable.dtype:
        raise InputError(
            f"apply_gradients: {variable.name}: expected a gradient of dtype {variable.dtype}, found {dtype}"
        )
    return leaf
