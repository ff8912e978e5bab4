"""tf.train.Example: a dict of features, each a list of bytes, floats or integers, as a protocol buffer.

    Example   { Features features = 1; }
    Features  { map<string, Feature> feature = 1; }
    Feature   { oneof { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
    BytesList { repeated bytes value = 1; }
    FloatList, Int64List { repeated float / int64 value = 1 [packed]; }

`parse_example` turns serialized examples into arrays by a dict of `FixedLenFeature` and `VarLenFeature`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from dtrain.data.readers.example_layouts import (
    BYTES_LIST,
    FLOAT_LIST,
    FeatureSpan,
    Layout,
    Octets,
    groups_of,
    spans_of,
    varint,
)
from dtrain.data.structure import TensorSpec
from dtrain.errors import InputError
from dtrain.formats.event_files import bytes_field, encoded_integer
from dtrain.types import Array

Feature = list[bytes] | Array | None
"""bytes values, an array of float32 or int64, or None for a feature without a kind."""

VARINT = 0
FIXED64 = 1
LENGTH_DELIMITED = 2
FIXED32 = 5
OF_BYTES = 1
OF_FLOATS = 2
OF_INTEGERS = 3
FEW_BYTES = 24
"""Bytes of whole numbers that are decoded faster one by one."""


@dataclass(frozen=True)
class FixedLenFeature:
    """A feature with the same number of values in every example.

    Attributes:
        shape: of one example's values.
        dtype: `float32`, `int64` or `string` (bytes), or numpy's dtype of that name.
        default_value: for an example without the feature; None: the example is an error.
    """

    shape: Sequence[int]
    dtype: Any
    default_value: Any = None


@dataclass(frozen=True)
class VarLenFeature:
    """A feature with any number of values, none if it is missing; dtype as in `FixedLenFeature`.

    Args:
        dtype: `float32`, `int64` or `string` (bytes), or numpy's dtype of that name.
    """

    dtype: Any


def parse_single_example(
    serialized: bytes, features: Mapping[str, FixedLenFeature | VarLenFeature]
) -> dict[str, Any]:
    """Return the features of one serialized Example, as arrays (a `string` of shape () as bytes).

    Args:
        serialized: the bytes of an Example, as `encode_example` or TensorFlow made them.
        features: the wanted features, by name.

    Raises:
        InputError: the bytes are no Example, a feature without a default is missing, or its kind or length is
            another.
    """
    found = decode_example(serialized)
    return {name: _parsed(name, found.get(name), feature) for name, feature in features.items()}


def parse_example(
    serialized: Sequence[bytes], features: Mapping[str, FixedLenFeature | VarLenFeature]
) -> dict[str, Any]:
    """Return the features of a batch of serialized Examples: stacked arrays, lists for `VarLenFeature`.

    Examples of one form are parsed together; see `readers.example_layouts`.

    Args:
        serialized: the bytes of each Example, as `encode_example` or TensorFlow made them.
        features: the wanted features, by name.
    """
    columns = {name: _column(feature, len(serialized)) for name, feature in features.items()}
    alike, others = groups_of(serialized)
    for layout, numbers, octets in alike:
        examples = [serialized[number] for number in numbers.tolist()]
        for name, feature in features.items():
            span = layout.spans.get(name)
            # The first one shows what is wrong with all of them.
            first = _parsed(name, None if span is None else _value(examples[0], span), feature)
            rows = [first] * len(examples) if span is None else _rows(layout, span, octets, examples)
            if isinstance(feature, VarLenFeature):
                for number, row in zip(numbers.tolist(), rows, strict=True):
                    columns[name][number] = row
            else:
                columns[name][numbers] = first if span is None else np.reshape(rows, (-1, *feature.shape))
    for number in others:
        for name, value in parse_single_example(serialized[number], features).items():
            columns[name][number] = value
    return columns


def _column(feature: FixedLenFeature | VarLenFeature, rows: int) -> Any:
    """Return an array for the values of a batch, or a list for an array of any length in each place."""
    if isinstance(feature, VarLenFeature):
        return [None] * rows
    dtype = _dtype_name(feature.dtype)
    return np.empty((rows, *feature.shape), object if dtype == "string" else dtype)


def _rows(layout: Layout, span: FeatureSpan, octets: Octets, examples: Sequence[bytes]) -> Array:
    if span.kind != BYTES_LIST:
        return layout.floats(octets, span) if span.kind == FLOAT_LIST else layout.integers(octets, span)
    rows = np.empty((len(examples), len(span.pieces)), object)
    for place, (begin, end) in enumerate(span.pieces):
        rows[:, place] = [each[begin:end] for each in examples]
    return rows


def decode_example(serialized: bytes) -> dict[str, Feature]:
    try:
        if (spans := spans_of(serialized)) is not None:
            return {name: _value(serialized, span) for name, span in spans.items()}
        features: dict[str, Feature] = {}
        for _, message in _fields(serialized, 1):
            for _, entry in _fields(message, 1):
                parts = dict(_fields(entry, 1, 2))
                features[bytes(parts.get(1, b"")).decode()] = _decode_feature(parts.get(2, b""))
        return features
    except (ValueError, IndexError, TypeError) as error:
        raise InputError(
            f"parse_example: expected a serialized tf.train.Example, found other bytes: {error}."
        ) from error


def encode_example(features: Mapping[str, Any]) -> bytes:
    """Return a serialized Example of these features, in the order of their names.

    Args:
        features: for each name bytes, text, or a number, or a list or array of such; whole numbers become
            int64, others float32.
    """
    entries = [
        bytes_field(1, bytes_field(1, name.encode()) + bytes_field(2, _encode_feature(features[name])))
        for name in sorted(features)
    ]
    return bytes_field(1, b"".join(entries))


# Features


def _parsed(name: str, found: Feature, feature: FixedLenFeature | VarLenFeature) -> Any:
    dtype = _dtype_name(feature.dtype)
    kind = dtype if found is None else found.dtype.name if isinstance(found, np.ndarray) else "string"
    if kind != dtype:
        raise InputError(f"parse_example: feature {name}: expected {dtype}, found {kind}.")
    if isinstance(feature, VarLenFeature):
        return _as_array([] if found is None else found, dtype)
    if found is None:
        if feature.default_value is None:
            raise InputError(f"parse_example: feature {name} ({dtype}) is missing and has no default_value.")
        default = _as_array(feature.default_value, dtype)
        return (
            np.broadcast_to(default, tuple(feature.shape)).copy() if feature.shape else default.reshape(-1)[0]
        )
    if len(found) != prod(feature.shape):
        raise InputError(
            f"parse_example: feature {name}: expected {prod(feature.shape)} values, found {len(found)}."
        )
    array = _as_array(found, dtype).reshape(tuple(feature.shape))
    return array if feature.shape else array.reshape(-1)[0]


@lru_cache(256)
def _dtype_name(dtype: Any) -> str:
    """Return `string`, `float32` or `int64`; numpy takes long to name a dtype, so names are kept."""
    name: str = TensorSpec((), dtype).dtype
    if name not in ("string", "float32", "int64"):
        raise InputError(f"parse_example: expected a dtype of string, float32 or int64, found {name}.")
    return name


def _as_array(values: Any, dtype: str) -> Array:
    if dtype != "string":
        return np.asarray(values, dtype)
    array = np.empty(len(values) if isinstance(values, list) else 1, object)
    array[:] = values if isinstance(values, list) else [values]
    return array


def _value(example: bytes, span: FeatureSpan) -> Feature:
    if span.kind == BYTES_LIST:
        return [example[begin:end] for begin, end in span.pieces]
    begin, end = span.pieces[0]
    return _floats(example[begin:end]) if span.kind == FLOAT_LIST else _integers(example[begin:end])


def _floats(packed: bytes) -> Array:
    return np.frombuffer(packed, "<f4").astype(np.float32)


def _integers(packed: bytes) -> Array:
    """Return whole numbers of 7 bits a byte; raise a ValueError for one of more than 10 bytes."""
    if len(packed) <= FEW_BYTES:
        position = 0
        values = []
        while position < len(packed):
            value, position = varint(packed, position)
            values.append(value & 0xFFFFFFFFFFFFFFFF)
        return np.array(values, np.uint64).view(np.int64)
    octets = np.frombuffer(packed, np.uint8)
    lasts = np.flatnonzero(octets < 0x80)
    firsts = np.concatenate([[0], lasts[:-1] + 1])
    lengths = lasts - firsts + 1
    if lengths.max(initial=0) > 10:
        raise ValueError("a number of more than 10 bytes")
    places = np.arange(len(octets)) - np.repeat(firsts, lengths)
    bits = (octets & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.add.reduceat(bits, firsts).view(np.int64)


# The protocol buffer


def _decode_feature(message: memoryview | bytes) -> Feature:
    feature: Feature = None
    for number, content in _fields(message, OF_BYTES, OF_FLOATS, OF_INTEGERS):
        values = [bytes(value) for _, value in _fields(content, 1)]
        if number == OF_BYTES:
            feature = values
        elif number == OF_FLOATS:
            feature = _floats(b"".join(values))
        else:
            feature = np.concatenate([np.empty(0, np.int64), *map(_integers, values)])
    return feature


def _fields(message: memoryview | bytes, *wanted: int) -> Iterator[tuple[int, memoryview]]:
    """Yield number and content of each wanted field of a message; the content of a number is its bytes."""
    view = memoryview(message)
    position = 0
    while position < len(view):
        tag, position = varint(view, position)
        start = position
        if tag & 7 == VARINT:
            _, position = varint(view, position)
        elif tag & 7 == LENGTH_DELIMITED:
            length, start = varint(view, position)
            position = start + length
        elif tag & 7 in (FIXED32, FIXED64):
            position += 4 if tag & 7 == FIXED32 else 8
        else:
            raise ValueError(f"wire type {tag & 7}")
        if position > len(view):
            raise ValueError("it ends inside a field")
        if tag >> 3 in wanted:
            yield tag >> 3, view[start:position]


def _encode_feature(values: Any) -> bytes:
    if isinstance(values, bytes | str):
        values = [values]
    if isinstance(values, list | tuple) and values and all(isinstance(each, bytes | str) for each in values):
        texts = (each.encode() if isinstance(each, str) else each for each in values)
        return bytes_field(OF_BYTES, b"".join(bytes_field(1, text) for text in texts))
    array = np.asarray(values).reshape(-1)
    if array.dtype.kind in "iub":
        packed = b"".join(encoded_integer(int(value)) for value in array)
        return bytes_field(OF_INTEGERS, bytes_field(1, packed))
    if array.dtype.kind == "f":
        return bytes_field(OF_FLOATS, bytes_field(1, array.astype("<f4").tobytes()))
    raise InputError(f"encode_example: expected bytes, text or numbers, found dtype {array.dtype}.")
