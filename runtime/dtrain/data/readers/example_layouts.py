"""The layout of serialized tf.train.Examples, by which many of one form are parsed at once.

Examples that one program writes have the same features in the same order; those of the same length differ in
nothing but the bytes of their values. A layout says where these stand, so that a column of a batch is a few
operations on the bytes of all its examples together. What does not have the usual form has no layout, and is
parsed field by field.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from dtrain.types import Array

BYTES_LIST, FLOAT_LIST, INT64_LIST = 0x0A, 0x12, 0x1A
FIRST, SECOND = 0x0A, 0x12
"""The tags of the fields 1 and 2, with a length before their content."""
CONTINUED = 0x80
TOGETHER_MIN = 3
EXAMPLE_BYTES_MAX = 16 << 10
"""Bytes of an Example above which its values take longer than its form."""
LAYOUTS_PER_LENGTH = 4
LENGTHS_KEPT = 64

Octets = np.ndarray[Any, np.dtype[np.uint8]]


class FeatureSpan(msgspec.Struct, frozen=True):
    """Where each of the bytes values of a feature begins and ends; of numbers, where all of them do."""

    kind: int
    pieces: tuple[tuple[int, int], ...]


class Layout(msgspec.Struct, frozen=True):
    """The form of Examples of one length: an Example of it, and the bits that all of them share (`fixed`)."""

    spans: dict[str, FeatureSpan]
    template: Octets
    fixed: Octets

    def fits(self, examples: Octets) -> np.ndarray[Any, np.dtype[np.bool_]]:
        differs = ((examples ^ self.template) & self.fixed).any(axis=1)
        fit: np.ndarray[Any, np.dtype[np.bool_]] = np.logical_not(differs)
        return fit

    def floats(self, examples: Octets, span: FeatureSpan) -> Array:
        begin, end = span.pieces[0]
        return np.ascontiguousarray(examples[:, begin:end]).view("<f4").astype(np.float32, copy=False)

    def integers(self, examples: Octets, span: FeatureSpan) -> Array:
        begin, end = span.pieces[0]
        lasts = np.flatnonzero(self.template[begin:end] < CONTINUED).tolist()
        values = np.zeros((len(examples), len(lasts)), np.uint64)
        start = begin
        for number, last in enumerate(lasts):
            for place in range(start, begin + last + 1):
                seven_bits = examples[:, place].astype(np.uint64) & np.uint64(0x7F)
                values[:, number] |= seven_bits << np.uint64(7 * (place - start))
            start = begin + last + 1
        return values.view(np.int64)


def spans_of(example: bytes) -> dict[str, FeatureSpan] | None:
    """Return the places of the values of an Example; None if it has not the usual form."""
    try:
        return _spans(example)
    except (IndexError, ValueError):
        return None


def _spans(data: bytes) -> dict[str, FeatureSpan] | None:
    spans: dict[str, FeatureSpan] = {}
    if not data:
        return spans
    end, position = _length(data, 0, FIRST)
    if end != len(data):
        return None
    while position < end:
        entry_end, position = _length(data, position, FIRST)
        key_end, key = _length(data, position, FIRST)
        value_end, position = _length(data, key_end, SECOND)
        if not key_end <= value_end == entry_end <= end:
            return None
        name = data[key:key_end].decode()
        kind = data[position]
        list_end, position = _length(data, position, kind)
        if list_end != value_end or name in spans or kind not in (BYTES_LIST, FLOAT_LIST, INT64_LIST):
            return None
        pieces = []
        while position < list_end:
            piece_end, position = _length(data, position, FIRST)
            if piece_end > list_end:
                return None
            pieces.append((position, piece_end))
            position = piece_end
        if kind != BYTES_LIST and not _are_numbers(data, kind, pieces):
            return None
        spans[name] = FeatureSpan(kind, tuple(pieces))
    return spans


def _are_numbers(data: bytes, kind: int, pieces: list[tuple[int, int]]) -> bool:
    if len(pieces) != 1 or pieces[0][0] == pieces[0][1]:
        return False
    begin, end = pieces[0]
    return (end - begin) % 4 == 0 if kind == FLOAT_LIST else data[end - 1] < CONTINUED


def _length(data: bytes, position: int, tag: int) -> tuple[int, int]:
    """Return the end and the beginning of a field's content; raise an IndexError for another tag."""
    if data[position] != tag:
        raise IndexError
    length = data[position + 1]
    position += 2
    if length >= CONTINUED:
        length, position = varint(data, position - 1)
    return position + length, position


def varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return a number of 7 bits a byte, and the position after it; raise a ValueError above 10 bytes."""
    value = 0
    for shift in range(0, 70, 7):
        octet = data[position]
        position += 1
        value |= (octet & 0x7F) << shift
        if octet < CONTINUED:
            return value, position
    raise ValueError("a number of more than 10 bytes")


def layout_of(example: bytes) -> Layout | None:
    spans = spans_of(example)
    if spans is None:
        return None
    template = np.frombuffer(example, np.uint8)
    fixed = np.full(len(example), 0xFF, np.uint8)
    for span in spans.values():
        for begin, end in span.pieces:
            # Of whole numbers the first bit of each byte says whether the number goes on in the next.
            fixed[begin:end] = CONTINUED if span.kind == INT64_LIST else 0
            if span.kind == INT64_LIST:
                lasts = np.flatnonzero(template[begin:end] < CONTINUED)
                if np.diff(lasts, prepend=-1).max(initial=0) > 10:  # more bytes than a number has
                    return None
    return Layout(spans, template, fixed)


_Group = tuple[Layout, Array, Octets]
"""A layout, the numbers of its Examples, and their bytes as rows of a matrix."""


def groups_of(examples: Sequence[bytes]) -> tuple[list[_Group], list[int]]:
    alike: list[_Group] = []
    others: list[int] = []
    by_length: dict[int, list[int]] = {}
    for number, example in enumerate(examples):
        by_length.setdefault(len(example), []).append(number)
    for length, numbers in by_length.items():
        others += _divide(examples, length, numbers, alike)
    return alike, others


def _divide(examples: Sequence[bytes], length: int, numbers: list[int], alike: list[_Group]) -> list[int]:
    """Add each group of one length to `alike`, and return which Examples have no layout or too rare a one."""
    known = _known.get(length, [])
    if length > EXAMPLE_BYTES_MAX or (len(numbers) < TOGETHER_MIN and not known):
        return numbers
    rest = np.array(numbers)
    matrix = np.frombuffer(b"".join([examples[number] for number in numbers]), np.uint8)
    matrix = matrix.reshape(len(numbers), length)
    learnt: list[Layout] = []
    untried = iter(known)
    while len(rest) and len(learnt) < LAYOUTS_PER_LENGTH:
        layout = next(untried, None)
        if layout is None:
            layout = layout_of(examples[rest[0]])
            if layout is None:
                break
            learnt.append(layout)
        fit = layout.fits(matrix)
        if fit.any():
            alike.append((layout, rest, matrix) if fit.all() else (layout, rest[fit], matrix[fit]))
            rest, matrix = rest[~fit], matrix[~fit]
    if learnt:
        _known[length] = [*learnt, *known][:LAYOUTS_PER_LENGTH]
    if len(_known) > LENGTHS_KEPT:
        _known.clear()
    return [int(number) for number in rest]


_known: dict[int, list[Layout]] = {}
"""The layouts that were seen, by the length of an Example; several threads may learn the same one at once."""
