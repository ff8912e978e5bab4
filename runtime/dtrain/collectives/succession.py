"""The order in which replicas take over from one that died.

The rule *Heirs* (docs/design/collectives.md#heirs): what belongs to a member falls to the next live one in
the order of ranks, after the last to the first. A process whose socket is at its end is gone for good and has
written its last word. So a replica that finds all before it gone is the only one that can find so.
"""

from collections.abc import Container, Sequence


def heir(order: Sequence[int], place: int, dead: Container[int]) -> int:
    """Return the rank that has what belongs to `order[place]`; one of `order` must be alive."""
    for turn in range(len(order)):
        rank = order[(place + turn) % len(order)]
        if rank not in dead:
            return rank
    raise AssertionError("a replica that asks is alive itself")
