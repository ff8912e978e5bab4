"""Files of numpy: .npy and .npz, checked before memory is taken for what they claim. Nothing is unpickled.

Source: numpy/lib/format.py, "Format Version 1.0"; APPNOTE.TXT of PKWARE for .npz, which is a zip archive.
"""

import lzma
import os
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO, cast

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


@dataclass(frozen=True)
class ArrayInFile:
    """An array whose rows lie one after another in a file.

    Attributes:
        offset: of its first byte in the file.
        shape: of the array.
        dtype: of its numbers.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"


def stored_arrays(file: BinaryIO) -> dict[str, ArrayInFile] | None:
    """Return the places of the arrays of a .npz file by name, or of that of a .npy file by an empty name.

    None: not all of them can be read row by row, as they are compressed or in Fortran's order.

    Raises:
        ValueError: the file is damaged, or holds objects.
    """
    try:
        nbytes = size_of(file)
        if not file.read(4).startswith(b"PK"):
            array = _stored_array(file, 0, nbytes)
            return None if array is None else {"": array}
        found: dict[str, ArrayInFile] = {}
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) > MEMBERS_MAX:
                raise ValueError(f"found {len(members)} arrays, expected at most {MEMBERS_MAX}")
            for member in members:
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
    except InputError:
        raise  # the file cannot be read where it is
    except _DAMAGE as error:
        raise ValueError(f"{type(error).__name__}: {str(error)[:200]}") from None


def size_of(file: BinaryIO) -> int:
    """Return the size of an open file, and go to its beginning."""
    nbytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    return nbytes


def _stored_array(file: BinaryIO, start: int, nbytes: int) -> ArrayInFile | None:
    file.seek(start)
    shape, fortran_order, dtype, _ = _header(file, start, nbytes)
    return None if fortran_order and len(shape) > 1 else ArrayInFile(file.tell(), shape, dtype)


def _header(file: BinaryIO, start: int, nbytes: int) -> tuple[tuple[int, ...], bool, "np.dtype[Any]", int]:
    """Return shape, order and dtype of the array at a place of a file, and the bytes of its data."""
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


def read_npy(file: BinaryIO, nbytes: int) -> Array:
    """Return the array of a .npy file.

    Args:
        file: at its beginning.
        nbytes: of the file.

    Raises:
        ValueError: it is damaged, holds objects, or has another size than its header says.
    """
    try:
        shape, fortran_order, dtype, rest = _header(file, 0, nbytes)
        buffer = bytearray(rest)
        view = memoryview(buffer)
        while view and (count := cast(Any, file).readinto(view)):
            view = view[count:]
        if view:
            raise EOFError(f"it ends {len(view)} bytes before its array does")
        return np.ndarray(shape, dtype, buffer, order="F" if fortran_order else "C")
    except InputError:
        raise  # the file cannot be read where it is
    except _DAMAGE as error:
        raise ValueError(f"{type(error).__name__}: {str(error)[:200]}") from None


def read_npz(file: BinaryIO) -> dict[str, Array]:
    """Return a .npz file's arrays by name; raise a `ValueError` if it is damaged or dangerous."""
    try:
        nbytes = size_of(file)
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) > MEMBERS_MAX:
                raise ValueError(f"found {len(members)} arrays, expected at most {MEMBERS_MAX}")
            total = sum(member.file_size for member in members)
            if total > (room := room_for(nbytes)):
                raise ValueError(
                    f"its arrays have {total} bytes, expected at most {room} from {nbytes} compressed ones; "
                    "np.savez writes them uncompressed"
                )
            columns = {}
            for member in members:
                with archive.open(member) as stream:
                    name = member.filename.removesuffix(".npy")
                    columns[name] = read_npy(cast(BinaryIO, stream), member.file_size)
            return columns
    except InputError:
        raise  # the file cannot be read where it is
    except _DAMAGE as error:
        raise ValueError(f"{type(error).__name__}: {str(error)[:200]}") from None
