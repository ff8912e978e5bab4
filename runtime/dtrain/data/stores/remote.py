"""Files at URLs, of which any range can be read, by several threads at once.

A request costs 10 to 50 ms wherever it goes, so ranges that lie near each other are read by one, and several
are under way at once. A store that fails is asked again until a deadline.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from dtrain.data.stores.at_once import at_once
from dtrain.data.stores.found import Found, RefusedError
from dtrain.data.stores.fsspec_store import FsspecStore
from dtrain.data.stores.local import FileFacts, FileState
from dtrain.data.stores.ranges import Ranges, parts, pieces, together
from dtrain.data.stores.streams import BlockReader
from dtrain.errors import InputError
from dtrain.formats.masked_urls import masked
from dtrain.process.plain_text import plain

if TYPE_CHECKING:
    from dtrain.data.stores.http_store import HttpStore

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
    """Ask stores that fail again for so many seconds, from now on."""
    global _wait_s
    _wait_s = wait_s


class RemoteFile:
    """A file at a URL.

    Attributes:
        path: the URL as messages show it: without user, password and query, which may hold a signature.
        descriptor: None; a local file has one.
        is_checked_freely: True: to know the file again takes no reading.
    """

    descriptor = None
    is_checked_freely = True

    def __init__(self, url: str) -> None:
        """Find the file.

        Raises:
            InputError: it is not there, cannot be read, or fsspec or its driver is not installed.
        """
        self.path = shown(url)
        self._store = _store_of(url)
        self._found = self._attempted("", self._store.find)
        self._looked_s = time.monotonic()

    def state(self) -> FileState:
        """Return its size in bytes, 0, and its version as the store told it when the file was opened."""
        return self._found.nbytes, 0, self._found.version

    def facts(self) -> FileFacts:
        """Return the facts by which it is known again."""
        return FileFacts(self._found.nbytes, 0, 0, 0, self._found.version)

    def read(self, start: int, nbytes: int) -> bytes:
        """Return the bytes of a range; raise an `InputError` if it cannot be read, or ends before."""
        return self.read_ranges([(start, start + nbytes)])[0]

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of several ranges; raises as `read`."""
        covering = together(ranges, GAP_BYTES, RANGE_BYTES_MAX)
        self._look()
        return parts(ranges, covering, self._all(covering))

    def in_blocks(self) -> BlockReader:
        """Return a reader that asks for large blocks, for who reads small ranges from front to back."""
        return BlockReader(self)

    def stream(self) -> BinaryIO:
        """Return the bytes of the file as a file that can be read and sought."""
        return self.in_blocks().stream()

    def _all(self, covering: Ranges) -> list[bytes]:
        cut = pieces(covering, PIECE_BYTES)
        data = at_once([partial(self._piece, start, end) for start, end in cut])
        if len(cut) == len(covering):
            return data
        rest = iter(zip(cut, data, strict=True))
        joined = []
        for _, end in covering:
            held = []
            for (_, piece_end), piece in rest:
                held.append(piece)
                if piece_end == end:
                    break
            joined.append(b"".join(held))
        return joined

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

    def _look(self) -> None:
        """Ask a store whether the file has changed, where no answer of its own tells that."""
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


def _store_of(url: str) -> "HttpStore | FsspecStore":
    if url.partition("://")[0].lower() not in ("http", "https"):
        return FsspecStore(url)
    from dtrain.data.stores.http_store import HttpStore  # brings http and email, which few programs need

    return HttpStore(url)


def _said(error: OSError) -> str:
    return plain(shown_within(str(error) or type(error).__name__)[:300])


def shown(url: str) -> str:
    """Return a URL without user, password and query; a path of this host as it is."""
    if "://" not in url:
        return url
    address, mark, _ = masked(url).partition("?")
    return f"{address}?***" if mark else address


def shown_within(text: str) -> str:
    """Return a text of one line in which no URL shows more than it may."""
    return " ".join(shown(word) for word in text.split())
