"""TensorBoard event files: scalars, histograms and texts over global steps.

An event file is a file of records (`dtrain.formats.tfrecord`), each a serialized ``tensorflow.Event``. They
are encoded here, in the form of TensorFlow 2 (a tensor, and the name of the plugin that shows it): the
messages have a dozen fields, and a library for them would bring a version of protobuf of its own.

Source: tensorflow/core/util/event.proto, tensorflow/core/framework/{summary,tensor}.proto; `tf.summary`.
"""

import os
import socket
import struct
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.formats.tfrecord import TFRecordWriter

HISTOGRAM_BUCKETS = 30
FLOAT32 = 1
FLOAT64 = 2
STRING = 7
SCALARS = "scalars"
HISTOGRAMS = "histograms"
TEXTS = "text"

_numbers = count()


class SummaryWriter(TFRecordWriter):
    """Writes one event file into a folder, under a name that no other writer has."""

    def __init__(self, directory: str | Path) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        now_s = time.time()
        name = f"events.out.tfevents.{int(now_s)}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}.v2"
        super().__init__(Path(directory) / name)
        self.write(_double_field(1, now_s) + bytes_field(3, b"brain.Event:2"))
        self.flush()

    def scalar(self, tag: str, value: float, step: int, description: str = "") -> None:
        self._write_event(tag, step, SCALARS, _tensor(FLOAT32, np.float32(value)), description)

    def histogram(
        self, tag: str, values: Any, step: int, buckets: int = HISTOGRAM_BUCKETS, description: str = ""
    ) -> None:
        """Write how many values lie in which interval."""
        self._write_event(tag, step, HISTOGRAMS, _tensor(FLOAT64, histogram(values, buckets)), description)

    def text(self, tag: str, text: Any, step: int, description: str = "") -> None:
        """Write Markdown: a string, or nested lists of strings, shown as a table."""
        cells = np.array(text, object)
        tensor = (
            _integer_field(1, STRING)
            + bytes_field(2, _shape(cells))
            + b"".join(bytes_field(8, cell.encode()) for cell in cells.flat)
        )
        self._write_event(tag, step, TEXTS, tensor, description)

    def _write_event(self, tag: str, step: int, plugin: str, tensor: bytes, description: str) -> None:
        metadata = bytes_field(1, bytes_field(1, plugin.encode())) + (
            bytes_field(3, description.encode()) if description else b""
        )
        value = bytes_field(1, tag.encode()) + bytes_field(8, tensor) + bytes_field(9, metadata)
        self.write(
            _double_field(1, time.time())
            + (_integer_field(2, step) if step else b"")
            + bytes_field(5, bytes_field(1, value))
        )


def histogram(values: Any, buckets: int = HISTOGRAM_BUCKETS) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return left edge, right edge and count of intervals of equal width, shape [buckets, 3].

    Values that are not finite are left out; equal values lie in the last interval.
    """
    flat = np.asarray(values, np.float64).ravel()
    flat = flat[np.isfinite(flat)]
    result = np.zeros((buckets, 3))
    if not flat.size:
        return result
    low = flat.min()
    high = flat.max()
    if low == high:
        result[:, :2] = low
        result[-1, 2] = flat.size
        return result
    width = (high - low) / buckets
    # By division, not by comparison with the edges, as TensorFlow does: the counts are the same.
    index = np.minimum(((flat - low) / width).astype(np.int64), buckets - 1)
    edges = np.linspace(low, high, buckets + 1)
    result[:, 0] = edges[:-1]
    result[:, 1] = edges[1:]
    result[:, 2] = np.bincount(index, minlength=buckets)
    return result


# Protocol buffers: a key (number of the field, how it is written), then the field.


def encoded_integer(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative ones as two's complement
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _integer_field(field: int, value: int) -> bytes:
    return encoded_integer(field << 3) + encoded_integer(value)


def _double_field(field: int, value: float) -> bytes:
    return encoded_integer(field << 3 | 1) + struct.pack("<d", value)


def bytes_field(field: int, value: bytes) -> bytes:
    return encoded_integer(field << 3 | 2) + encoded_integer(len(value)) + value


def _tensor(dtype: int, array: Any) -> bytes:
    return _integer_field(1, dtype) + bytes_field(2, _shape(array)) + bytes_field(4, array.tobytes())


def _shape(array: Any) -> bytes:
    return b"".join(bytes_field(2, _integer_field(1, size)) for size in np.shape(array))
