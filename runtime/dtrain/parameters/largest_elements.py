"""The largest elements of a replica's gradients, and a memory of the others: top-k with error feedback.

Elements that are not sent are added to the next gradient (Seide et al. 2014; Stich et al. 2018,
arXiv:1809.07599), so that everything arrives in the end: applied + kept = the sum of the gradients that
count. A gradient that is not applied (too late, refused, of a term that is over) changes nothing that is
kept, as it changes no variable. A replica that is started again keeps nothing, and neither does one whose
servers went back to a checkpoint.
"""

import numpy as np

from dtrain.types import Array


class LargestElements:
    """The largest elements of gradients of one size, float32: this `fraction`, and at least one."""

    def __init__(self, fraction: float, size: int) -> None:
        self.fraction = fraction
        self._kept = np.zeros(size, np.float32)
        self._rest = np.zeros(size, np.float32)

    def pick(self, gradient: Array) -> tuple[Array, Array]:
        """Return (places, ascending; their values) of the largest of the gradient plus what is kept.

        Zeros are never picked. All elements as large as the smallest one picked are picked too, so that the
        choice does not depend on places.
        """
        np.add(self._kept, gradient, out=self._rest)
        magnitudes = np.abs(self._rest)
        if not magnitudes.size:
            return np.empty(0, np.int64), magnitudes
        rank = magnitudes.size - max(1, round(self.fraction * magnitudes.size))
        least = np.partition(magnitudes, rank)[rank]
        places = np.flatnonzero(magnitudes >= max(least, np.finfo(np.float32).smallest_subnormal))
        values = self._rest[places]
        self._rest[places] = 0
        return places, values

    def applied(self, part: slice) -> None:
        """Keep the rest of this part of the last pick, which has been applied."""
        self._kept[part] = self._rest[part]

    def forget(self) -> None:
        """Keep nothing."""
        self._kept.fill(0)
