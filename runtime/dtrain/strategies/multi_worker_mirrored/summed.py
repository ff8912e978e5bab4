"""One sum or mean over the parts of a step: what a part gives to it, and what it gets back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from dtrain.errors import InputError
from dtrain.roles.collective.call_log import GivenCall
from dtrain.strategies.replicas import reduction
from dtrain.strategies.replicas.calls import Call, call_site, contiguous, said_of
from dtrain.strategies.replicas.reduction import Nest, ReduceOp
from dtrain.strategies.replicas.values import form, leaves, mapped
from dtrain.types import Array


@dataclass(frozen=True)
class Summed:
    """A call of `all_reduce` within a step.

    Attributes:
        op: the sum or the mean.
        value: as the program has given it.
        call: the same for the others.
    """

    op: ReduceOp
    value: Nest
    call: GivenCall

    @classmethod
    def of(cls, op: ReduceOp, value: Nest) -> Self:
        """Return the call of the program's line that is under way.

        Raises:
            InputError: the value holds something that is no array of numbers.
        """
        given = [_summand(leaf) for leaf in leaves(value)]
        what = f"{op.name} of {form(value)} {', '.join(map(reduction.described, given))}"
        said = said_of(Call("all_reduce", what, call_site()))
        return cls(op, value, GivenCall(said, contiguous(given)))

    def result(self, given: Sequence[Sequence[Array]]) -> Nest:
        """Return the result of what each part has given, added up in the order of the parts."""
        found = iter([reduction.reduced(self.op, each) for each in zip(*given, strict=True)])
        result: Nest = mapped(lambda leaf: next(found), self.value)
        return result


def _summand(leaf: object) -> Array:
    summand = reduction.as_summand(leaf, "all_reduce")
    if not isinstance(summand, np.ndarray):
        raise InputError("all_reduce: expected arrays within a step, found SparseRows")
    return summand
