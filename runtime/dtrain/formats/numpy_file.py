"""Files of numpy: .npy and .npz, checked before memory is taken for what they claim. Nothing is unpickled.

Source: numpy/lib/format.py, "Format Version 1.0"; APPNOTE.TXT of PKWARE for .npz, which is a zip archive.
"""

import lzma
import os
import struct
import tokenize
import zipfile
import zlib
from math import prod
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy

from dtrain.formats.expansion import room_for
from dtrain.types import Array

MEMBERS_MAX = 10_000
"""Arrays in one .npz: a file of examples has one for each column."""
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# What numpy, zipfile and the decompressors raise for damaged bytes.
_DAMAGE = (
    *(ValueError, EOFError, LookupError, TypeError, SyntaxError, OverflowError, MemoryError, RecursionError),
    *(RuntimeError, AttributeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(tokenize.TokenError, OSError),
)


def read_npy(file: BinaryIO, nbytes: int) -> Array:
    """Return the array of a .npy file.

    Args:
        file: at its beginning.
        nbytes: of the file.

    Raises:
        ValueError: it is damaged, holds objects, or has another size than its header says.
    """
    try:
        version = npy.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"found version {version} of the format, expected 1.0 or 2.0")
        shape, fortran_order, dtype = _HEADERS[version](file)
        rest = nbytes - file.tell()
        if dtype.hasobject:
            raise ValueError("found an array of objects, which would have to be unpickled")
        if any(length < 0 for length in shape) or prod(shape) * dtype.itemsize != rest:
            raise ValueError(f"found {rest} bytes of data, expected an array {str(shape)[:80]} of {dtype}")
        buffer = bytearray(rest)
        view = memoryview(buffer)
        while view and (count := cast(Any, file).readinto(view)):
            view = view[count:]
        if view:
            raise EOFError(f"it ends {len(view)} bytes before its array does")
        return np.ndarray(shape, dtype, buffer, order="F" if fortran_order else "C")
    except _DAMAGE as error:
        raise ValueError(f"{type(error).__name__}: {str(error)[:200]}") from None


def read_npz(file: BinaryIO) -> dict[str, Array]:
    """Return a .npz file's arrays by name; raise a `ValueError` if it is damaged or dangerous."""
    try:
        nbytes = os.fstat(file.fileno()).st_size
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
    except _DAMAGE as error:
        raise ValueError(f"{type(error).__name__}: {str(error)[:200]}") from None
