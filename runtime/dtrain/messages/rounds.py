"""Messages by which replicas without servers make steps (docs/design/steps.md).

Each message has the whole state of its sender in this round. So a receiver needs only the newest one, and a
message may be lost, come twice or come late.
"""

import msgspec

from dtrain.messages.message import Message
from dtrain.state.batch_cut import NOTHING_DEALT, Dealt
from dtrain.state.fit_state import Sums


class MemberSeat(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """One member: a process that takes part.

    Attributes:
        number: no other process of the run has had it.
        host: members of one host share memory.
        address: where it listens for other members.
        trains: whether it computes parts.
    """

    number: int
    rank: int
    task: str
    host: str = ""
    address: str = ""
    trains: bool = True


class CompletePart(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A part of which the gradient lies in the memory of a host, or that has none.

    Attributes:
        examples: of how many the gradient is the mean; 0: there is none.
        finite: whether the gradient is free of NaN and infinity; else it makes no version.
        holder: the member that has computed it.
        empty: how many of the last parts of its batch have no examples.
    """

    part: int
    examples: int
    finite: bool
    holder: int
    empty: int = 0
    sums: Sums | None = None


class RoundMade(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """The contents of a round.

    Attributes:
        parts: those whose gradients make the version, in their order; none in a void round.
        divisor: of the mean: as many, and the parts of their batch without examples.
        values: whether the leader assigns values in this round, which is then void.
    """

    parts: tuple[CompletePart, ...] = ()
    divisor: int = 0
    values: bool = False

    @property
    def void(self) -> bool:
        return not self.parts


class ReduceAttempt(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """An attempt at the sum of a round.

    Attributes:
        lanes: by member, the numbers of its lanes. The variables are cut into `count` lanes. A lane stays
            with its member while that member lives, so that no other process writes to the same memory.
        written: the position up to which a member must have the leader's records before it has reduced.
    """

    number: int
    made: RoundMade
    lanes: dict[int, tuple[int, ...]]
    count: int = 1
    written: int = -1


Deal = tuple[int, int]
"""A part, and the round in which it was dealt to the member that computes it."""


class Known(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A member's knowledge of the run beyond its own work: the next leader goes on from it.

    Attributes:
        members: of the newest membership that it has heard of.
        version: how many rounds have made one.
        side: how many rounds have written values: they lie on the two sides of the memory in turn.
        dealt: the state of the dealer as the round began.
        made: the contents of the round before.
        begun: whether the parts of this round are dealt: it is finished by those who are left.
    """

    members: tuple[MemberSeat, ...]
    version: int = 0
    side: int = 0
    dealt: Dealt = NOTHING_DEALT
    made: RoundMade | None = None
    begun: bool = False


class MemberReport(Message, frozen=True, gc=False, kw_only=True):
    """A member to the leader: how far it is.

    Attributes:
        term: of the leader that it follows; it heeds no leader of an earlier one.
        computing: what it computes, and has not completed.
        complete: what it has completed in this round.
        late: what it has completed of earlier rounds, and counts for nothing.
        reduced: whether its lane of its newest `attempt` is reduced: values beside those of this round.
        blamed: the member that it waited for when the attempt failed; -1: it does not know.
        written: the position of the newest record of the leader that it has.
        known: in answer to a leader that asks.
    """

    term: int
    member: int
    membership: int
    round: int
    computing: tuple[Deal, ...] = ()
    complete: tuple[CompletePart, ...] = ()
    late: tuple[Deal, ...] = ()
    attempt: int = -1
    reduced: bool = False
    failed: bool = False
    blamed: int = -1
    written: int = -1
    known: Known | None = None


class Told(Message, frozen=True, gc=False, kw_only=True):
    """The leader to a member: what is to be done. All rounds before `round` are committed.

    Attributes:
        number: counts the messages of a term. A receiver ignores one that comes after a higher number.
        members: where the receiver may not know those of this membership, all of them; a receiver that is not
            among them has been left behind.
        round: -1: the leader is new and asks how far all are.
        due: what the receiver computes in this round, or has completed.
        made: the contents of the round before.
        attempt: where the receiver has a lane of it.
        held: how many replicas live, where these are too few to begin the round; -1: it has begun.
        silent: the hosts of which the leader has heard nothing for a lease.
    """

    term: int
    membership: int
    number: int = -1
    members: tuple[MemberSeat, ...] = ()
    round: int = -1
    version: int = 0
    side: int = 0
    due: tuple[Deal, ...] = ()
    dealt: Dealt = NOTHING_DEALT
    made: RoundMade | None = None
    attempt: ReduceAttempt | None = None
    held: int = -1
    silent: tuple[str, ...] = ()
