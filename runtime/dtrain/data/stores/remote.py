"""Files at URLs, of which any range can be read, by several threads at once, or from front to back.

A request costs 10 to 50 ms wherever it goes, so ranges that lie near each other are read by one, and
several are under way at once. A store that fails is asked again until a deadline. Stores are those that
fsspec knows, such as ``s3://bucket/file`` (the extra `remote` brings it); `http_store` has web servers.
"""

import io
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, TypeVar, cast

from dtrain.data.stores.local import FileFacts, FileState
from dtrain.data.stores.ranges import Found, RefusedError, parts, pieces, together
from dtrain.errors import InputError
from dtrain.formats.remote_files import driver_of, masked
from dtrain.process.plain_text import plain

VERSIONS = (
    *("ETag", "etag", "md5Hash", "content_md5", "generation", "LastModified", "last_modified", "updated"),
    *("mtime", "modified", "created"),
)
"""The names under which stores tell what changes with a file; the first that one has counts."""


class FsspecStore:
    """The file at one URL, of a store that fsspec has a driver for; no connection is made before `find`."""

    tells_changes = False

    def __init__(self, url: str) -> None:
        self._files, self._path = driver_of(url, kind=InputError)

    def find(self, timeout_s: float) -> Found:
        self._files.invalidate_cache()
        about = self._asked("info", timeout_s)
        if about.get("type") == "directory":
            raise RefusedError("expected a file, found a folder")
        if about.get("size") is None:
            raise RefusedError("the store does not tell the size of the file")
        version = next((str(about[name]) for name in VERSIONS if about.get(name)), "")
        return Found(int(about["size"]), version)

    def fetch(self, start: int, end: int, timeout_s: float) -> tuple[bytes, None]:
        return self._asked("cat_file", timeout_s, start=start, end=end), None

    def _asked(self, name: str, timeout_s: float, **arguments: Any) -> Any:
        files = self._files
        try:
            if files.async_impl and not files.asynchronous:
                from fsspec.asyn import sync

                call = getattr(files, f"_{name}")
                return sync(files.loop, call, self._path, timeout=timeout_s, **arguments)
            return getattr(files, name)(self._path, **arguments)
        except (FileNotFoundError, RefusedError):
            raise
        except (PermissionError, IsADirectoryError, NotImplementedError) as error:
            raise RefusedError(str(error) or type(error).__name__) from error
        except Exception as error:  # drivers raise whatever their store's library does
            raise OSError(f"{type(error).__name__}: {error}") from error


BLOCK_BYTES = 8 << 20
"""Bytes that are read at once from a file that is read from front to back."""
FIRST_BLOCK_BYTES = 64 * 1024
"""Bytes that are read first after a leap."""
GROWTH = 4
"""How many times larger the next block is where reads follow each other."""


class BlockReader:
    """A file that is read in blocks, which grow while reads follow each other; it serves one thread."""

    def __init__(self, file: "RemoteFile") -> None:
        self._file = file
        self.path = file.path
        self._nbytes = file.state()[0]
        self._begin = 0
        self._block = b""
        self._wanted = FIRST_BLOCK_BYTES // GROWTH

    def read(self, start: int, nbytes: int) -> bytes:
        end = self._begin + len(self._block)
        if not self._begin <= start <= start + nbytes <= end:
            follows = self._begin <= start <= end + self._wanted
            self._wanted = min(GROWTH * self._wanted, BLOCK_BYTES) if follows else FIRST_BLOCK_BYTES
            known = self._block[start - self._begin :] if self._begin <= start <= end else b""
            first = start + len(known)
            wanted = max(nbytes - len(known), min(self._wanted, self._nbytes - first))
            self._block = known + self._file.read(first, wanted)
            self._begin = start
        place = start - self._begin
        return self._block[place : place + nbytes]

    def stream(self) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(RangeStream(self.read, self._nbytes), FIRST_BLOCK_BYTES))


class RangeStream(io.RawIOBase):
    """A file of `nbytes` with a position, of which `read` returns so many bytes at an offset."""

    def __init__(self, read: Callable[[int, int], bytes], nbytes: int) -> None:
        self._read = read
        self._nbytes = nbytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._nbytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        nbytes = max(0, min(len(buffer), self._nbytes - self._position))
        buffer[:nbytes] = self._read(self._position, nbytes)
        self._position += nbytes
        return nbytes


T = TypeVar("T")
GAP_BYTES = 256 * 1024
"""Bytes between two ranges that are read for nothing rather than by another request."""
RANGE_BYTES_MAX = 8 << 20
"""Bytes of neighbours that are read together."""
PIECE_BYTES = 2 << 20
"""Bytes that one request asks for; more are asked for by several at once."""
ATTEMPT_S = 30.0
"""The longest wait for an answer before the store is asked again."""
DEADLINE_S = 60.0
"""How long a store that fails is asked again, where the spec does not say (`wait.server_s`)."""
FIRST_PAUSE_S, PAUSE_MAX_S = 0.1, 5.0
SAID_AFTER_S = 2.0
"""The wait for a store that fails after which it is said, once."""
LOOK_S = 10.0
"""How often a store whose answers do not tell it is asked whether a file has changed."""


_wait_s = DEADLINE_S


