"""The rows of tables that the gradients of a step list: every host gets those that others have computed.

The rule *Lists* (docs/design/collectives.md#between-hosts):

1. Each host sends its own lists to every other one, on streams of their own, before the sums begin, and
   receives theirs after them. So they travel side by side with the sums.
2. They are written where no replica of this host writes: an attempt that was given up may still be under way
   while a part of it is computed here.
3. Pages are taken piece by piece, before the bytes of a piece come; those of rows when all ids are sound.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from dtrain.collectives.between_hosts.all_reduce import (
    Span,
    Way,
    check_ids,
    empty_head,
    head_of,
    lengths_in,
    segment_length,
    segments,
)
from dtrain.collectives.between_hosts.follower import Begin
from dtrain.errors import PeerError, PeerRefusedError, SharedMemoryError, TrainingError
from dtrain.roles.collective.between_hosts.ways import Ways
from dtrain.roles.collective.given_rows import ID_BYTES, GivenRows
from dtrain.wire.streams import Incoming

_LABEL = "rows"

Held = Mapping[int, Sequence[int]]
"""By host, the parts that count and that it has, ascending."""


class RowExchange:
    """The lists of one host; every method raises as `Reduction.run`."""

    def __init__(self, host: int, rows: GivenRows, parts: int) -> None:
        """Remember the memory of rows: of `parts` parts computed here, and behind them of those of a step."""
        self._host = host
        self._rows = rows
        self._parts = parts

    def send(self, begin: Begin, held: Held, ways: Ways, deadline: float) -> None:
        """Send this host's lists to all others, and write them to the places of the step."""
        own = held[self._host]
        lists = [list_ for part in own for list_ in self._rows.lists(part)]
        head = head_of(begin.step, begin.attempt, [ids.size for ids, _ in lists])
        blocks = [head, *(block for list_ in lists for block in list_ if block.size)]
        for other in begin.hosts if own else ():
            if other != self._host:
                with _blaming(other, ways):
                    out = ways.outgoing(Way(self._host, other, _LABEL), deadline)
                    for block in blocks:
                        out.send(block)
        with _blaming(self._host, ways):
            for part in own:
                self._rows.copy(part, self._parts + part)

    def receive(self, begin: Begin, held: Held, ways: Ways, deadline: float) -> None:
        """Receive the lists of all other hosts."""
        for other in begin.hosts:
            if other != self._host and held[other]:
                with _blaming(other, ways):
                    come = ways.incoming(Way(other, self._host, _LABEL), deadline)
                    try:
                        self._receive(come, begin, held[other], deadline)
                    except PeerRefusedError as error:
                        raise PeerRefusedError(f"{come.peer}: {error}") from None

    def _receive(self, come: Incoming, begin: Begin, parts: Sequence[int], deadline: float) -> None:
        tables = self._rows.tables
        places = [(self._parts + part, number) for part in parts for number in range(len(tables))]
        head = empty_head(len(places))
        come.receive(head, deadline)
        lengths = lengths_in(head, begin.step, begin.attempt, [tables[number].rows for _, number in places])
        for (place, number), length in zip(places, lengths, strict=True):
            self._receive_list(come, place, number, length, deadline)

    def _receive_list(self, come: Incoming, place: int, number: int, length: int, deadline: float) -> None:
        rows, table = self._rows, self._rows.tables[number]
        before = -1
        for span in segments(Span(0, length), segment_length(ID_BYTES)):
            ids = rows.room_for_ids(place, number, span)
            come.receive(ids, deadline)
            check_ids(ids, before, table.rows)
            before = int(ids[-1])
        for span in segments(Span(0, length), segment_length(table.row_nbytes)):
            come.receive(rows.room_for_rows(place, number, span), deadline)
        rows.set_length(place, number, length)


@contextmanager
def _blaming(other: int, ways: Ways) -> Iterator[None]:
    """End the sum for all others, too, if it fails here because of a host."""
    try:
        yield
    except SharedMemoryError as error:  # this machine's, which would have no more of it for another attempt
        raise TrainingError(str(error)) from None
    except PeerError as error:
        ways.blame(other)
        ways.abort(str(error))
        raise
