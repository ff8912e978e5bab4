"""The sums of one step at one host: means, values of all, and rows of tables, carried out on streams.

A lane is a slice of the variables with streams of its own; at each host one member carries it out. Streams
belong to one attempt, as their names say: after a failure all are closed and others opened, so that no byte
of a sum that was given up is ever taken for one of the next.

The rule *Lists*:

1. Each host sends its own lists to every other one, on streams of their own, before the sums begin, and
   receives theirs after them. So they travel side by side with the sums.
2. They are written where no replica of this host writes: an attempt that was given up may still be under way
   while a part of it is computed here.
3. Pages are taken piece by piece, before the bytes of a piece come; those of rows when all ids are sound.
"""

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from dtrain.collectives.all_reduce import (
    ElementRange,
    Flow,
    Route,
    SendBlock,
    Terms,
    broadcast,
    carry_out,
    check_ids,
    empty_head,
    head_of,
    lengths_in,
    ordered_chain,
    ring,
    segment_length,
    segments,
)
from dtrain.errors import PeerError, PeerRefusedError, SharedMemoryError, TrainingError
from dtrain.process.clock import SYSTEM, Clock
from dtrain.roles.collective.shared_records import ID_BYTES, GivenRows
from dtrain.types import Array, Blocks
from dtrain.wire.streams import Incoming, Outgoing

Open = Callable[[str, str, float], Outgoing]
"""Opens a stream to a task under a name, within so many seconds."""
Take = Callable[[str | Collection[str], str, float, Callable[[], str | None]], Incoming]
"""Waits for a stream of a task, or of any of several, under a name until a deadline, or until it is given up:
see `Listener`.
"""


class Ways:
    """The streams of one lane. Several threads may use it, but one way only one of them."""

    def __init__(self, tasks: Mapping[int, str], name: str, open_: Open, take: Take) -> None:
        """Open nothing yet; `name` tells the membership, the attempt and the lane."""
        self.tasks = tasks
        self._name = name
        self._open = open_
        self._take = take
        self._outgoing: dict[Route, Outgoing] = {}
        self._incoming: dict[Route, Incoming] = {}
        self._ended: str | None = None
        self.blamed = -1

    def outgoing(self, way: Route, deadline: float) -> Outgoing:
        if (stream := self._outgoing.get(way)) is None:
            task = self.tasks[way.target]
            stream = self._open(task, f"{self._name} {way.label}", max(0.0, deadline - time.monotonic()))
            self._outgoing[way] = stream
            self._end_late(stream)
        return stream

    def incoming(self, way: Route, deadline: float) -> Incoming:
        if (stream := self._incoming.get(way)) is None:
            name = f"{self._name} {way.label}"
            stream = self._take(self.tasks[way.source], name, deadline, lambda: self._ended)
            self._incoming[way] = stream
            self._end_late(stream)
        return stream

    def flush(self, deadline: float) -> None:
        for stream in list(self._outgoing.values()):
            stream.flush(deadline)

    def blame(self, host: int) -> None:
        """Note which host makes a sum fail; only the first one counts."""
        if self.blamed < 0 and self._ended is None:
            self.blamed = host

    def abort(self, reason: str) -> None:
        """From any thread: make all waits, also later ones, raise PeerLostError with this reason."""
        self._ended = self._ended or reason
        for stream in self._streams():
            stream.abort(reason)

    def close(self) -> None:
        for stream in self._streams():
            stream.close()

    def _streams(self) -> list[Incoming | Outgoing]:
        return [*self._outgoing.values(), *self._incoming.values()]

    def _end_late(self, stream: Incoming | Outgoing) -> None:
        if self._ended is not None:
            stream.abort(self._ended)


class HostSum(NamedTuple):
    """Which sum goes over the streams; both ends of each must mean the same one.

    Attributes:
        attempt: how often this step was begun before.
    """

    step: int
    attempt: int
    block: int
    elements: int


