"""Messages by which replicas without servers meet: rule *Meeting* (docs/design/collectives.md#meeting)."""

import msgspec

from dtrain.messages.between_hosts import Seat
from dtrain.messages.message import Message
from dtrain.state.fit_state import FitState


class Enter(Message, frozen=True, gc=False, kw_only=True):
    """Replica to any task that is in this call of `fit`, at first the leader: it would like to take part.

    The answer is `Entered`, as soon as training begins, `Over`, a `Refusal`, or `NotReady` of a task that
    does not lead.

    Attributes:
        generation: the call of `fit`; 0: a loop of the program's own.
        plan_hash: of the variables that its program builds.
        optimizer: the slots of its program's optimizer.
        host: says which replicas share memory with it, where the run may have several hosts.
        streams: the address at which it takes streams of other hosts.
    """

    generation: int
    plan_hash: str
    slots: tuple[str, ...] = ()
    host: str = ""
    streams: str = ""


class Entered(Message, frozen=True, gc=False, kw_only=True):
    """The answer to `Enter`: how training began, for every replica the same but for `bells`.

    The file descriptors of the memory that is shared come with it, then one socket for each of `bells`; to a
    replica of another host none.

    Attributes:
        state: at the beginning, without the plan and the model, which every program has itself.
        leader: the rank that leads now.
        ranks: how many replicas there may ever be.
        directory: where the leader saves.
        bells: the ranks to which the sockets lead.
        concluded: whether the leader has ended this call of `fit`.
        joins: whether this replica comes later than others.
        seats: by host, its replicas; none where all share memory. The first one makes that memory.
    """

    state: FitState
    leader: int
    ranks: int = 0
    directory: str = ""
    bells: tuple[int, ...] = ()
    concluded: bool = False
    joins: bool = False
    seats: dict[int, tuple[Seat, ...]] = msgspec.field(default_factory=dict)


class Over(Message, frozen=True, gc=False, kw_only=True):
    """The answer to `Enter` where that call of `fit` has ended: the one that is under way now."""

    generation: int


class Bell(Message, frozen=True, gc=False, kw_only=True):
    """Replica that would like to become a member to each member: a socket between the two comes with it.

    The answer is the same message, or `Over`.
    """

    generation: int
    rank: int
