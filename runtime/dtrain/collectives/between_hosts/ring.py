"""The ring: each host sends to the one on its right, and the fewest bytes travel (Patarasu and Yuan 2009).

A slice has a chunk for each host. Chunk c begins at host c of the ring, goes round once, and each host adds
its parts; the last one divides. Then the means go round. A host sends 2 (h - 1) / h of the slice for h hosts.
The order of the sums is another one for each chunk, and one and the same at all hosts.
"""

from collections.abc import Sequence

from dtrain.collectives.between_hosts.acts import Act, Flow, PartsOf, Way
from dtrain.collectives.between_hosts.segments import Span, segments, slices, whole

LABEL = "ring"


def ring(hosts: Sequence[int], host: int, parts: PartsOf, span: Span, length: int) -> Sequence[Flow]:
    """Return what one host does for a slice.

    Args:
        hosts: all of them, in the order of the ring.
        host: which of them does it.
        parts: of every host; one without parts passes sums on.
        span: the slice.
        length: of a segment, in elements.
    """
    count, place = len(hosts), hosts.index(host)
    own = parts[host]
    chunks = [
        Span(span.start + start, span.start + stop) for start, stop in slices(span.stop - span.start, count)
    ]
    if count == 1:
        return [[Act(each, None, own, None, divide=True) for each in segments(span, length)]]
    right = Way(host, hosts[(place + 1) % count], LABEL)
    left = Way(hosts[place - 1], host, LABEL)
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
