"""Carrying out the acts of a flow on arrays; the way on which bytes travel is the caller's."""

from collections.abc import Iterator
from typing import NamedTuple

from dtrain.collectives.between_hosts.acts import Flow, Way
from dtrain.collectives.between_hosts.terms import Terms
from dtrain.types import Array


class Receive(NamedTuple):
    """The caller is to fill `block` with what comes next on a way, before it asks for the next step."""

    way: Way
    block: Array


class Send(NamedTuple):
    """The caller is to send `block` on a way, now or later; it stays as it is until it has arrived."""

    way: Way
    block: Array


def carry_out(flow: Flow, terms: Terms, mean: Array) -> Iterator[Receive | Send]:
    """Carry out the acts of a flow, and yield what the caller has to send and to receive.

    A segment of `mean` is written again only after its last content has arrived at another host, as what is
    written there was made from it.

    Args:
        flow: the acts.
        terms: what is added up at this host.
        mean: of the block's length and dtype, the caller's: sums, and in the end the mean.
    """
    for act in flow:
        block = mean[act.span.start : act.span.stop]
        if act.receive is not None:
            yield Receive(act.receive, block)
        elif not act.divide and act.send is not None and (own := terms.only(act.span, act.add)) is not None:
            yield Send(act.send, own)
            continue
        terms.add(block, act.span, act.add, begin=act.receive is None)
        if act.divide:
            terms.divide(block)
        if act.send is not None:
            yield Send(act.send, block)
