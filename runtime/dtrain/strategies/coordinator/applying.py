"""The place where an optimizer is applied to variables on servers: each worker sends its gradients there."""

from collections.abc import Sequence
from typing import Any, Protocol

from dtrain.errors import NotSupportedError
from dtrain.learning.optimizers.applied import Application, Iterations, Pairs


class Applies(Protocol):
    """The owner of variables on servers."""

    def apply_to(self, optimizer: Any, pairs: Pairs) -> None:
        """Let an optimizer update variables once."""

    def iterations(self, optimizer: Any) -> int:
        """Return how many updates an optimizer has made in all workers."""


class ServerApplication(Application):
    """One optimizer, whose slots lie on the servers; see `Application`."""

    def __init__(self, values: Applies, optimizer: Any) -> None:
        self._values = values
        self._optimizer = optimizer

    def build(self, variables: Sequence[Any]) -> None:
        """See `Application.build`: slots are made at the first update of each variable."""

    def aggregated(self, pairs: Pairs) -> Pairs:
        """See `Application.aggregated`: a closure is the only replica."""
        return pairs

    def apply(self, pairs: Pairs, *, aggregates: bool) -> None:
        """See `Application.apply`."""
        self._values.apply_to(self._optimizer, [pair for pair in pairs if pair[0] is not None])

    def finalize(self, variables: Sequence[Any]) -> None:
        """Refuse: the averages lie on the servers.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(
            "finalize_variable_values: moving averages stay on the parameter servers in a program with a "
            "coordinator; leave use_ema out, or train with fit"
        )


class SharedIterations(Iterations):
    """The updates that an optimizer has made in all workers."""

    def __init__(self, values: Applies, optimizer: Any) -> None:
        self._values = values
        self._optimizer = optimizer

    def __int__(self) -> int:
        """Return the newest count."""
        return self._values.iterations(self._optimizer)

    def assign(self, count: Any) -> "SharedIterations":
        """Refuse: servers count.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(
            "iterations are counted by the parameter servers in a program with a coordinator, and cannot "
            "be set"
        )
