"""Messages by which replicas without servers meet and hosts agree on a step (docs/design/collectives.md).

Each says all that its sender knows of the step, so that the newest one is enough: one that is lost, comes
twice or comes late does no harm.
"""

import msgspec

from dtrain.messages.message import Message
from dtrain.state.fit_state import FitState, Sums


class PartFacts(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A complete gradient.

    Attributes:
        examples: of how many it is the mean; 0: there is none.
    """

    part: int
    examples: int
    finite: bool
    rank: int
    sums: Sums | None = None


class Seat(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A live replica; those with one `host` share memory, and `address` is where it listens for streams."""

    rank: int
    task: str
    address: str
    host: str = ""


class HostState(Message, frozen=True, gc=False, kw_only=True):
    """A host to the leader: how far it is.

    Attributes:
        term: of the leader that it follows; it heeds no leader of an earlier one.
        step: the version that it makes; all before it are in its variables.
        has_mean: whether it has the mean of its newest `attempt`, whole.
        blamed: the host that it waited for when the attempt failed; -1: it does not know.
        written: the position of the newest record of the leader's ledger that it has.
        arrived: where it leads: the position of its ledger as its leader arrived in this step, from which on
            nothing more is written before the step is over; -1: it has not arrived.
        void: where it leads: whether the step is to make no version.
        dealt: whether it has heard that the parts of this step are dealt: no leader holds it any more.
    """

    term: int
    host: int
    membership: int
    hosts: tuple[int, ...]
    step: int
    parts: tuple[PartFacts, ...]
    seats: tuple[Seat, ...]
    attempt: int = -1
    has_mean: bool = False
    failed: bool = False
    blamed: int = -1
    written: int = -1
    arrived: int = -1
    void: bool = False
    dealt: bool = False
    joining: bool = False


class Direction(Message, frozen=True, gc=False, kw_only=True):
    """The leader to every host: what is to be done. All steps before `step` are committed.

    Attributes:
        hosts: those that take part. A host that is not among them has been left behind.
        step: the version that is made; -1: the leader is new and asks how far all are.
        parts: of the attempt, all that count or are empty, in their order.
        seats: by host; those of the attempt where there is one.
        written: of the attempt, the position up to which every host must have the leader's records.
        held: how many replicas live, where these are too few to begin the step; -1: it is not held.
    """

    term: int
    membership: int
    hosts: tuple[int, ...]
    step: int = -1
    due: dict[int, tuple[int, ...]] = msgspec.field(default_factory=dict)
    attempt: int = -1
    parts: tuple[PartFacts, ...] = ()
    seats: dict[int, tuple[Seat, ...]] = msgspec.field(default_factory=dict)
    written: int = -1
    void: bool = False
    held: int = -1
    silent: tuple[int, ...] = ()


class StepCall(Message, frozen=True, gc=False, kw_only=True):
    """A host to the leader: a collective call that a part makes while it is computed, or the end of the part.

    The leader tells all other hosts. The arrays of a call follow the message.

    Attributes:
        number: of the call, from 0; at the end of the part how many it has made.
        examples: at the end of the part, of how many it is the mean; -1: this is a call.
    """

    step: int
    part: int
    number: int
    examples: int = -1
    nbytes: int = 0


class Welcome(Message, frozen=True, gc=False, kw_only=True):
    """The leader to a host that takes part newly; the variables and slots follow on the same stream.

    Attributes:
        batches: how many had begun before.
    """

    host: int
    term: int
    membership: int
    seats: dict[int, tuple[Seat, ...]]
    step: int
    version: int
    batches: int
    tally: tuple[tuple[int, Sums], ...]


class LedgerRecord(Message, frozen=True, gc=False, kw_only=True):
    """The leader to every host: entries that were written into its ledger; their bytes follow the message.

    Attributes:
        position: above that of every record before; they grow by 1 within a term.
        step: the first one in which they may hold: a host keeps them until its step before is over.
    """

    position: int
    step: int
    whole: bool
    nbytes: int


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
    """The answer to `Enter`: how training began, for every replica the same but for `doorbells`.

    The file descriptors of the memory that is shared come with it, then one socket for each of `doorbells`;
    to a replica of another host none.

    Attributes:
        doorbells: the ranks to which the sockets lead.
        joins: whether this replica comes later than others.
        members: the ranks of the members on this host, in the answer to a replica that comes later.
        seats: by host, its replicas; none where all share memory. The first one makes that memory.
    """

    state: FitState
    leader: int
    ranks: int = 0
    directory: str = ""
    doorbells: tuple[int, ...] = ()
    concluded: bool = False
    joins: bool = False
    members: tuple[int, ...] = ()
    seats: dict[int, tuple[Seat, ...]] = msgspec.field(default_factory=dict)


class Over(Message, frozen=True, gc=False, kw_only=True):
    """The answer to `Enter` where that call of `fit` has ended: the one that is under way now."""

    generation: int


class Doorbell(Message, frozen=True, gc=False, kw_only=True):
    """Replica that would like to become a member to each member: a socket between the two comes with it."""

    generation: int
    rank: int
