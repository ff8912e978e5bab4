"""The phases of a replica, each with the data that only it has, and the turn that ps:0 gives.

pulling   servers have been asked for their values; in sync all must be of one version, the newest
ready     the values are there (and, in async, ps:0's ticket): compute a gradient
pushing   the gradient is on its way to every server; their answers carry the verdict and the next values
draining  the servers are in a later term: what was asked in the one before is still being answered
closing   the last step has been made and the final values are here; the leader has not saved them yet
finished  the leader has saved them
"""

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType

from msgspec import Struct

from dtrain.messages import AnyMessage, Reply, Row
from dtrain.protocol.part_dealer import NO_PART

Outgoing = tuple[int, AnyMessage]
"""A server's index and the message for it. A Push is accompanied by that server's gradient blocks, a Lookup
by ids.
"""


class Pulling(Struct, frozen=True, gc=False):
    """Servers have been asked for their values.

    Attributes:
        aged: whether the values of the other servers have aged while ps:0 made the replica wait.
        awaited: the version that a leader which does not train waits for.
        last: whether these are the final values, which are asked for once.
    """

    aged: bool = False
    awaited: int = 0
    last: bool = False


class Ready(Struct, frozen=True, gc=False):
    """The values are there: a gradient may be computed."""


class Pushing(Struct, frozen=True, gc=False):
    """A gradient is on its way.

    Attributes:
        ordinal: how many contributions to the same version were held before it.
        replies: of the servers that have answered; filled as they come.
        for_others: the pushes that wait until ps:0 has judged.
    """

    ordinal: int
    replies: dict[int, Reply]
    for_others: list[Outgoing]


class Draining(Struct, frozen=True, gc=False):
    """The replica begins again in a later term, when everything that it had asked before is answered."""


class Closing(Struct, frozen=True, gc=False):
    """The final values are here and not saved yet."""


class Finished(Struct, frozen=True, gc=False):
    """Training has ended.

    Attributes:
        rows: the numbers of every epoch, in a task that was told of the end.
    """

    rows: Mapping[int, Row] = MappingProxyType({})


Phase = Pulling | Ready | Pushing | Draining | Closing | Finished
READY = Ready()


class Permit(Enum):
    """Whether a replica may push once more."""

    GRANTED = auto()
    HELD = auto()  # to the leader: the next version waits for its order, and so does the permit
    NONE = auto()


class Turn(Struct, frozen=True, gc=False):
    """The last word of ps:0 on what a replica computes next.

    Attributes:
        permit: whether it may push.
        part: the number of the part, if it may.
        repairs: whether the part makes no step, because ps:0 has it already and another server may not.
        settled: False where ps:0 makes nothing more before every server has what it has.
    """

    permit: Permit = Permit.GRANTED
    part: int = NO_PART
    repairs: bool = False
    settled: bool = True
