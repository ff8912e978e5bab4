"""A node that keeps elements in a file, and reads them from there by number."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dtrain.data.caching.building import built_once
from dtrain.data.caching.cache_file import CacheFile, cannot_be_written
from dtrain.data.caching.in_memory import check_limit
from dtrain.data.node import INFINITE, Derived, Indices, Iteration, Node
from dtrain.data.record_index.fingerprint import NoFingerprintError, files_read, fingerprint
from dtrain.data.stores.opening import open_file
from dtrain.data.structure import Element, stack
from dtrain.errors import InputError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
SNAPSHOT_SUFFIX = ".dtsnapshot"


@dataclass(frozen=True)
class CachePlace:
    """Where elements are kept.

    Attributes:
        path: of a file; of the folder of snapshots, where each pipeline has a file of its own.
        is_folder: whether it is one.
        compression: empty, or GZIP for each element by itself.
        limit_bytes: of the file; None: half of what is free on the disk.
        version: stands for a fingerprint of the pipeline, in the user's words; None: one is computed.
    """

    path: Path
    is_folder: bool = False
    compression: str = ""
    limit_bytes: int | None = None
    version: str | None = None

    def file(self, digest: str) -> Path:
        """Return the file of a pipeline's elements; raise an `InputError` if there can be none."""
        if not self.is_folder:
            return self.path
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_be_written(self.path, error) from None
        return self.path / f"{digest}{SNAPSHOT_SUFFIX}"


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
        """Begin.

        Raises:
            InputError: the source has no end, or the bound cannot be.
        """
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

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Stored(inputs[0], self._place)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return self.whole().iterate(iteration)

    def whole(self) -> "StoredElements":
        """Return the elements by number; the file is built for that if it is not there.

        Raises:
            InputError: the pipeline cannot be told from others, or the file cannot be read or written.
            WaitTimeoutError: another process takes too long to build it.
        """
        if self._whole is None:
            digest = self._digest()
            place = self._place
            self._whole = built_once(
                place.file(digest),
                digest,
                lambda: self._source.iterate((0,)),
                place.compression,
                place.limit_bytes,
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


class StoredElements(Derived):
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

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return StoredElements(inputs[0], self._file)

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        together = self._file.together
        for start in range(0, self.cardinality, together):
            yield from self.each(range(start, min(start + together, self.cardinality)), iteration)

    def element(self, index: int, iteration: Iteration) -> Element:
        return self.each(range(index, index + 1), iteration)[0]

    def elements(self, indices: Indices, iteration: Iteration) -> Element:
        return stack(self.each(indices, iteration))

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        return self._file.read(np.asarray(indices, np.int64))
