"""The sums of one step at one host: of trained variables their mean is made, of others all values come, and
of tables all rows that gradients list.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dtrain.collectives.between_hosts.all_reduce import (
    Span,
    Terms,
    broadcast,
    ordered_chain,
    ring,
    segment_length,
)
from dtrain.collectives.between_hosts.follower import Begin
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.between_hosts.exchange import Sum, exchange
from dtrain.roles.collective.between_hosts.row_exchange import RowExchange
from dtrain.roles.collective.between_hosts.ways import Ways
from dtrain.types import Array, Blocks


class Counted(NamedTuple):
    """Which parts a mean has: those with examples and without NaN, the divisor, and weights if it has any."""

    parts: Sequence[int]
    divisor: int
    weights: Mapping[int, int] | None


class Reduction:
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
        """Remember the arrays: `[part][group]`, and by trained group the mean; the rows, if there are any."""
        self._host = host
        self._gradients = gradients
        self._means = means
        self._trainable = trainable
        self._schedule = ordered_chain if deterministic else ring
        self._rows = rows

    @classmethod
    def of(cls, arena: Arena, host: int, *, deterministic: bool) -> "Reduction":
        """Return that of the arrays of an arena, for one of several hosts."""
        parts = range(arena.shape.parts)
        trainable = [group.trainable for group in arena.shape.plan.layout(0).groups]
        rows = RowExchange(host, arena.rows, len(parts)) if arena.rows.tables else None
        gradients = [arena.dense(part) for part in parts]
        return cls(host, gradients, arena.means, trainable, deterministic=deterministic, rows=rows)

    def run(self, begin: Begin, counted: Counted, ways: Ways, deadline: float) -> None:
        """Make the means; all hosts call this for the same step and attempt.

        Raises: as `exchange`; and
            TrainingError: this machine has no memory for the rows.
        """
        held = {
            host: tuple(part for part in begin.parts_of.get(host, ()) if part in counted.parts)
            for host in begin.hosts
        }
        if self._rows is not None:
            self._rows.send(begin, held, ways, deadline)
        self._sum_all(begin, counted, held, ways, deadline)
        if self._rows is not None:
            self._rows.receive(begin, held, ways, deadline)
        ways.flush(deadline)

    def _sum_all(
        self,
        begin: Begin,
        counted: Counted,
        held: Mapping[int, Sequence[int]],
        ways: Ways,
        deadline: float,
    ) -> None:
        block = 0
        own = held[self._host]
        for group, trained in enumerate(self._trainable):
            if trained and counted.parts:
                mean = self._means[group]
                terms = Terms(
                    {part: self._gradients[part][group] for part in own}, counted.divisor, counted.weights
                )
                self._sum(
                    Sum(begin.step, begin.attempt, block, mean.size), begin, held, terms, mean, ways, deadline
                )
                block += 1
                continue
            for part in counted.parts:
                self._bring(
                    Sum(begin.step, begin.attempt, block, part), begin, held, part, group, ways, deadline
                )
                block += 1

    def _sum(
        self,
        which: Sum,
        begin: Begin,
        held: Mapping[int, Sequence[int]],
        terms: Terms,
        mean: Array,
        ways: Ways,
        deadline: float,
    ) -> None:
        if not mean.size:  # the group has tables alone
            return
        span, length = Span(0, mean.size), segment_length(mean.itemsize)
        flows = self._schedule(begin.hosts, self._host, held, span, length)
        exchange(which, flows, terms, mean, ways, deadline)

    def _bring(
        self,
        which: Sum,
        begin: Begin,
        held: Mapping[int, Sequence[int]],
        part: int,
        group: int,
        ways: Ways,
        deadline: float,
    ) -> None:
        values = self._gradients[part][group]
        if not values.size:
            return
        holder = next(host for host in begin.hosts if part in held[host])
        span, length = Span(0, values.size), segment_length(values.itemsize)
        flows = broadcast(begin.hosts, self._host, holder, part, span, length)
        exchange(which, flows, Terms({part: values}, 1), values, ways, deadline)
