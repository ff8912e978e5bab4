"""Files by path or URL: where ranges are read, both are alike."""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from dtrain.data.stores.local import FileState, OpenFile, unreadable
from dtrain.data.stores.remote import BlockReader, RemoteFile, shown
from dtrain.errors import InputError
from dtrain.formats.bounded_reading import open_regular, read_regular
from dtrain.formats.remote_files import driver_of, is_url, masked
from dtrain.process.plain_text import plain

OPEN_FILES_MAX = 64
"""Files that stay open in this process."""


ReadableFile = OpenFile | RemoteFile
"""A file that is open for reading ranges; messages show its `path`."""
RowReader = OpenFile | BlockReader
"""A file in which rows are looked for."""

_opened: OrderedDict[tuple[int, str], ReadableFile] = OrderedDict()
_opening = threading.Lock()


def open_file(path: str) -> ReadableFile:
    """Open a file anew; `opened` returns it from then on."""
    found: ReadableFile = RemoteFile(path) if is_url(path) else OpenFile(path)
    with _opening:
        _opened[os.getpid(), path] = found  # a forked process opens its own
        _opened.move_to_end((os.getpid(), path))
        while len(_opened) > OPEN_FILES_MAX:
            _opened.popitem(last=False)
    return found


def opened(path: str) -> ReadableFile:
    """Return a file that may be open already; an `InputError` says that it cannot be read."""
    with _opening:
        found = _opened.get((os.getpid(), path))
        if found is not None:
            _opened.move_to_end((os.getpid(), path))
            return found
    return open_file(path)


@contextmanager
def open_stream(path: str) -> Iterator[BinaryIO]:
    """Open a file to be read from the front; an OSError while it is in use becomes an InputError."""
    try:
        with RemoteFile(path).stream() if is_url(path) else open(open_regular(path), "rb") as file:
            yield file
    except OSError as error:
        raise unreadable(path, error) from error


def check_unchanged(file: ReadableFile, state: FileState) -> None:
    if file.state() != state:
        raise InputError(
            f"{file.path}: was changed while it was in use; write new data into a new file, and start again"
        )


def read_whole(path: str, bytes_max: int) -> bytes:
    """Return a file's bytes; an `OSError`, or `InputError` at a URL, says it cannot be read or is larger."""
    if not is_url(path):
        return read_regular(path, bytes_max)
    file = opened(path)
    if (nbytes := file.state()[0]) > bytes_max:
        raise InputError(f"{file.path}: found {nbytes} bytes, expected at most {bytes_max}")
    return file.read(0, nbytes)


def matching_urls(pattern: str) -> list[str]:
    """Return the URLs that match a pattern; that of a web server, which lists nothing, stands for itself."""
    if pattern.lower().startswith(("http://", "https://")):
        if "*" in pattern:
            raise InputError(
                f"{shown(pattern)}: a web server does not list its files: name each of them, without *"
            )
        return [pattern]
    files, root = driver_of(pattern, kind=InputError)
    return _listed(pattern, root, files.glob)


def urls_below(folder: str) -> list[str]:
    files, root = driver_of(folder, kind=InputError)
    return _listed(folder.rstrip("/"), root.rstrip("/"), files.find)


def _listed(url: str, root: str, ask: Any) -> list[str]:
    before = url.removesuffix(root) if url.endswith(root) else f"{url.partition('://')[0]}://"
    try:
        return [before + str(path) for path in ask(root)]
    except Exception as error:  # drivers raise whatever their store's library does
        said = plain(masked(f"{type(error).__name__}: {error}"))
        raise InputError(f"{shown(url)}: cannot be listed: {said}") from error
