"""The costs of a part of a model, as they were measured: a layer, or layers that follow each other."""

from collections.abc import Sequence
from typing import NamedTuple


class ModelCost(NamedTuple):
    """The costs of a part of a model for one batch, or microbatch.

    Attributes:
        layers: their names, in the order in which they run.
        forward_s, backward_s: seconds.
        parameter_bytes: of all variables; `trained_bytes`: of those that have gradients.
        kept_bytes: from the forward to the backward: outputs, and what backward reads.
        leaving_bytes: of the array that crosses a cut behind it; None: the model cannot be cut there.
    """

    layers: tuple[str, ...]
    forward_s: float
    backward_s: float
    parameter_bytes: int
    trained_bytes: int
    kept_bytes: int
    leaving_bytes: int | None


def joined(costs: Sequence[ModelCost]) -> ModelCost:
    """Return the costs of parts that follow each other, as one part."""
    layers, *sums, _ = zip(*costs, strict=True)
    return ModelCost._make([sum(layers, ()), *map(sum, sums), costs[-1].leaving_bytes])
