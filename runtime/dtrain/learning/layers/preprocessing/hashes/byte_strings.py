"""Many byte strings in one buffer, of which words are read at many places at once."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from dtrain.types import Array

_WORD_BYTES = 8


class ByteStrings:
    """Byte strings one after another.

    Attributes:
        starts: place of each in the buffer.
        lengths: of each, in bytes.
    """

    def __init__(self, buffer: bytes, starts: Array, lengths: Array) -> None:
        padded = buffer + bytes(_WORD_BYTES)
        self.starts = starts
        self.lengths = lengths
        self.bytes = np.frombuffer(padded, np.uint8)
        self._words: Array = np.ndarray(len(padded) - 7, "<u8", padded, strides=(1,))
        self._halves: Array = np.ndarray(len(padded) - 3, "<u4", padded, strides=(1,))

    @classmethod
    def of(cls, values: Array) -> Self:
        """Return the texts (in UTF-8) and bytes of a flat array of objects, or integers in decimal digits."""
        if values.dtype.kind in "iu":
            digits = values.astype(np.bytes_)
            starts = np.arange(len(digits)) * digits.dtype.itemsize
            return cls(digits.tobytes(), starts, np.char.str_len(digits).astype(np.int64))
        return cls.of_list([_bytes_of(each) for each in values.tolist()])

    @classmethod
    def of_list(cls, values: Sequence[bytes]) -> Self:
        """Return the byte strings of a list."""
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        return cls(b"".join(values), np.cumsum(lengths) - lengths, lengths)

    def __len__(self) -> int:
        return len(self.starts)

    def word(self, places: Array) -> Array:
        """Return the 64-bit numbers, lowest byte first, that begin at these places of the buffer."""
        return self._words[places]

    def half(self, places: Array) -> Array:
        """Return the 32-bit numbers that begin at these places, as 64-bit ones."""
        return self._halves[places].astype(np.uint64)

    def byte(self, places: Array) -> Array:
        """Return the bytes at these places, as 64-bit numbers."""
        return self.bytes[places].astype(np.uint64)


def _bytes_of(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
