"""Ranges of bytes that are read together, and a file as the store that is asked for them describes it.

They are neighbours, or lie near each other. A store may also refuse.
"""

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

Ranges = list[tuple[int, int]]
"""Where each of several ranges begins and ends."""


def together(ranges: Sequence[tuple[int, int]], gap_bytes: int, bytes_max: int) -> Ranges:
    """Return the ranges, ascending, that cover some others, which may overlap and come in any order.

    One range of at most `bytes_max` covers two with at most `gap_bytes` between them.
    """
    covering: Ranges = []
    for begin, end in sorted(ranges):
        if covering:
            first, last = covering[-1]
            if begin <= last + gap_bytes and max(end, last) - first <= bytes_max:
                covering[-1] = first, max(end, last)
                continue
        covering.append((begin, end))
    return covering


def parts(ranges: Sequence[tuple[int, int]], covering: Ranges, data: Sequence[bytes]) -> list[bytes]:
    """Cut each range out of what `together` says to read: the last of these that begins before it has it."""
    begins = [begin for begin, _ in covering]
    found = []
    for begin, end in ranges:
        number = bisect_right(begins, begin) - 1
        found.append(data[number][begin - begins[number] : end - begins[number]])
    return found


def pieces(covering: Ranges, bytes_max: int) -> Ranges:
    return [
        (start, min(start + bytes_max, end))
        for begin, end in covering
        for start in (range(begin, end, bytes_max) if end > begin else (begin,))
    ]


class RefusedError(OSError):
    """A store says that it will not give a file; to ask again is of no use."""


class Found(msgspec.Struct, frozen=True):
    """A file as its store describes it; `version` changes with the file, and may be empty."""

    nbytes: int
    version: str
