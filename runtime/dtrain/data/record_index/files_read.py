"""The files that a pipeline reads, as far as its steps say them."""

import zlib

from dtrain.data.joining import Interleaved
from dtrain.data.node import INFINITE, Node
from dtrain.data.sources import Generated
from dtrain.data.stores.opening import open_file


def files_read(node: Node) -> list[str]:
    """Return the paths of all files, each once; names that a generator makes, or files that a function opens,
    are not known.
    """
    return list(dict.fromkeys(_files(node)))


def size_and_checksum(path: str) -> tuple[int, int]:
    """Return a file's size, and a checksum of its ends and samples between, or of its version in a store.

    A file that is copied or touched stays the same one.

    Raises:
        InputError: it cannot be read.
    """
    facts = open_file(path).facts()
    told = f"{facts.nbytes} {facts.first_crc32} {facts.last_crc32} {facts.version} {facts.samples_crc32}"
    return facts.nbytes, zlib.crc32(told.encode())


def _files(node: Node) -> list[str]:
    found = [*node.files]
    for each in node.inputs:
        found += _files(each)
    if not isinstance(node, Interleaved) or _generates(node):
        return found
    if (first := node.made_first) is not None and _files(first):
        found += [path for made in node.made_of(_with_end(node.inputs[0])) for path in _files(made)]
    return found


def _generates(node: Node) -> bool:
    """Return whether a generator is below, which may give each of its elements only once."""
    return isinstance(node, Generated) or any(_generates(each) for each in node.inputs)


def _with_end(node: Node) -> Node:
    """Return the part of a pipeline that is repeated without end, or the pipeline itself."""
    while node.cardinality == INFINITE and len(node.inputs) == 1:
        node = node.inputs[0]
    return node
