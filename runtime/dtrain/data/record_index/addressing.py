"""The rewrite of a pipeline into one whose elements can be computed by number.

    node = addressed(dataset.node)      # the same elements in the same order
    node.addressable, obstacles(dataset.node)

Files of rows get their indexes, which are built for that; `interleave` and `flat_map` over a fixed list of
them become arithmetic; a `filter` becomes a list of surviving positions; a cache in a file is built.
"""

from collections.abc import Callable
from typing import Any

from dtrain.data.caching.in_memory import Cached
from dtrain.data.caching.on_disk import Stored, StoredElements
from dtrain.data.distribution.rebatching import Rebatched, SplitBatches
from dtrain.data.grouping import Filtered, Unbatched, may_be_rows_in_a_row
from dtrain.data.joining import Concatenated, Interleaved, Zipped
from dtrain.data.node import INFINITE, Derived, Node
from dtrain.data.ordering import Picked, Shuffled
from dtrain.data.readers.file_rows import FileRows
from dtrain.data.record_index.addressed_steps import AddressedFilter, AddressedInterleave
from dtrain.data.record_index.surviving import surviving
from dtrain.data.sources import Generated
from dtrain.data.steps.choosing import Chosen, Sampled
from dtrain.data.steps.distinct import Distinct
from dtrain.data.steps.groups import Grouped
from dtrain.data.steps.windows import Scanned, TakenWhile, Windowed

ADDRESSABLE_OVER_ADDRESSABLE = (Derived, Zipped, Concatenated)
FIXED_ORDER = (Cached, Stored, StoredElements)
"""The steps that give the elements of the first iteration in each."""
NAMES: dict[type[Node], str] = {
    Generated: "a generator (from_generator)",
    TakenWhile: "take_while",
    Scanned: "scan",
    Windowed: "window",
    Grouped: "group_by_window or bucket_by_sequence_length",
    Distinct: "unique",
    Unbatched: "unbatch after a step that may change how many rows a batch has",
    Rebatched: "rebatch after a step that may change how many rows a batch has",
    SplitBatches: "rebatch",
    Sampled: "sample_from_datasets",
    Chosen: "choose_from_datasets",
}


def addressed(node: Node) -> Node:
    """Return the same elements in the same order, addressable where that can be; else the node itself.

    Raises:
        InputError: a file cannot be read, or is damaged.
        WaitTimeoutError: another task takes too long to build an index.
    """
    if node.addressable or obstacles(node):
        return node
    rewritten = _rewritten(node)
    return rewritten if rewritten.addressable else node


def obstacles(node: Node) -> list[str]:
    """Return what of a pipeline can only be read from the front, in the user's words; nothing is indexed."""
    if node.addressable or isinstance(node, Stored):
        return []
    found = [each for one in _inside(node) for each in obstacles(one)]
    if own := _obstacle(node):
        found.append(own)
    return list(dict.fromkeys(found))


def _obstacle(node: Node) -> str:
    """Return why a step would not be addressable on addressable inputs; empty: it would be."""
    endless = any(each.cardinality == INFINITE for each in node.inputs)
    if isinstance(node, FileRows):
        return node.format.obstacle
    if isinstance(node, Interleaved):
        if endless:
            return "interleave over file names without end (repeat after it)"
        return "interleave over other files in each iteration" if _members_vary(node.inputs[0]) else ""
    if isinstance(node, Filtered):
        if endless:
            return "filter after repeat() without end (filter first)"
        varies = order_varies(node.inputs[0])
        return "filter after a shuffle that changes with each iteration (filter first)" if varies else ""
    if isinstance(node, Shuffled | Concatenated) and node.inputs[0].cardinality == INFINITE:
        return f"{type(node).__name__.lower()} elements after repeat() without end (repeat last)"
    if isinstance(node, ADDRESSABLE_OVER_ADDRESSABLE):
        return ""
    if isinstance(node, Unbatched | Rebatched) and may_be_rows_in_a_row(node.inputs[0]):
        return ""
    return NAMES.get(type(node), type(node).__name__)


def order_varies(node: Node) -> bool:
    """Return whether elements come in another order in each iteration, those inside of interleaves too."""
    if isinstance(node, FIXED_ORDER):
        return False
    return node.order_varies or any(order_varies(each) for each in _inside(node))


def _members_vary(node: Node) -> bool:
    """Return whether other elements, and not only others first, may come in each iteration."""
    if isinstance(node, FIXED_ORDER):
        return False
    chooses = isinstance(node, Picked | Filtered) and order_varies(node)
    return chooses or any(_members_vary(each) for each in node.inputs)


def _inside(node: Node) -> list[Node]:
    """Return a node's inputs, and for an interleave the first of the nodes that it makes."""
    made = node.made_first if isinstance(node, Interleaved) else None
    return [*node.inputs, *([] if made is None else [made])]


def _rewritten(node: Node) -> Node:
    if node.addressable:
        return node
    if isinstance(node, FileRows):
        return node.addressed()
    if isinstance(node, Stored):
        return node.whole()
    inputs = [_rewritten(each) for each in node.inputs]
    if isinstance(node, Interleaved):
        return node.rebuilt(AddressedInterleave, inputs[0], _making_addressed)
    if isinstance(node, Filtered):
        return AddressedFilter(inputs[0], node.predicate, surviving(inputs[0], node.predicate))
    same = all(each is other for each, other in zip(node.inputs, inputs, strict=True))
    return node if same else node.with_inputs(inputs)


def _making_addressed(make: Callable[..., Node]) -> Callable[..., Node]:
    def made(*parts: Any) -> Node:
        return _rewritten(make(*parts))

    return made
