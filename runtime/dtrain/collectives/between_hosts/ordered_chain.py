"""The ordered chain: sums in the order of the parts, whatever hosts have them.

The host of part 0 begins; each host adds its parts one by one to what it receives, and sends it on to the
host of the next part. The host of the last part has the left fold over all parts and divides. The means
then travel back. So the bits are those of one process, on any number of hosts: rule *Determinism*
(docs/design/protocol.md#determinism).
Hosts whose parts are neighbours stand in the chain once; others come again, once for each run of parts.
Segments follow each other, so that all hosts work at the same time.
"""

from collections.abc import Sequence
from itertools import groupby, pairwise

from dtrain.collectives.between_hosts.acts import Act, Flow, PartsOf, Way
from dtrain.collectives.between_hosts.segments import Span, segments, whole


def legs(parts: PartsOf) -> Sequence[tuple[int, Sequence[int]]]:
    """Return the runs of parts that follow each other at one host, as (host, parts)."""
    holders = sorted((part, host) for host, held in parts.items() for part in held)
    runs = groupby(holders, key=lambda holder: holder[1])
    return [(host, tuple(part for part, _ in run)) for host, run in runs]


def way_back(hosts: Sequence[int], parts: PartsOf) -> Sequence[int]:
    """Return the hosts in the order in which they get the means: from the last of the chain to the first,
    then those without parts.
    """
    backwards = [host for host, _ in reversed(legs(parts))]
    return list(dict.fromkeys([*backwards, *hosts]))


def ordered_chain(hosts: Sequence[int], host: int, parts: PartsOf, span: Span, length: int) -> Sequence[Flow]:
    """Return what one host does for a slice; arguments as of `ring.ring`. At least one host has a part."""
    pieces = segments(span, length)  # what is only sent, or only received, needs none: see `ring`
    chain, back = legs(parts), way_back(hosts, parts)
    back_ways = [Way(one, other, f"mean {at}") for at, (one, other) in enumerate(pairwise(back))]
    on_ways = [Way(one, other, f"sum {at}") for at, ((one, _), (other, _)) in enumerate(pairwise(chain))]
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
