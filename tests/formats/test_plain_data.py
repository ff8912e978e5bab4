"""Plain data as bytes: what comes back, what is refused, and bytes of anyone's."""

import math

import msgspec
import numpy as np
import pytest
from row_by_row import every_row

from dtrain.formats import plain_data


@every_row(
    "plain",
    [None, True, -3, 2**63, 1.5, math.inf, "ä", b"\0", [], [1, (2.0,)], {"a": {("b", 1): [None]}}],
)
def test_plain_data_come_back(plain):
    assert plain_data.decode(plain_data.encode(plain)) == plain


@every_row("dtype", ["?", "<i8", "u1", "<f4", ">f8", "<f2"])
@every_row("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_arrays_come_back_with_their_bits(dtype, shape):
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    (back,) = plain_data.decode(plain_data.encode([array]))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable


def test_an_array_of_any_order_and_numbers_of_numpy_are_values():
    array = np.arange(6.0).reshape(2, 3).T
    back = plain_data.decode(plain_data.encode({"a": array, "n": np.float32(0.5), "t": (1, 2)}))
    assert back["a"].tolist() == array.tolist()
    assert (back["n"], back["t"]) == (np.float32(0.5), (1, 2))
    assert type(back["n"]) is np.float32


@every_row("value", [object(), print, np.array([object()]), np.array(["a"]), 1 + 2j, 2**70])
def test_everything_else_is_refused(value):
    with pytest.raises(TypeError):
        plain_data.encode({"a": [value]})


def torn(dtype, shape, elements):
    return msgspec.msgpack.encode(["a", dtype, shape, elements])


@every_row(
    "content",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(msgspec.msgpack.Ext(9, b"x")),
        msgspec.msgpack.encode(["x", 1]),
        msgspec.msgpack.encode(["d", ["a"], []]),
        msgspec.msgpack.encode(["l", [["l"]]]),
        b"\x92\xa1l\x91" * 5000 + b"\x90",
        torn("<f4", (2,), b"1234"),
        torn("<f4", (-1, -1), b"1234"),
        torn("O", (1,), b"12345678"),
        torn("no", (1,), b"12345678"),
        torn("<f4", (1 << 62, 1 << 62), b""),
    ],
)
def test_bytes_that_are_none_are_refused(content):
    with pytest.raises(ValueError, match="no plain data"):
        plain_data.decode(content)


def test_any_change_of_a_byte_gives_plain_data_or_a_refusal():
    content = plain_data.encode({"a": np.arange(3.0), "b": [1, "x"]})
    refused = 0
    for place in range(len(content)):
        for byte in (0, 0x7F, 0xC7, 0xDF, 0xFF):
            try:
                plain_data.decode(content[:place] + bytes([byte]) + content[place + 1 :])
            except ValueError as error:
                refused += str(error).startswith("no plain data")
    assert refused > len(content)
