"""One record in one small JSON file: replaced as a whole, or overwritten if the disk is full.

Files are made new, of mode 0600, and never through a link; a reader takes regular files of a stated size.
No record but `join.json` shows the user and the password of a URL.
"""

import contextlib
import errno
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dtrain.errors import RunError
from dtrain.formats.bounded_reading import read_regular
from dtrain.formats.remote_files import masked_bytes

Record = TypeVar("Record")

RECORD_BYTES_MAX = 16 << 20
"""The record of a run of 10,000 tasks has about 3 MiB."""
READS_MAX = 3
"""A record counts as damaged when so many readings have failed: it may be overwritten during one of them."""
RESERVE_BYTES = 64 * 1024
RESERVES = {"run.json": 1, "failure.json": 3}
"""Number of last records of each name for which a full disk has room."""
FULL = (errno.ENOSPC, errno.EDQUOT)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """Read a record; None if the file is not there. Raise a `RunError` if it is not of this kind."""
    damaged: Exception | None = None
    for _ in range(READS_MAX):
        try:
            return msgspec.json.decode(read_regular(path, RECORD_BYTES_MAX, follow=False), type=kind)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            raise
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
            damaged = error
    raise RunError(f"{path} is damaged: {damaged!s:.200}") from None


def read_sound(path: Path, kind: type[Record]) -> Record | None:
    """Read a record whose reader goes on without one: None too where it is damaged or cannot be read."""
    with contextlib.suppress(RunError, OSError):
        return read_record(path, kind)
    return None


def replace_json(path: Path, record: Any, room: Path | None = None, *, private: bool = False) -> None:
    """Replace a file as a whole, written aside and then renamed; an `OSError` leaves it as it was. `room` is
    a file whose blocks are used: others might take released ones on a full disk. A `private` file is its
    owner's alone, and shows passwords.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if room is None:
            aside.unlink(missing_ok=True)  # what an earlier process of this number has left
        else:
            room.replace(aside)
        flags = _NEW if room is None else os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(aside, flags, 0o600), "wb") as file:
            data = msgspec.json.encode(record)
            file.write(data if private else masked_bytes(data))
            file.truncate()
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        error.filename = str(path)
        raise


def overwrite_json(path: Path, record: Any) -> None:
    """Overwrite a file in its own blocks, which needs no room as long as the record fits into them, in
    one write, because a reader may come at any moment. Blanks fill the place of a longer earlier
    record.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        nbytes = os.fstat(descriptor).st_size
        data = masked_bytes(msgspec.json.encode(record)).ljust(nbytes)
        if len(data) > nbytes:
            os.posix_fallocate(descriptor, nbytes, len(data) - nbytes)  # all of it, or nothing is written
        os.pwrite(descriptor, data, 0)
    finally:
        os.close(descriptor)


def keep_room(directory: Path) -> None:
    for name, count in RESERVES.items():
        for number in range(count):
            with contextlib.suppress(OSError):
                path = directory / f"reserve-{name}-{number}"
                path.unlink(missing_ok=True)
                with open(os.open(path, _NEW, 0o600), "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)


def give_room_back(directory: Path) -> None:
    for room in directory.glob("reserve-*"):
        room.unlink(missing_ok=True)
