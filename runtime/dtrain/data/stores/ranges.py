"""Ranges of bytes that are read together, and a file as the store that is asked for them describes it.

They are neighbours, or lie near each other. A store may also refuse.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Ranges = list[tuple[int, int]]
"""Where each of several ranges begins and ends."""


def together(ranges: Sequence[tuple[int, int]], gap_bytes: int, bytes_max: int) -> Ranges:
    """Return the ranges, ascending, that cover some others.

    Args:
        ranges: that are wanted, in any order; they may overlap.
        gap_bytes: between two that are read at once; these bytes are read for nothing.
        bytes_max: of a range that covers several.
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
    """Return the bytes of each range, from those of the ranges that cover them."""
    order = sorted(range(len(ranges)), key=ranges.__getitem__)
    found = [b""] * len(ranges)
    place = 0
    for number in order:
        begin, end = ranges[number]
        while not covering[place][0] <= begin <= end <= covering[place][1]:
            place += 1
        first = covering[place][0]
        found[number] = data[place][begin - first : end - first]
    return found


def pieces(covering: Ranges, bytes_max: int) -> Ranges:
    """Return ranges cut into such of at most so many bytes."""
    return [
        (start, min(start + bytes_max, end))
        for begin, end in covering
        for start in (range(begin, end, bytes_max) if end > begin else (begin,))
    ]


class RefusedError(OSError):
    """A store says that it will not give a file; to ask again is of no use."""


@dataclass(frozen=True)
class Found:
    """A file as its store describes it.

    Attributes:
        nbytes: its size.
        version: text that changes with the file: an etag, or when it was changed last; may be empty.
    """

    nbytes: int
    version: str
