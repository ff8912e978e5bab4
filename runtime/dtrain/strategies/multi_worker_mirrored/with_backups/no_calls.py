"""The refusal of calls within a step, such as `all_reduce`, where a step does not wait for every replica."""

from collections.abc import Callable
from typing import NoReturn

from dtrain.errors import ProgramError
from dtrain.strategies.interface import Compute
from dtrain.strategies.replicas.reduction import Nest, ReduceOp


class NoStepCalls:
    """See `StepCalls`.

    Attributes:
        compute: of no use.
    """

    compute: Compute | None = None

    def all_reduce(self, place: int, places: Callable[[int], object], op: ReduceOp, value: Nest) -> NoReturn:
        """Refuse it.

        Raises:
            ProgramError: always.
        """
        raise ProgramError(
            "all_reduce within a step: not all parts of a step are computed at the same time; expected no "
            "backup workers (training.backup_workers: 0)"
        )

    def finish(self, places: Callable[[int], object]) -> None:
        """Find nothing to complete."""

    def close(self) -> None:
        """Find nothing to give up."""
