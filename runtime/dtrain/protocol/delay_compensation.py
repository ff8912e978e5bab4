"""Gradients corrected for their age: DC-ASGD.

A gradient g that was computed at weights w_then and arrives at weights w_now is replaced by a first-order estimate of what it
would be there, with the outer product of g as a stand-in for the Hessian, and of that the diagonal:

    g + strength * g * g * (w_now - w_then)

Source: Zheng et al. 2017, "Asynchronous Stochastic Gradient Descent with Delay Compensation" (arXiv:1609.08326), the variant
with a constant strength (lambda_0 = 0.04 in their experiments on CIFAR-10).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Blocks = Sequence[Array]

BLOCK = 1 << 15
"""Elements that are corrected at a time: four arrays of them stay in the cache."""


@dataclass
class DelayCompensation:
    """One server's memory of the weights that each replica computes with: T copies of what is trained.

    Attributes:
        strength: of the correction, lambda in the paper.
        trainable: which blocks are corrected; the others carry new values, not gradients.
    """

    strength: float
    trainable: Sequence[int]
    _versions: dict[int, int] = field(default_factory=dict, init=False)
    _weights: dict[int, list[Array]] = field(default_factory=dict, init=False)

    def remember(self, rank: int, version: int, values: Blocks) -> None:
        """A replica is sent these values."""
        weights = self._weights.setdefault(rank, [np.empty_like(values[index]) for index in self.trainable])
        for copy, index in zip(weights, self.trainable, strict=True):
            np.copyto(copy, values[index])
        self._versions[rank] = version

    def compensate(self, rank: int, base_version: int, gradients: Blocks, values: Blocks) -> Blocks:
        """The gradients as they would be at `values`: new arrays for what is trained, the rest as it came.

        A gradient from other weights than those remembered (its answer was lost on a broken connection, or the server was
        restored since) is returned as it is.
        """
        if self._versions.get(rank) != base_version:
            return gradients
        corrected = list(gradients)
        for then, index in zip(self._weights[rank], self.trainable, strict=True):
            corrected[index] = self._corrected(gradients[index], values[index], then)
        return corrected

    def _corrected(self, gradient: Array, now: Array, then: Array) -> Array:
        result = np.empty_like(gradient)
        for start in range(0, gradient.size, BLOCK):
            part = slice(start, start + BLOCK)
            out, g = result[part], gradient[part]
            np.subtract(now[part], then[part], out=out)
            out *= g
            out *= out.dtype.type(self.strength)
            out += 1
            out *= g
        return result
