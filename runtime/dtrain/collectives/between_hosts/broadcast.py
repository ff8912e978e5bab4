"""The broadcast of an array of one host to all others, each of which passes it on to the next."""

from collections.abc import Sequence

from dtrain.collectives.between_hosts.acts import Act, Flow, Way
from dtrain.collectives.between_hosts.segments import Span, segments, whole

LABEL = "values"


def broadcast(
    hosts: Sequence[int], host: int, holder: int, part: int, span: Span, length: int
) -> Sequence[Flow]:
    """Return what one host does for the array of a part that `holder` has; the rest as of `ring.ring`."""
    count = len(hosts)
    distance = (hosts.index(host) - hosts.index(holder)) % count
    right = Way(host, hosts[(hosts.index(host) + 1) % count], LABEL)
    left = Way(hosts[hosts.index(host) - 1], host, LABEL)
    last = distance == count - 1
    if distance == 0:
        return [[Act(each, None, (part,), right, divide=False) for each in whole(span)]] if not last else []
    come = whole(span) if last else segments(span, length)
    return [[Act(each, left, (), None if last else right, divide=False) for each in come]]
