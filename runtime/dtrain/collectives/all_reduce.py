"""Sums over several hosts: segments of arrays, who sends which to whom, and what is added where.

A slice has a chunk for each host. Chunk c begins at host c of the ring, goes round once, and each host adds
its parts; the last one divides. Then the means go round. A host sends 2 (h - 1) / h of the slice for h hosts.
The order of the sums is another one for each chunk, and one and the same at all hosts.

The host of part 0 begins; each host adds its parts one by one to what it receives, and sends it on to the
host of the next part. The host of the last part has the left fold over all parts and divides. The means
then travel back. So the bits are those of one process, on any number of hosts: rule *Determinism*
(docs/design/protocol.md#determinism).
Hosts whose parts are neighbours stand in the chain once; others come again, once for each run of parts.
Segments follow each other, so that all hosts work at the same time.

A host sends, of each of its parts that count and for each table, ids and rows. How many lists there are, and
of which parts and tables, both ends know from the attempt; how long each is, the head says. So a receiver
knows what comes, and refuses a length that no list can have, before it takes memory for it.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from dtrain.errors import PeerRefusedError
from dtrain.parameters.table import are_rows
from dtrain.types import Array

SEGMENT_BYTES = 512 * 1024
"""A piece that is received, added to and sent on while the next one is under way. Half of it took 5 to 10%
more processor time on loopback; it and its gradient fit in a core's own cache.
"""


class ElementRange(NamedTuple):
    """Elements of a flat array, from `start` to before `stop`."""

    start: int
    stop: int


def slices(elements: int, count: int) -> Sequence[ElementRange]:
    """Return `count` slices of nearly the same length, which together are all elements; some may be empty."""
    cuts = [elements * index // count for index in range(count + 1)]
    return [ElementRange(start, stop) for start, stop in itertools.pairwise(cuts)]


def segments(span: ElementRange, length: int) -> Sequence[ElementRange]:
    """Return the pieces of a slice, each of `length` elements except the last one."""
    return [
        ElementRange(start, min(start + length, span.stop)) for start in range(span.start, span.stop, length)
    ]


def whole(span: ElementRange) -> Sequence[ElementRange]:
    return [span] if span.stop > span.start else []


def segment_length(itemsize: int) -> int:
    return max(1, SEGMENT_BYTES // itemsize)


PartsOf = Mapping[int, Sequence[int]]
"""By the number of each host, the parts whose gradients it has, ascending."""


class Route(NamedTuple):
    """One direction from a host to another one, on which segments keep their order.

    Attributes:
        label: tells several ways between the same two hosts apart.
    """

    source: int
    target: int
    label: str


class Act(NamedTuple):
    """One segment at one host: it comes or begins here, gradients are added, it goes on or ends here.

    Attributes:
        receive: the way on which it comes; None: it begins here.
        add: the parts whose gradients are added, in this order.
        send: the way on which it goes on; None: to no host.
        divide: whether it then has all parts, and is divided.
    """

    span: ElementRange
    receive: Route | None
    add: Sequence[int]
    send: Route | None
    divide: bool


Flow = Sequence[Act]
"""Acts in their order, which receive on one way at most. The flows of a host go on side by side."""


RING_LABEL = "ring"


def ring(hosts: Sequence[int], host: int, parts: PartsOf, span: ElementRange, length: int) -> Sequence[Flow]:
    """Return what one host does for a slice.

    Args:
        parts: of every host; one without parts passes sums on.
        length: of a segment, in elements.
    """
    count, place = len(hosts), hosts.index(host)
    own = parts[host]
    chunks = [
        ElementRange(span.start + start, span.start + stop)
        for start, stop in slices(span.stop - span.start, count)
    ]
    if count == 1:
        return [[Act(each, None, own, None, divide=True) for each in segments(span, length)]]
    right = Route(host, hosts[(place + 1) % count], RING_LABEL)
    left = Route(hosts[place - 1], host, RING_LABEL)
    # What is only sent, or only received, needs no segments: they would cost a wake-up each.
    begun = whole(chunks[place]) if len(own) == 1 else segments(chunks[place], length)
    acts = [Act(each, None, own, right, divide=False) for each in begun]
    for round_ in range(1, count):
        last = round_ == count - 1
        come = segments(chunks[(place - round_) % count], length)
        acts += [Act(each, left, own, right, divide=last) for each in come]
    for round_ in range(1, count):
        last = round_ == count - 1
        chunk = chunks[(place + 1 - round_) % count]
        come = whole(chunk) if last else segments(chunk, length)
        acts += [Act(each, left, (), None if last else right, divide=False) for each in come]
    return [acts]


def legs(parts: PartsOf) -> Sequence[tuple[int, Sequence[int]]]:
    """Return the runs of parts that follow each other at one host, as (host, parts)."""
    holders = sorted((part, host) for host, held in parts.items() for part in held)
    runs = groupby(holders, key=lambda holder: holder[1])
    return [(host, tuple(part for part, _ in run)) for host, run in runs]


def way_back(hosts: Sequence[int], parts: PartsOf) -> Sequence[int]:
    """Return the hosts in the order in which they get the means; those without parts come last."""
    backwards = [host for host, _ in reversed(legs(parts))]
    return list(dict.fromkeys([*backwards, *hosts]))


def ordered_chain(
    hosts: Sequence[int], host: int, parts: PartsOf, span: ElementRange, length: int
) -> Sequence[Flow]:
    """Return what one host does for a slice, as `ring`. At least one host has a part."""
    pieces = segments(span, length)  # what is only sent, or only received, needs none: see `ring`
    chain, back = legs(parts), way_back(hosts, parts)
    back_ways = [Route(one, other, f"mean {at}") for at, (one, other) in enumerate(pairwise(back))]
    on_ways = [Route(one, other, f"sum {at}") for at, ((one, _), (other, _)) in enumerate(pairwise(chain))]
    flows: list[Flow] = []
    for at, (holder, held) in enumerate(chain):
        if holder == host:
            last = at == len(chain) - 1
            come = on_ways[at - 1] if at else None
            go = next(iter(back_ways), None) if last else on_ways[at]
            begun = whole(span) if come is None and len(held) == 1 and not last else pieces
            flows.append([Act(each, come, held, go, divide=last) for each in begun])
    place = back.index(host)
    if place:
        go = back_ways[place] if place < len(back_ways) else None
        come = back_ways[place - 1]
        flows.append([Act(each, come, (), go, divide=False) for each in (pieces if go else whole(span))])
    return flows


BROADCAST_LABEL = "values"


def broadcast(
    hosts: Sequence[int], host: int, holder: int, part: int, span: ElementRange, length: int
) -> Sequence[Flow]:
    """Return what one host does for the array of a part that `holder` has, as `ring`."""
    count = len(hosts)
    distance = (hosts.index(host) - hosts.index(holder)) % count
    right = Route(host, hosts[(hosts.index(host) + 1) % count], BROADCAST_LABEL)
    left = Route(hosts[hosts.index(host) - 1], host, BROADCAST_LABEL)
    last = distance == count - 1
    if distance == 0:
        return [[Act(each, None, (part,), right, divide=False) for each in whole(span)]] if not last else []
    come = whole(span) if last else segments(span, length)
    return [[Act(each, left, (), None if last else right, divide=False) for each in come]]


class Terms:
    """The gradients that one host has of one flat block of variables."""

    def __init__(
        self, blocks: Mapping[int, Array], count: int, weights: Mapping[int, int] | None = None
    ) -> None:
        """Remember them; they are read only while a sum is made.

        Args:
            blocks: by part, flat arrays of floats of one length and dtype, which belong to the caller.
            weights: of all parts of the step, the numbers of examples, where the mean is weighted by them
                and they are not all the same; None: each part counts the same.
        """
        self._blocks = blocks
        self._weights = weights
        self._divisor = count if weights is None else sum(weights.values())

    def add(self, total: Array, span: ElementRange, parts: Sequence[int], *, begin: bool) -> None:
        """Add the gradients of `parts` in this order to `total`; `begin`: `total` holds nothing yet."""
        terms = [self._blocks[part][span.start : span.stop] for part in parts]
        if self._weights is not None:
            weights = [total.dtype.type(self._weights[part]) for part in parts]
            terms = [term * weight for term, weight in zip(terms, weights, strict=True)]
        if begin and len(terms) > 1:
            np.add(terms[0], terms[1], out=total)
        elif begin:
            total[...] = terms[0] if terms else 0
        for term in terms[min(2, len(terms)) if begin else 0 :]:
            np.add(total, term, out=total)

    def only(self, span: ElementRange, parts: Sequence[int]) -> Array | None:
        """Return the sum of the gradients of `parts` if it needs no addition, else None."""
        if len(parts) != 1 or self._weights is not None:
            return None
        return self._blocks[parts[0]][span.start : span.stop]

    def divide(self, total: Array) -> None:
        if self._divisor != 1:
            np.divide(total, total.dtype.type(self._divisor), out=total)


class Receive(NamedTuple):
    """The caller is to fill `block` with what comes next on a way, before it asks for the next step."""

    way: Route
    block: Array


class SendBlock(NamedTuple):
    """The caller is to send `block` on a way, now or later; it stays as it is until it has arrived."""

    way: Route
    block: Array


def carry_out(flow: Flow, terms: Terms, mean: Array) -> Iterator[Receive | SendBlock]:
    """Carry out the acts of a flow, and yield what the caller has to send and to receive.

    A segment of `mean` is written again only after its last content has arrived at another host, as what is
    written there was made from it.

    Args:
        mean: of the block's length and dtype, the caller's: sums, and in the end the mean.
    """
    for act in flow:
        block = mean[act.span.start : act.span.stop]
        if act.receive is not None:
            yield Receive(act.receive, block)
        elif not act.divide and act.send is not None and (own := terms.only(act.span, act.add)) is not None:
            yield SendBlock(act.send, own)
            continue
        terms.add(block, act.span, act.add, begin=act.receive is None)
        if act.divide:
            terms.divide(block)
        if act.send is not None:
            yield SendBlock(act.send, block)


_WORDS = 3
"""The step, the attempt and the number of lists come before the lengths."""


def head_of(step: int, attempt: int, lengths: Sequence[int]) -> Array:
    return np.array([step, attempt, len(lengths), *lengths], np.int64)


def empty_head(lists: int) -> Array:
    return np.empty(_WORDS + lists, np.int64)


def lengths_in(head: Array, step: int, attempt: int, most: Sequence[int]) -> list[int]:
    """Return the length of each list that a head announces.

    Args:
        most: for each list, the rows of its table.

    Raises:
        PeerRefusedError: it is of other lists, or a list has more rows than its table.
    """
    words = [int(word) for word in head]
    expected = [step, attempt, len(most)]
    if words[:_WORDS] != expected:
        raise PeerRefusedError(
            "[step, attempt, number of lists] of the rows of tables: expected "
            f"{expected}, found {words[:_WORDS]}; do both ends run the same version and program?"
        )
    for length, rows in zip(words[_WORDS:], most, strict=True):
        if not 0 <= length <= rows:
            raise PeerRefusedError(
                f"the rows of a table: expected a list of 0 to {rows}, found one of {length}; do both ends "
                "run the same version and program?"
            )
    return words[_WORDS:]


def check_ids(ids: Array, before: int, rows: int) -> None:
    """Refuse ids that do not ascend from the one `before` them (-1: there is none) to the table's last row.

    Raises:
        PeerRefusedError: they do not.
    """
    if not are_rows(ids, rows, before):
        raise PeerRefusedError(
            f"the rows of a table: expected ascending numbers from {before + 1} to {rows - 1}, found others; "
            "do both ends run the same version and program?"
        )
