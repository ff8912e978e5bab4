"""Messages by which replicas without servers make steps (docs/design/steps.md).

Each message has the whole state of its sender in this round. So a receiver needs only the newest one, and a
message may be lost, come twice or come late.
"""

from typing import NamedTuple

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
    """

    number: int
    rank: int
    task: str
    host: str = ""
    address: str = ""


class Deal(NamedTuple):
    """A part that a member computes.

    Attributes:
        round: in which it was dealt.
        place: of its gradient in the memory of the member's host.
    """

    part: int
    round: int
    place: int = 0


class CompletePart(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A part of which the gradient lies in the memory of a host, or that has none.

    Attributes:
        examples: of how many the gradient is the mean; 0: there is none.
        finite: whether the gradient is free of NaN and infinity; else it makes no version.
        holder: the member that has computed it.
        place: of its gradient in the memory of the holder's host.
        empty: how many of the last parts of its batch have no examples.
    """

    part: int
    examples: int
    finite: bool
    holder: int
    place: int = 0
    empty: int = 0
    sums: Sums | None = None


class RoundMade(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """The contents of a round.

    Attributes:
        parts: those whose gradients make the version, in their order; none in a void round.
        divisor: of the mean: as many, and the parts of their batch without examples.
        values: whether the leader assigns values in this round, which is then void.
        refused: parts whose gradients are not finite, and make no version.
    """

    parts: tuple[CompletePart, ...] = ()
    divisor: int = 0
    values: bool = False
    refused: tuple[CompletePart, ...] = ()

    @property
    def void(self) -> bool:
        return not self.parts

    def without_sums(self) -> "RoundMade":
        """Return it as all are told of it: who has reduced it has written its sums into the memory."""
        parts = tuple(msgspec.structs.replace(done, sums=None) for done in self.parts)
        return msgspec.structs.replace(self, parts=parts)


class ReduceAttempt(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """An attempt at the sum of a round.

    Attributes:
        lanes: by member, the numbers of its lanes. The variables are cut into `count` lanes. A lane stays
            with its member while that member lives, so that no other process writes to the same memory.
        first, last: the phases of the lanes that are to be done now. The next one begins when every lane is
            through these. Where the leader has all lanes, these are all phases.
        written: the position up to which a member must have the leader's records before it has reduced.
    """

    number: int
    made: RoundMade
    lanes: dict[int, tuple[int, ...]]
    count: int = 1
    first: int = 0
    last: int = 0
    written: int = -1


class Known(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A member's knowledge of the run beyond its own work: the next leader goes on from it.

    Attributes:
        members: of the newest membership that it has heard of.
        version: how many rounds have made one.
        side: how many rounds have written values: they lie on the two sides of the memory in turn.
        dealt: the state of the dealer as the round began.
        made: the contents of the round before.
        begun: whether the parts of this round are dealt: it is finished by those who are left.
        carrying: what makes this round, if its last phase has begun to change values that are there once:
            then no other contents can make it.
    """

    members: tuple[MemberSeat, ...]
    version: int = 0
    side: int = 0
    dealt: Dealt = NOTHING_DEALT
    made: RoundMade | None = None
    begun: bool = False
    carrying: RoundMade | None = None


class HostStanding(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """How a round stands, as the leader writes into the memory of its host before it tells any member.

    Attributes:
        due, dropped: by member, the parts to whose places it may write; see `MemberReport`.
        reduces: the members that may write beside the values of this round.
    """

    term: int
    membership: int
    round: int
    known: Known
    due: dict[int, tuple[Deal, ...]] = msgspec.field(default_factory=dict)
    dropped: dict[int, tuple[Deal, ...]] = msgspec.field(default_factory=dict)
    reduces: tuple[int, ...] = ()


class MemberReport(Message, frozen=True, gc=False, kw_only=True):
    """A member to the leader: how far it is.

    Attributes:
        term: of the leader that it follows; it heeds no leader of an earlier one.
        computing: what it computes, and has not completed.
        complete: what it has completed in this round.
        late: what it has completed of earlier rounds, and counts for nothing.
        dropped: what it still computes though it is no longer due: until it has, it writes to that place.
        reduced: through how many phases its lanes of its newest `attempt` are: after all of them the new
            values lie beside those of this round.
        blamed: the member that it waited for when the attempt failed; -1: it does not know.
        known: in answer to a leader that asks.
    """

    term: int
    member: int
    membership: int
    round: int
    computing: tuple[Deal, ...] = ()
    complete: tuple[CompletePart, ...] = ()
    late: tuple[Deal, ...] = ()
    dropped: tuple[Deal, ...] = ()
    attempt: int = -1
    reduced: int = 0
    failed: bool = False
    blamed: int = -1
    known: Known | None = None


class Told(Message, frozen=True, gc=False, kw_only=True):
    """The leader to a member: what is to be done. All rounds before `round` are committed.

    Attributes:
        number: counts the messages of a term. A receiver ignores one that comes after a higher number.
        members: where the receiver may not know those of this membership, all of them; a receiver that is not
            among them has been left behind.
        new: members that have not begun yet: none of them leads next.
        round: -1: the leader is new and asks how far all are.
        due: what the receiver computes in this round, or has completed.
        made: the contents of the round before.
        attempt: where the receiver has a lane of it.
        held: how many replicas live, where these are too few to begin the round; -1: it has begun.
        silent: the hosts of which the leader has heard nothing for a lease.
        late, late_parts: the members and the parts for which all have waited for long, where there are some.
    """

    term: int
    membership: int
    number: int = -1
    members: tuple[MemberSeat, ...] = ()
    new: tuple[int, ...] = ()
    round: int = -1
    version: int = 0
    side: int = 0
    due: tuple[Deal, ...] = ()
    dealt: Dealt = NOTHING_DEALT
    made: RoundMade | None = None
    attempt: ReduceAttempt | None = None
    held: int = -1
    silent: tuple[str, ...] = ()
    late: tuple[int, ...] = ()
    late_parts: tuple[int, ...] = ()


class CallMade(Message, frozen=True, gc=False):
    """A member of a host to the others: it has made a call within a step, of which memory says all."""


class LeaderRecord(Message, frozen=True, gc=False, kw_only=True):
    """The leader to one member of each other host: entries that it has written into its ledger. That member
    writes them into the ledger of its host.

    Attributes:
        position: above that of every record before.
        whole: whether these are all entries that count: others have ended.
    """

    term: int
    position: int
    whole: bool
    entries: dict[str, bytes]


class PartCall(Message, frozen=True, gc=False, kw_only=True):
    """A member to one member of each other host: a collective call that a part makes while it is computed, or
    the end of the part.

    Attributes:
        part: its number in the batch.
        number: of the call, from 0; at the end of the part how many it has made.
        examples: at the end of the part, of how many it is the mean; -1: this is a call.
        body: of a call, its head and its arrays.
    """

    round: int
    part: int
    number: int
    examples: int = -1
    body: bytes = b""
