"""Acts: what one host does with one segment after another."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dtrain.collectives.between_hosts.segments import Span

PartsOf = Mapping[int, Sequence[int]]
"""By the number of each host, the parts whose gradients it has, ascending."""


class Way(NamedTuple):
    """One direction from a host to another one, on which segments keep their order.

    Attributes:
        source: the host that sends.
        target: the host that receives.
        label: tells several ways between the same two hosts apart.
    """

    source: int
    target: int
    label: str


class Act(NamedTuple):
    """One segment at one host: it comes or begins here, gradients are added, it goes on or ends here.

    Attributes:
        span: its elements.
        receive: the way on which it comes; None: it begins here.
        add: the parts whose gradients are added, in this order.
        send: the way on which it goes on; None: to no host.
        divide: whether it then has all parts, and is divided.
    """

    span: Span
    receive: Way | None
    add: Sequence[int]
    send: Way | None
    divide: bool


Flow = Sequence[Act]
"""Acts in their order, which receive on one way at most. The flows of a host go on side by side."""
