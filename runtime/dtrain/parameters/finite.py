"""The look for NaN and infinity in gradients."""

import math
from collections.abc import Iterable

import numpy as np

from dtrain.types import Array


def any_non_finite(blocks: Iterable[Array]) -> bool:
    """Return whether a floating-point block holds NaN or infinity; `vdot` alone does not warn on overflow."""
    return any(
        block.dtype.kind == "f" and not math.isfinite(np.vdot(block, block)) and not np.isfinite(block).all()
        for block in blocks
    )
