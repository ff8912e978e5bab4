"""The terms of a mean: gradients of parts, added piece by piece with the bits of `parameters.means.mean`."""

from collections.abc import Mapping, Sequence

import numpy as np

from dtrain.collectives.between_hosts.segments import Span
from dtrain.types import Array


class Terms:
    """The gradients that one host has of one flat block of variables."""

    def __init__(
        self, blocks: Mapping[int, Array], count: int, weights: Mapping[int, int] | None = None
    ) -> None:
        """Remember them; they are read only while a sum is made.

        Args:
            blocks: by part, flat arrays of floats of one length and dtype, which belong to the caller.
            count: of the parts of the step; those without examples have no gradient and count as zero.
            weights: of all parts of the step, the numbers of examples, where the mean is weighted by them
                and they are not all the same; None: each part counts the same.
        """
        self._blocks = blocks
        self._weights = weights
        self._divisor = count if weights is None else sum(weights.values())

    def add(self, total: Array, span: Span, parts: Sequence[int], *, begin: bool) -> None:
        """Add gradients to a sum, one after another, or begin with the first of them.

        Args:
            total: the sum of the elements of `span`, which is changed.
            span: elements of the block.
            parts: whose gradients are added, in this order.
            begin: whether `total` holds nothing yet.
        """
        terms = [self._term(part, span, total) for part in parts]
        if begin and len(terms) > 1:
            np.add(terms[0], terms[1], out=total)
        elif begin:
            total[...] = terms[0] if terms else 0
        for term in terms[min(2, len(terms)) if begin else 0 :]:
            np.add(total, term, out=total)

    def _term(self, part: int, span: Span, total: Array) -> Array:
        term = self._blocks[part][span.start : span.stop]
        return term if self._weights is None else term * total.dtype.type(self._weights[part])

    def only(self, span: Span, parts: Sequence[int]) -> Array | None:
        """Return the sum of the gradients of `parts` where it lies, if it lies anywhere."""
        if len(parts) != 1 or self._weights is not None:
            return None
        return self._blocks[parts[0]][span.start : span.stop]

    def divide(self, total: Array) -> None:
        """Make a sum over all parts their mean."""
        if self._divisor != 1:
            np.divide(total, total.dtype.type(self._divisor), out=total)
