"""Gradients corrected for their age: DC-ASGD.

A gradient g that was computed at weights w_then and arrives at weights w_now is replaced by a first-order
estimate of the gradient there, with the diagonal of the outer product of g for the Hessian:

    g + strength * g * g * (w_now - w_then)

Source: Zheng et al. 2017, "Asynchronous Stochastic Gradient Descent with Delay Compensation"
(arXiv:1609.08326), the variant with a constant strength (lambda_0 = 0.04 in their experiments on CIFAR-10).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dtrain.types import Array, Blocks

BLOCK = 1 << 15
"""Elements that are corrected at a time: four arrays of them stay in the cache."""


@dataclass
class DelayCompensation:
    """One server's copies of the weights that each replica has: of trained groups, and of table rows read.

    Attributes:
        strength: of the correction, lambda in the paper.
        trainable: which blocks are corrected; the others carry new values, not gradients.
    """

    strength: float
    trainable: Sequence[int]
    _versions: dict[int, int] = field(default_factory=dict, init=False)
    _weights: dict[int, list[Array]] = field(default_factory=dict, init=False)
    _rows: dict[tuple[int, int], tuple[Array, Array]] = field(default_factory=dict, init=False)

    def remember(self, rank: int, version: int, values: Blocks) -> None:
        """Remember the values that a replica is sent."""
        weights = self._weights.setdefault(rank, [np.empty_like(values[index]) for index in self.trainable])
        for copy, index in zip(weights, self.trainable, strict=True):
            np.copyto(copy, values[index])
        self._versions[rank] = version

    def remember_rows(self, rank: int, table: int, ids: Array, values: Array) -> None:
        """Remember the rows of a table, by its number, that a replica is sent."""
        if (rank, table) not in self._rows:  # the kernel gives memory only where it is written
            self._rows[rank, table] = np.empty_like(values), np.zeros(len(values), bool)
        then, known = self._rows[rank, table]
        then[ids] = values[ids]
        known[ids] = True

    def compensate(
        self,
        rank: int,
        base_version: int,
        gradients: Blocks,
        values: Blocks,
        tables: Mapping[int, Array] | None = None,
    ) -> Blocks:
        """Return the gradients as they would be at `values`: new arrays if trained, the others as they came.

        After a gradient of each of `values` come row numbers and flat rows of each of the trained `tables`,
        by number.

        A gradient from other weights than those remembered (its answer was lost on a broken connection, or
        the server was restored since) is returned as it is, and so are rows that were not read.
        """
        if self._versions.get(rank) != base_version:
            return gradients
        corrected = list(gradients)
        for then, index in zip(self._weights[rank], self.trainable, strict=True):
            corrected[index] = self._corrected(gradients[index], values[index], then)
        for position, (table, now) in enumerate((tables or {}).items()):
            index = len(values) + 2 * position
            corrected[index + 1] = self._corrected_rows(
                rank, table, gradients[index], gradients[index + 1], now
            )
        return corrected

    def _corrected_rows(self, rank: int, table: int, ids: Array, rows: Array, now: Array) -> Array:
        if (rank, table) not in self._rows:
            return rows
        then, known = self._rows[rank, table]
        read = known[ids]
        result: Array = rows.reshape(len(ids), *now.shape[1:]).copy()
        listed = [result[read], now[ids[read]], then[ids[read]]]
        result[read] = self._corrected(*(array.reshape(-1) for array in listed)).reshape(listed[0].shape)
        return result.reshape(-1)

    def _corrected(self, gradient: Array, now: Array, then: Array) -> Array:
        result = np.empty_like(gradient)
        for start in range(0, gradient.size, BLOCK):
            part = slice(start, start + BLOCK)
            out = result[part]
            g = gradient[part]
            np.subtract(now[part], then[part], out=out)
            out *= g
            out *= out.dtype.type(self.strength)
            out += 1
            out *= g
        return result
