"""CRC-32C (Castagnoli), the checksum of TFRecord files, masked as they store it."""

from collections.abc import Iterable, Sequence
from typing import Any

import google_crc32c
import numpy as np

MASK_DELTA = 0xA282EAD8

Words = np.ndarray[Any, np.dtype[np.uint32]]


def crc32c(data: bytes) -> int:
    """Return the checksum of `data`."""
    found: int = google_crc32c.value(data)
    return found


def masked_crc32c(data: bytes) -> int:
    """Return the checksum as TFRecord files store it: rotated and offset, so that it can be summed again."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def masked_crc32c_of_each(parts: Sequence[bytes]) -> Words:
    """Return `masked_crc32c` of each of some parts."""
    return _masked_of(parts, len(parts))


def masked_crc32c_of_words(words: np.ndarray[Any, np.dtype[np.uint64]]) -> Words:
    """Return `masked_crc32c` of the 8 bytes, little endian, of each number."""
    octets = np.ascontiguousarray(words, "<u8").view("V8")
    return _masked_of(octets.tolist(), len(words))


def _masked_of(parts: Iterable[bytes], count: int) -> Words:
    crc = np.fromiter(map(google_crc32c.value, parts), np.uint32, count)
    return (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(MASK_DELTA)
