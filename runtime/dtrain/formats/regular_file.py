"""Regular files alone: a FIFO, a device or a folder is refused, and never waited for.

Every file that another program may have written is opened here, and read up to a size that its reader states.
"""

import errno
import os
import stat

HOLES_FREE_BYTES = 64 << 20
HOLES_MAX = 1000
"""A file above the first size, of which less than one part in so many is data, has no use but to fill memory:
weights that a program has trained have no holes. A few zeros that a file system stores as a hole are free.
"""
_PIECES_MAX = 1000
"""Pieces of data that are looked at: a file in more of them is taken as it is."""


def open_regular(path: str | os.PathLike[str], *, dir_fd: int | None = None, follow: bool = True) -> int:
    """Open a regular file for reading; the caller closes the descriptor.

    Args:
        path: of the file.
        dir_fd: the open folder that a relative path begins at; None: the working directory.
        follow: whether the last part of the path may be a symbolic link.

    Raises:
        OSError: there is none, it may not be read, it is no regular file, or it consists of holes; `strerror`
            says which.
    """
    # The look before the opening keeps away from devices that act when they are opened.
    _check_regular(os.stat(path, dir_fd=dir_fd, follow_symlinks=follow), path)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, dir_fd=dir_fd)
    try:
        _check_regular(os.fstat(descriptor), path)
        if _is_hollow(descriptor):
            raise OSError(errno.EINVAL, "expected data, found a file of holes", os.fspath(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_trusted(facts: os.stat_result, *neighbours: os.stat_result) -> bool:
    """Return whether this user, root, or the owner of a neighbour has written a file.

    Args:
        facts: of the file.
        neighbours: the folder in which it lies, and the data that it is about: who may change those.
    """
    return facts.st_uid in (os.geteuid(), 0, *(each.st_uid for each in neighbours))


def read_regular(path: str | os.PathLike[str], bytes_max: int, *, follow: bool = True) -> bytes:
    """Return the bytes of a regular file; raise an `OSError` as `open_regular`, or above `bytes_max`."""
    descriptor = open_regular(path, follow=follow)
    try:
        return read_whole(descriptor, bytes_max, path)
    finally:
        os.close(descriptor)


def read_whole(descriptor: int, bytes_max: int, path: str | os.PathLike[str]) -> bytes:
    """Return all bytes of an open regular file; raise an `OSError` above `bytes_max`."""
    data = b""
    if (nbytes := os.fstat(descriptor).st_size) <= bytes_max:
        data = os.pread(descriptor, bytes_max + 1 if nbytes == 0 else nbytes, 0)
        while 0 < len(data) < nbytes and (more := os.pread(descriptor, nbytes - len(data), len(data))):
            data += more
    if max(nbytes, len(data)) > bytes_max:
        found = f"found {max(nbytes, len(data))} bytes, expected at most {bytes_max}"
        raise OSError(errno.EFBIG, found, os.fspath(path))
    return data


def _is_hollow(descriptor: int) -> bool:
    nbytes = os.fstat(descriptor).st_size
    position = found = 0
    for _ in range(_PIECES_MAX):
        if nbytes <= HOLES_FREE_BYTES or found * HOLES_MAX >= nbytes:
            return False
        try:
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
            position = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            return error.errno == errno.ENXIO  # no data after this place; other errors: it cannot be told
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
        found += position - begin
    return False


def _check_regular(facts: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISREG(facts.st_mode):
        return
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}
    found = kinds.get(stat.S_IFMT(facts.st_mode), "a device")
    raise OSError(errno.EINVAL, f"expected a file, found {found}", os.fspath(path))
