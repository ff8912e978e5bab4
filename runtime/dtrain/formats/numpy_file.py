"""Files of numpy: .npy and .npz, checked before memory is taken for what they claim. Nothing is unpickled.

Source: numpy/lib/format.py, "Format Version 1.0"; APPNOTE.TXT of PKWARE for .npz, which is a zip archive.
"""

import lzma
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
from numpy.lib import format as npy

from dtrain.errors import InputError
from dtrain.formats.bounded_reading import room_for
from dtrain.types import Array

MEMBERS_MAX = 10_000
"""Arrays in one .npz: a file of examples has one for each column."""
_LOCAL_HEADER_BYTES = 30
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# What numpy, zipfile and the decompressors raise for damaged bytes.
_DAMAGE = (
    *(ValueError, EOFError, LookupError, TypeError, SyntaxError, OverflowError, MemoryError, RecursionError),
    *(RuntimeError, AttributeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(tokenize.TokenError, OSError),
)


class ArrayInFile(msgspec.Struct, frozen=True):
    """An array whose rows lie one after another in a file, from `offset` on."""

    offset: int
    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"


def stored_arrays(file: BinaryIO, where: str) -> dict[str, ArrayInFile] | None:
    """Return the places of the arrays of a .npz file by name, or of that of a .npy file by an empty name.

    None: not all of them can be read row by row, as they are compressed or in Fortran's order. Raises an
    `InputError` for a damaged file or objects.
    """
    with _damage_named(where):
        nbytes, is_archive = _begin(file)
        if not is_archive:
            array = _stored_array(file, 0, nbytes)
            return None if array is None else {"": array}
        found: dict[str, ArrayInFile] = {}
        with zipfile.ZipFile(file) as archive:
            for member in _members(archive):
                if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                    return None
                file.seek(member.header_offset + 26)
                lengths = struct.unpack("<HH", file.read(4))
                start = member.header_offset + _LOCAL_HEADER_BYTES + sum(lengths)
                array = _stored_array(file, start, min(member.file_size, nbytes - start))
                if array is None:
                    return None
                found[member.filename.removesuffix(".npy")] = array
        return found or None


def read_arrays(file: BinaryIO, where: str) -> dict[str, Array]:
    """Return the arrays of a .npz file by name, or that of a .npy file by an empty name.

    As for `np.load`, the contents say which of the two it is. Raises an `InputError` as `stored_arrays`, and
    where the arrays grow too much.
    """
    with _damage_named(where):
        nbytes, is_archive = _begin(file)
        if not is_archive:
            return {"": _read_npy(file, nbytes)}
        with zipfile.ZipFile(file) as archive:
            members = _members(archive)
            total = sum(member.file_size for member in members)
            if total > (room := room_for(nbytes)):
                raise ValueError(
                    f"its arrays have {total} bytes, expected at most {room} from {nbytes} compressed ones; "
                    "np.savez writes them uncompressed"
                )
            arrays = {}
            for member in members:
                with archive.open(member) as stream:
                    name = member.filename.removesuffix(".npy")
                    arrays[name] = _read_npy(cast(BinaryIO, stream), member.file_size)
            return arrays


@contextmanager
def _damage_named(where: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise  # the file cannot be read where it is
    except _DAMAGE as error:
        raise InputError(
            f"{where}: expected a file of numpy arrays of numbers or text: {type(error).__name__}: "
            f"{str(error)[:200]}"
        ) from None


def _begin(file: BinaryIO) -> tuple[int, bool]:
    """Return the size of an open file and whether it is an archive, and go to its beginning."""
    nbytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    is_archive = file.read(2) == b"PK"
    file.seek(0)
    return nbytes, is_archive


def _members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    members = archive.infolist()
    if len(members) > MEMBERS_MAX:
        raise ValueError(f"found {len(members)} arrays, expected at most {MEMBERS_MAX}")
    return members


def _stored_array(file: BinaryIO, start: int, nbytes: int) -> ArrayInFile | None:
    file.seek(start)
    shape, fortran_order, dtype, _ = _header(file, start, nbytes)
    return None if fortran_order and len(shape) > 1 else ArrayInFile(file.tell(), shape, dtype)


def _read_npy(file: BinaryIO, nbytes: int) -> Array:
    shape, fortran_order, dtype, rest = _header(file, 0, nbytes)
    buffer = bytearray(rest)
    view = memoryview(buffer)
    while view and (count := cast(Any, file).readinto(view)):
        view = view[count:]
    if view:
        raise EOFError(f"it ends {len(view)} bytes before its array does")
    return np.ndarray(shape, dtype, buffer, order="F" if fortran_order else "C")


def _header(file: BinaryIO, start: int, nbytes: int) -> tuple[tuple[int, ...], bool, "np.dtype[Any]", int]:
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"found version {version} of the format, expected 1.0 or 2.0")
    shape, fortran_order, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("found an array of objects, which would have to be unpickled")
    rest = nbytes - (file.tell() - start)
    if any(length < 0 for length in shape) or prod(shape) * dtype.itemsize != rest:
        raise ValueError(f"found {rest} bytes of data, expected an array {str(shape)[:80]} of {dtype}")
    return shape, fortran_order, dtype, rest
