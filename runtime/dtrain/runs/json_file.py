"""One record in one small JSON file: replaced as a whole, or written over where the disk has no room for
another one.
"""

import os
from pathlib import Path
from typing import Any

import msgspec


def replace_json(path: Path, record: Any, room: Path | None = None) -> None:
    """Replace a file as a whole: written aside, then renamed.

    Args:
        path: of the file; it need not be there.
        record: what it is to hold.
        room: a file whose blocks are taken for it; those that were given back to a full disk first, others
            might take.

    Raises:
        OSError: it cannot be written; it is as it was.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if room is not None:
            room.replace(aside)
        with open(aside, "wb" if room is None else "r+b") as file:
            file.write(msgspec.json.encode(record))
            file.truncate()
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        error.filename = str(path)
        raise


def overwrite_json(path: Path, record: Any) -> None:
    """Write over a file in its own blocks, which needs no room as long as the record fits into them.

    It is done in one write, because a reader may come at any moment. Blanks stand where the earlier record
    was longer.

    Raises:
        OSError: it is not there, or does not fit; it is as it was.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        nbytes = os.fstat(descriptor).st_size
        data = msgspec.json.encode(record).ljust(nbytes)
        if len(data) > nbytes:
            os.posix_fallocate(descriptor, nbytes, len(data) - nbytes)  # all of it, or nothing is written
        os.pwrite(descriptor, data, 0)
    finally:
        os.close(descriptor)
