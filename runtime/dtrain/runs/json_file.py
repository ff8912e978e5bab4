"""One record in one small JSON file: replaced as a whole, or overwritten if the disk is full."""

import os
from pathlib import Path
from typing import Any

import msgspec


def replace_json(path: Path, record: Any, room: Path | None = None) -> None:
    """Replace a file as a whole: written aside, then renamed.

    Args:
        path: of the file; it need not be there.
        record: its new contents.
        room: a file whose blocks are used; blocks that are released first might be taken by others on a full
            disk.

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
    """Overwrite a file in its own blocks, which needs no room as long as the record fits into them.

    It is done in one write, because a reader may come at any moment. Blanks fill the place of a longer
    earlier record.

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
