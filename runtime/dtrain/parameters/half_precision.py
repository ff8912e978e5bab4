"""float32 in 16 bits: half the bytes.

bf16    the upper 16 bits, rounded to nearest: the same range, 8 bits of precision
fp16    IEEE half precision: 11 bits of precision, from 6e-8 to 65504; numpy converts it in software, 0.2 GB/s
"""

from typing import Any

import numpy as np

from dtrain.config.choices import NumberFormat
from dtrain.types import Array


class HalfPrecision:
    """One of the two forms.

    Attributes:
        dtype: in which the numbers travel.
        scales: whether the range is so narrow that gradients are scaled into it; see `scale_for`.
    """

    def __init__(self, kind: NumberFormat) -> None:
        import ml_dtypes  # imported only where numbers are compressed

        self._dtype: Any = np.dtype(ml_dtypes.bfloat16 if kind == NumberFormat.BF16 else np.float16)
        self.dtype = "uint16" if kind == NumberFormat.BF16 else "float16"
        self.scales = kind == NumberFormat.FP16

    def scale_for(self, largest: float) -> float:
        """Return the power of two that brings a magnitude to 16384 to 32768; 1.0 if this form needs none."""
        exponent = int(np.frexp(largest)[1]) if self.scales and 0 < largest < np.inf else 15
        return 2.0 ** min(15 - exponent, 126)

    def narrow(self, block: Array, out: Array | None = None, scale: float = 1.0) -> Array:
        """Convert float32 to `dtype`, multiplied by `scale`; numbers beyond the range become infinity."""
        out = np.empty(block.size, self.dtype) if out is None else out
        with np.errstate(over="ignore", invalid="ignore"):
            out.view(self._dtype)[...] = block if scale == 1 else block * np.float32(scale)
        return out

    def widen(self, block: Array, out: Array | None = None, scale: float = 1.0) -> Array:
        """Convert back to float32, divided by `scale`."""
        out = np.empty(block.size, np.float32) if out is None else out
        out[...] = block.view(self._dtype)
        if scale != 1:
            out /= np.float32(scale)
        return out
