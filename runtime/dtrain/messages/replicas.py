"""Messages by which replicas without servers meet (docs/design/collectives.md#meeting)."""

import msgspec

from dtrain.messages.message import Message
from dtrain.state.fit_state import FitState


class Seat(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A live replica; those with one `host` share memory, and `address` is where it listens for streams."""

    rank: int
    task: str
    address: str
    host: str = ""


class Enter(Message, frozen=True, gc=False, kw_only=True):
    """Replica to any task that is in this call of `fit`, at first the leader: it would like to take part.

    The answer is `Entered`, as soon as training begins, `Over`, a `Refusal`, or `NotReady` of a task that
    does not lead.

    Attributes:
        host: says which replicas share memory with it, where the run may have several hosts.
    """

    generation: int
    plan_hash: str
    slots: tuple[str, ...] = ()
    host: str = ""
    streams: str = ""


class Entered(Message, frozen=True, gc=False, kw_only=True):
    """The answer to `Enter`: how training began, for every replica the same but for `notify_sockets`.

    The file descriptors of the memory that is shared come with it, then one for each of `notify_sockets`;
    to a replica of another host none.

    Attributes:
        notify_sockets: the ranks to which the sockets lead.
        joins: whether this replica comes later than others.
        members: the ranks of the members on this host, in the answer to a replica that comes later.
        seats: by host, its replicas; none where all share memory. The first one makes that memory.
    """

    state: FitState
    leader: int
    directory: str = ""
    notify_sockets: tuple[int, ...] = ()
    concluded: bool = False
    joins: bool = False
    members: tuple[int, ...] = ()
    seats: dict[int, tuple[Seat, ...]] = msgspec.field(default_factory=dict)


class Over(Message, frozen=True, gc=False, kw_only=True):
    """The answer to `Enter` where that call of `fit` has ended: the one that is under way now."""

    generation: int


class NotifySocket(Message, frozen=True, gc=False, kw_only=True):
    """Replica that would like to become a member to each member: a socket between the two comes with it."""

    generation: int
    rank: int
