"""Steps that keep elements once they have been computed: in memory, in a file, or as a saved dataset."""

import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from dtrain.data.cache_file import CacheFile, built_once, opened_cache
from dtrain.data.node import (
    INFINITE,
    Derived,
    FromEach,
    Indices,
    Iteration,
    Node,
    each_in_blocks,
    spec_of_first,
)
from dtrain.data.prefetching.tuning import SHARE, default_budget_bytes, size_bytes
from dtrain.data.record_index.fingerprint import NoFingerprintError, files_read, fingerprint
from dtrain.data.stores.opening import open_file
from dtrain.data.structure import Element, arrays_of
from dtrain.data.windows import Listed
from dtrain.errors import InputError

SHARE_OF_CACHE = 2
"""One part in so many of the memory is for elements that are kept, unless the program says how much."""
BYTES_AN_ELEMENT = 200
BYTES_AN_ARRAY = 120
"""About what Python needs to hold an element, and each of its arrays, beside the bytes in them."""


class Cached(Derived):
    """The source's first iteration, repeated in every iteration: an earlier shuffle keeps its order.

    Elements beyond the bound are computed anew in each iteration; of a stream then all are.
    """

    keeps_batches = True
    order_varies = False
    computed = frozenset({"_by_index", "_all", "_held_bytes", "_full", "_counting"})

    def __init__(self, source: Node, limit_bytes: int | None = None) -> None:
        """Keep up to `limit_bytes` of elements in memory; None: see SHARE_OF_CACHE."""
        super().__init__(source)
        check_limit(limit_bytes)
        self._limit_bytes = limit_bytes
        self._by_index: dict[int, Element] = {}
        self._all: list[Element] | None = None
        self._held_bytes = 0
        self._full = False
        self._counting = threading.Lock()

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        if self.addressable:
            yield from super().iterate(iteration)
        elif self._all is not None:
            yield from self._all
        else:
            yield from self._streamed(_first(iteration))

    def element(self, index: int, iteration: Iteration) -> Element:
        if index in self._by_index:
            return self._by_index[index]
        element = self._source.element(index, _first(iteration))
        with self._counting:
            if index not in self._by_index and self._has_room(held_bytes(element), self._held_bytes):
                self._held_bytes += held_bytes(element)
                self._by_index[index] = element
        return element

    def _streamed(self, iteration: Iteration) -> Iterator[Element]:
        kept: list[Element] | None = []
        kept_bytes = 0
        for element in self._source.iterate(iteration):
            if kept is not None and self._has_room(held_bytes(element), kept_bytes):
                kept.append(element)
                kept_bytes += held_bytes(element)
            else:
                kept = None
            yield element
        self._all = kept  # not earlier: an iteration that is broken off has not seen all elements

    def _has_room(self, nbytes: int, held: int) -> bool:
        limit = self._limit_bytes
        if limit is None:
            limit = default_budget_bytes() * SHARE // SHARE_OF_CACHE
        if held + nbytes <= limit:
            return not self._full
        if not self._full:
            self._full = True
            warnings.warn(
                f"cache: the elements take more than {limit} bytes, which may be kept in memory; the others "
                "are computed anew in each iteration: give more by cache(limit_bytes=...), or keep them in a "
                "file by cache(filename)",
                stacklevel=2,
            )
        return False


def check_limit(limit_bytes: int | None) -> None:
    if limit_bytes is not None and limit_bytes < 1:
        raise InputError(f"cache: expected limit_bytes >= 1, found {limit_bytes}")


def held_bytes(element: Element) -> int:
    return size_bytes(element) + BYTES_AN_ELEMENT + BYTES_AN_ARRAY * len(arrays_of(element))


def _first(iteration: Iteration) -> Iteration:
    return (0,) * len(iteration)


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
SNAPSHOT_SUFFIX = ".dtsnapshot"


class CachePlace(msgspec.Struct, frozen=True):
    """Where elements are kept: in a file, or in a folder that has a file for each pipeline.

    `compression` is empty, or GZIP for each element by itself. `limit_bytes` bounds the file; None: half of
    what is free on the disk. `version` stands for a fingerprint of the pipeline; None: one is computed.
    """

    path: Path
    is_folder: bool = False
    compression: str = ""
    limit_bytes: int | None = None
    version: str | None = None


def compression_of(name: str | None) -> str:
    """Return a compression of `tf.data`'s as one of COMPRESSIONS; raise an `InputError` for another one."""
    if name not in (None, "", "AUTO", "GZIP"):
        raise InputError(f"snapshot: compression: expected GZIP, AUTO or None, found {name!r}")
    return "GZIP" if name == "GZIP" else ""


class Stored(Derived):
    """The source's first iteration, from a file that is written when an element is first asked for."""

    keeps_batches = True
    addressable = False
    order_varies = False
    computed = frozenset({"_whole"})

    def __init__(self, source: Node, place: CachePlace) -> None:
        super().__init__(source)
        check_limit(place.limit_bytes)
        if _URL.match(str(place.path)):
            raise InputError(f"{place.path}: expected a file of this host to keep elements in, found a URL")
        if source.cardinality == INFINITE:
            raise InputError(
                f"{place.path}: expected a dataset with an end to keep in a file, found one that is repeated "
                "without end; write cache or snapshot before repeat()"
            )
        self.addressable = False
        self._place = place
        self._whole: CacheFile | None = None

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return self.whole().iterate(iteration)

    def whole(self) -> "StoredElements":
        """Return the elements by number; the file is built for that if it is not there, see `built_once`."""
        if self._whole is None:
            digest = self._digest()
            place = self._place
            self._whole = built_once(
                place.path / f"{digest}{SNAPSHOT_SUFFIX}" if place.is_folder else place.path,
                digest,
                lambda: self._source.iterate((0,)),
                place.compression,
                place.limit_bytes,
                makes_folder=place.is_folder,
            )
        return StoredElements(self._source, self._whole)

    def _digest(self) -> str:
        files = [(path, asdict(open_file(path).facts())) for path in files_read(self._source)]
        pipeline = self._source if self._place.version is None else self._place.version
        try:
            return fingerprint(pipeline, files, self._place.compression)
        except NoFingerprintError as error:
            raise InputError(
                f"{self._place.path}: the pipeline has {error}, into which cannot be looked, so that its "
                "change would go unnoticed; give it a name by version='1', and another one whenever "
                "the pipeline changes"
            ) from None


class StoredElements(FromEach, Derived):
    """The elements in a file, by number."""

    keeps_batches = True
    order_varies = False
    computed = frozenset({"_file"})

    def __init__(self, source: Node, file: CacheFile) -> None:
        super().__init__(source)
        self.addressable = True
        self.cardinality = len(file)
        self._file = file
        self._fingerprint = file.fingerprint

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return each_in_blocks(self, self._file.together, iteration)

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        return self._file.read(np.asarray(indices, np.int64))


class SavedElements(StoredElements):
    """The elements of a file that `Dataset.save` has written, by number."""

    def __init__(self, path: Path) -> None:
        file = opened_cache(path)
        if file is None:
            raise InputError(f"{path}: expected a dataset that save has written, found no such file")
        super().__init__(Listed([]), file)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return self

    @cached_property
    def spec(self) -> Any:
        return spec_of_first(self)