def wait_for_stores(wait_s: float) -> None:
    global _wait_s
    _wait_s = wait_s


class RemoteFile:
    """A file at a URL, whose `path` is the URL as messages show it: without user, password and query."""

    descriptor: int | None = None

    def __init__(self, url: str) -> None:
        self.path = shown(url)
        if url.partition("://")[0].lower() in ("http", "https"):
            from dtrain.data.stores.http_store import HttpStore  # brings http and email: few programs need it

            self._store: HttpStore | FsspecStore = HttpStore(url)
        else:
            self._store = FsspecStore(url)
        self._found = self._attempted("", self._store.find)
        self._looked_s = time.monotonic()

    def state(self) -> FileState:
        return self._found.nbytes, 0, self._found.version

    def facts(self) -> FileFacts:
        return FileFacts(self._found.nbytes, 0, 0, 0, self._found.version)

    def read(self, start: int, nbytes: int) -> bytes:
        return self.read_ranges([(start, start + nbytes)])[0]

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        covering = together(ranges, GAP_BYTES, RANGE_BYTES_MAX)
        self._check_changed()
        cut = [pieces([each], PIECE_BYTES) for each in covering]
        data = iter(at_once([partial(self._piece, start, end) for each in cut for start, end in each]))
        return parts(ranges, covering, [b"".join(islice(data, len(each))) for each in cut])

    def in_blocks(self) -> BlockReader:
        return BlockReader(self)

    def stream(self) -> BinaryIO:
        return BlockReader(self).stream()

    def _piece(self, start: int, end: int) -> bytes:
        if start == end:
            return b""
        if end > self._found.nbytes:
            raise InputError(
                f"{self.path}: expected {end - start} bytes at byte {start}, found "
                f"{max(0, self._found.nbytes - start)}: the file is shorter"
            )

        def fetched(timeout_s: float) -> bytes:
            data, found = self._store.fetch(start, end, timeout_s)
            self._compare(found)
            if len(data) != end - start:
                raise OSError(f"expected {end - start} bytes, found {len(data)}")
            return data

        return self._attempted(f"bytes {start} to {end} ", fetched)

    def _check_changed(self) -> None:
        now_s = time.monotonic()
        if not self._store.tells_changes and now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._compare(self._attempted("", self._store.find))

    def _compare(self, found: Found | None) -> None:
        if found is not None and found != self._found:
            raise InputError(
                f"{self.path}: was changed while it was in use: it has {found.nbytes} bytes, version "
                f"{found.version!r}, and had {self._found.nbytes}, version {self._found.version!r}; write "
                "new data under a new name, and start again"
            )

    def _attempted(self, what: str, call: Callable[[float], T]) -> T:
        """Return what a call gives that may fail for a while; raise an `InputError` if it does for longer."""
        begun_s = time.monotonic()
        deadline_s = _wait_s
        pause_s = FIRST_PAUSE_S
        attempts = 0
        said = False
        while True:
            attempts += 1
            rest_s = begun_s + deadline_s - time.monotonic()
            try:
                return call(max(0.1, min(ATTEMPT_S, rest_s)))
            except FileNotFoundError as error:
                raise InputError(masked(f"{self.path}: is not there: {_said(error)}")) from None
            except RefusedError as error:
                raise InputError(masked(f"{self.path}: {what}cannot be read: {_said(error)}")) from None
            except OSError as error:
                waited_s = time.monotonic() - begun_s
                if waited_s + pause_s > SAID_AFTER_S and not said:
                    said = True
                    with suppress(OSError, ValueError):
                        sys.stderr.write(
                            f"dtrain: waiting for the store of {plain(self.path)}: {_said(error)}\n"
                        )
                if waited_s + pause_s >= deadline_s:
                    times = "once" if attempts == 1 else f"{attempts} times"
                    raise InputError(
                        masked(
                            f"{self.path}: {what}cannot be read: the store was asked {times} within "
                            f"{waited_s:.0f} s; the last answer: {_said(error)}"
                        )
                    ) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)


def _said(error: OSError) -> str:
    words = (str(error) or type(error).__name__).split()
    return plain(" ".join(shown(word) for word in words)[:300])  # a URL within shows no more than it may


def shown(url: str) -> str:
    """Return a URL without user, password and query; a path of this host as it is."""
    if "://" not in url:
        return url
    address, mark, _ = masked(url).partition("?")
    return f"{address}?***" if mark else address


CALLS_MAX = 16
"""Calls of this process that are under way at once."""

_free = threading.BoundedSemaphore(CALLS_MAX)


def _renew() -> None:
    global _free
    _free = threading.BoundedSemaphore(CALLS_MAX)


os.register_at_fork(after_in_child=_renew)  # its threads, and what they hold, stay in the parent


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of calls in their order; raise the first error, after which no call begins."""
    if len(calls) == 1:
        with _free:
            return [calls[0]()]
    found: dict[int, T] = {}
    errors: list[BaseException] = []
    waiting = enumerate(calls)  # of a sequence: several threads may take from it

    def run() -> None:
        try:
            for number, call in waiting:
                with _free:
                    found[number] = call()
                if errors:
                    return
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, name=f"dtrain-read-{number}", daemon=True)
        for number in range(min(CALLS_MAX, len(calls)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [found[number] for number in range(len(calls))]
