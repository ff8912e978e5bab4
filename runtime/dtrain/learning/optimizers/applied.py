"""`Optimizer.apply_gradients` and its kin, for loops of one's own; names and arguments are Keras's.

An optimizer holds no state of variables. The variables say where it is applied: their strategy keeps the
slots, adds up the gradients of all replicas, and writes the new values.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.functions.tensors import Source
from dtrain.types import Array

Gradient: TypeAlias = Array | SparseRows | None
"""The gradient of a variable; None: it has none in this step, and stays as it is."""


@runtime_checkable
class Application(Protocol):
    """The slots of one optimizer, where they lie."""

    def build(self, variables: Sequence[Any]) -> None:
        """Make the slots of these variables, and let the optimizer know no others."""

    def aggregated(self, pairs: "Pairs") -> "Pairs": ...

    def apply(self, pairs: "Pairs", *, aggregates: bool) -> None: ...

    def finalize(self, variables: Sequence[Any]) -> None: ...


Pairs: TypeAlias = list[tuple[Gradient, Any]]
"""Gradients with their variables."""


class Iterations(Source):
    """The number of updates that an optimizer has made, in `fit` or in loops; `tf.Variable`'s methods."""

    trainable = False

    def __init__(self) -> None:
        self._count = 0
        self._now: Callable[[], int] | None = None

    def assign(self, count: Any) -> Self:
        self._count = int(count)
        self._now = None
        return self

    def follow(self, now: Callable[[], int]) -> None:
        """Read the count from a function until the next `assign`."""
        self._now = now

    def read(self) -> Any:
        """Return the number, which also stands in arithmetic: ``iterations % 100 == 0``."""
        return np.int64(int(self))

    numpy = value = read

    def __int__(self) -> int:
        return self._count if self._now is None else self._now()

    def __index__(self) -> int:
        return int(self)

    def __bool__(self) -> bool:
        return int(self) != 0

    def __eq__(self, other: object) -> bool:
        return int(self) == other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<iterations {int(self)}>"


class Applied:
    """The part of every optimizer that loops of one's own call."""

    @property
    def iterations(self) -> Iterations:
        """The updates made by `fit` and by `apply_gradients`, all replicas' together as one."""
        made: Iterations = self.__dict__.setdefault("_iterations", Iterations())
        return made

    @iterations.setter
    def iterations(self, count: Any) -> None:
        """Set the number of updates."""
        self.iterations.assign(count)

    def build(self, var_list: Iterable[Any]) -> None:
        """Make the slots of all variables that are ever to be updated; the first update does it for its own.

        Args:
            var_list: variables of one strategy.
        """
        variables = list(var_list)
        if variables:
            self._application(variables).build(variables)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Add up the gradients of all replicas, clip the sums, and update the variables once for all.

        Args:
            grads_and_vars: pairs of a gradient and its variable; every replica gives the same variables in
                the same order. A gradient may be an array, `SparseRows`, or None.
            name: has no effect.
            skip_gradients_aggregation: each replica updates its own copies with its own gradients, which
                then differ, unless the gradients are equal.
            experimental_aggregate_gradients: False is the older name of `skip_gradients_aggregation`.

        Returns: How many updates have been made.

        Raises:
            InputError: every gradient is None, one does not fit its variable, or a variable is unknown.
            ContextError: it is called outside of the replicas of a strategy that has several.
            CallsDifferError: the replicas make different calls; it is raised in all of them.
        """
        pairs = list(grads_and_vars)
        if pairs:
            aggregates = experimental_aggregate_gradients and not skip_gradients_aggregation
            self._checked(pairs).apply(pairs, aggregates=aggregates)
        return self.iterations.numpy()

    def aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Pairs:
        """Return the sums of the gradients of all replicas, with their variables; nothing is updated."""
        pairs = list(grads_and_vars)
        return self._checked(pairs).aggregated(pairs) if pairs else pairs

    def minimize(self, loss: Callable[[], tuple[Any, Sequence[Any]]], var_list: Sequence[Any]) -> Any:
        """Update variables by the gradients that a function returns beside its loss.

        Args:
            loss: ``() -> (loss, gradients)``: there is no automatic differentiation.
            var_list: the variables of the gradients, in their order.

        Returns: How many updates have been made.
        """
        _, gradients = loss()
        return self.apply_gradients(zip(gradients, var_list, strict=True))

    def finalize_variable_values(self, var_list: Iterable[Any]) -> None:
        """Give variables their moving averages' values, where they are kept (`use_ema`)."""
        variables = list(var_list)
        if variables:
            self._application(variables).finalize(variables)

    def _checked(self, pairs: Pairs) -> Application:
        if odd := [each for each in pairs if not isinstance(each, tuple | list) or len(each) != 2]:
            raise InputError(
                f"apply_gradients: expected pairs, as zip(gradients, variables) makes them, found {odd[0]!r}"
            )
        variables = [variable for _, variable in pairs]
        if all(gradient is None for gradient, _ in pairs):
            raise InputError(
                f"apply_gradients: expected a gradient, found None for {', '.join(v.name for v in variables)}"
            )
        return self._application(variables)

    def _application(self, variables: Sequence[Any]) -> Application:
        find = getattr(variables[0], "application_of", None)
        if find is None:
            raise InputError(
                f"apply_gradients: expected variables (dt.Variable, model.trainable_variables), found "
                f"{variables[0]!r}"
            )
        found: Application = find(self)
        return found