def exchange(
    which: HostSum,
    flows: Sequence[Flow],
    terms: Terms,
    mean: Array,
    ways: Ways,
    deadline: float,
    clock: Clock = SYSTEM,
) -> None:
    """Carry flows out side by side; when this returns, this host has the mean and the others have its bytes.

    Args:
        mean: of the whole block; only the slice is written. It must not change before `ways.flush` returns.
        deadline: for each wait, in seconds of `time.monotonic`.

    Raises:
        PeerLostError: a peer is gone, or `ways` were aborted. Then all waits on the ways are over.
        WaitTimeoutError: a peer was silent until the deadline.
        PeerRefusedError: a peer means another sum.
    """
    errors: list[Exception] = []
    lock = threading.Lock()

    def carried(flow: Flow) -> None:
        try:
            _carry(which, flow, terms, mean, ways, deadline)
        except Exception as error:  # raised below, in the thread that waits for all
            with lock:
                errors.append(error)
            ways.abort(str(error))

    others = [clock.start(partial(carried, flow), "flow of a sum") for flow in flows[1:]]
    for flow in flows[:1]:
        carried(flow)
    for other in others:
        other.join()  # each of its waits has the deadline, or was aborted
    if errors:
        raise errors[0]


def _carry(which: HostSum, flow: Flow, terms: Terms, mean: Array, ways: Ways, deadline: float) -> None:
    begun: set[Route] = set()
    for each in carry_out(flow, terms, mean):
        is_first = each.way not in begun
        begun.add(each.way)
        try:
            if isinstance(each, SendBlock):
                out = ways.outgoing(each.way, deadline)
                if is_first:
                    out.send(np.array(which, np.int64))
                out.send(each.block)
            else:
                come = ways.incoming(each.way, deadline)
                if is_first:
                    _check_head(come, which, deadline)
                come.receive(each.block, deadline)
        except PeerError:
            ways.blame(each.way.target if isinstance(each, SendBlock) else each.way.source)
            raise


def _check_head(come: Incoming, which: HostSum, deadline: float) -> None:
    told = np.empty(len(which), np.int64)
    come.receive(told, deadline)
    if told.tolist() != list(which):
        raise PeerRefusedError(
            f"{come.peer} sends {HostSum(*told.tolist())}, and {which} is expected; do both ends run the "
            "same version and program?"
        )


class SumAttempt(NamedTuple):
    """One attempt at a sum.

    Attributes:
        hosts: who sums, each for its host, in one order for all.
        parts_of: by host, the parts that count and that it has, ascending.
    """

    step: int
    attempt: int
    hosts: Sequence[int]
    parts_of: Mapping[int, Sequence[int]]


_LABEL = "rows"
Held = Mapping[int, Sequence[int]]
"""By host, the parts that count and that it has, ascending."""


class RowExchange:
    """The lists of one host; every method raises as `HostReduction.run`."""

    def __init__(self, host: int, rows: GivenRows, parts: int, places: Sequence[int]) -> None:
        """Begin; `places` are those of the parts in the memory of hosts, and so many more lie behind."""
        self._host = host
        self._rows = rows
        self._parts = parts
        self._places = places

    def send(self, begin: SumAttempt, held: Held, ways: Ways, deadline: float) -> None:
        own = held[self._host]
        lists = [list_ for part in own for list_ in self._rows.lists(self._places[part])]
        head = head_of(begin.step, begin.attempt, [ids.size for ids, _ in lists])
        blocks = [head, *(block for list_ in lists for block in list_ if block.size)]
        for other in begin.hosts if own else ():
            if other != self._host:
                with _blaming(other, ways):
                    out = ways.outgoing(Route(self._host, other, _LABEL), deadline)
                    for block in blocks:
                        out.send(block)
        with _blaming(self._host, ways):
            for part in own:
                self._rows.copy(self._places[part], self._parts + self._places[part])

    def receive(self, begin: SumAttempt, held: Held, ways: Ways, deadline: float) -> None:
        for other in begin.hosts:
            if other != self._host and held[other]:
                with _blaming(other, ways):
                    come = ways.incoming(Route(other, self._host, _LABEL), deadline)
                    try:
                        self._receive(come, begin, held[other], deadline)
                    except PeerRefusedError as error:
                        raise PeerRefusedError(f"{come.peer}: {error}") from None

    def _receive(self, come: Incoming, begin: SumAttempt, parts: Sequence[int], deadline: float) -> None:
        tables = self._rows.tables
        places = [
            (self._parts + self._places[part], number) for part in parts for number in range(len(tables))
        ]
        head = empty_head(len(places))
        come.receive(head, deadline)
        lengths = lengths_in(head, begin.step, begin.attempt, [tables[number].rows for _, number in places])
        for (place, number), length in zip(places, lengths, strict=True):
            self._receive_list(come, place, number, length, deadline)

    def _receive_list(self, come: Incoming, place: int, number: int, length: int, deadline: float) -> None:
        rows, table = self._rows, self._rows.tables[number]
        before = -1
        for span in segments(ElementRange(0, length), segment_length(ID_BYTES)):
            ids = rows.room_for_ids(place, number, span)
            come.receive(ids, deadline)
            check_ids(ids, before, table.rows)
            before = int(ids[-1])
        for span in segments(ElementRange(0, length), segment_length(table.row_nbytes)):
            come.receive(rows.room_for_rows(place, number, span), deadline)
        rows.set_length(place, number, length)


@contextmanager
def _blaming(other: int, ways: Ways) -> Iterator[None]:
    """End a sum for all other hosts, too, if it fails here because of one."""
    try:
        yield
    except SharedMemoryError as error:  # this machine's, which would have no more of it for another attempt
        raise TrainingError(str(error)) from None
    except PeerError as error:
        ways.blame(other)
        ways.abort(str(error))
        raise


class MeanTerms(NamedTuple):
    """Which parts a mean has, the divisor, and weights if it has any."""

    parts: Sequence[int]
    divisor: int
    weights: Mapping[int, int] | None


class HostReduction:
    """The arrays of one host between which and the streams a step's sums go.

    All arrays are flat, `[group]`, and belong to the caller; `gradients` has room for every part of a step,
    also for those of other hosts.
    """

    def __init__(
        self,
        host: int,
        gradients: Sequence[Blocks],
        means: Mapping[int, Array],
        trainable: Sequence[bool],
        *,
        deterministic: bool,
        rows: RowExchange | None = None,
    ) -> None:
        self._host = host
        self._gradients = gradients
        self._means = means
        self._trainable = trainable
        self._schedule = ordered_chain if deterministic else ring
        self._rows = rows

    def run(
        self,
        begin: SumAttempt,
        counted: MeanTerms,
        ways: Ways,
        deadline: float,
        spans: Mapping[int, ElementRange],
    ) -> None:
        """Make the means of some elements of each group. All hosts call this for the same step, attempt and
        elements. Raises as `exchange`, and a TrainingError if there is no memory for the rows.
        """
        held = {
            host: tuple(part for part in begin.parts_of.get(host, ()) if part in counted.parts)
            for host in begin.hosts
        }
        if self._rows is not None:
            self._rows.send(begin, held, ways, deadline)
        blocks = itertools.count()
        for group, span in spans.items():
            if self._trainable[group] and counted.parts:
                own = {part: self._gradients[part][group] for part in held[self._host]}
                terms, mean = Terms(own, counted.divisor, counted.weights), self._means[group]
                flows = self._schedule(begin.hosts, self._host, held, span, segment_length(mean.itemsize))
                which = HostSum(begin.step, begin.attempt, next(blocks), span.stop - span.start)
                exchange(which, flows, terms, mean, ways, deadline)
                continue
            for part in counted.parts:
                values = self._gradients[part][group]
                holder = next(host for host in begin.hosts if part in held[host])
                length = segment_length(values.itemsize)
                flows = broadcast(begin.hosts, self._host, holder, part, span, length)
                which = HostSum(begin.step, begin.attempt, next(blocks), part)
                exchange(which, flows, Terms({part: values}, 1), values, ways, deadline)
        if self._rows is not None:
            self._rows.receive(begin, held, ways, deadline)
        ways.flush(deadline)
