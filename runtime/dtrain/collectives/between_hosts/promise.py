"""The promise of a host to the others: all that another replica needs to speak for it in the same words.

The rule *Speakers* (docs/design/collectives.md#speakers):

1. The replica that speaks for a host writes its promise into the memory of the host before anything is sent,
   or done, that follows from it.
2. If it ends, one of the `heirs` goes on from there: it takes the lock that the kernel takes back from a
   process that has ended, so that never two speak. For the other hosts it is the same host, of which nothing
   was heard for a moment.
3. An heir is known to all hosts: they have begun an attempt that names it, and that was committed since. So a
   host of which every known replica has ended never speaks again.
"""

from typing import Self

import msgspec

from dtrain.messages.between_hosts import PartFacts, Seat


class Promise(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """One host's.

    Attributes:
        host: its number.
        hosts: of the newest membership that it has heard of.
        seats: by host, its replicas as far as was heard; the first one speaks.
        heirs: the replicas of this host that may speak for it.
        step: the version that is made; all before it are in the variables, or will be by `before`.
        term: of the leader that is heeded.
        membership: the number of that membership.
        gone: the hosts that have certainly ended.
        silent: the hosts with which this one had no contact for a lease, or up to their end.
        attempt: the newest that was begun; -1: none of this step.
        agreed: of the attempt, all parts that count or are empty.
        void: whether the attempt is at a step that makes no version.
        named: the replicas of this host that the attempt names.
        summed: whether the mean of the attempt is here, whole.
        needed: the position up to which the attempt needs the leader's records.
        written: the position up to which they are in the ledger of this host.
        dealt: whether the parts of this step are dealt.
        before: of the step before, the parts.
        before_void: whether that one made no version.
        left_behind: whether the others go on without this host.
        over: whether nobody is to speak for this host any more, as training has ended.
    """

    host: int
    hosts: tuple[int, ...]
    seats: dict[int, tuple[Seat, ...]]
    heirs: tuple[Seat, ...] = ()
    step: int = 0
    term: int = 0
    membership: int = 0
    gone: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    attempt: int = -1
    agreed: tuple[PartFacts, ...] = ()
    void: bool = False
    named: tuple[Seat, ...] = ()
    summed: bool = False
    needed: int = -1
    written: int = -1
    dealt: bool = False
    before: tuple[PartFacts, ...] = ()
    before_void: bool = False
    left_behind: bool = False
    over: bool = False

    @classmethod
    def first(
        cls, host: int, seats: dict[int, tuple[Seat, ...]], step: int = 0, term: int = 0, membership: int = 0
    ) -> Self:
        """Return what a host has promised that begins, of which all hosts know these replicas."""
        return cls(
            host=host,
            hosts=tuple(sorted(seats)),
            seats=seats,
            heirs=seats[host],
            step=step,
            term=term,
            membership=membership,
        )

    def spoken_by(self, rank: int) -> Self:
        """Return the same for the replica of a rank, which speaks in the place of one that has ended."""
        own = self.seats[self.host]
        left = sorted(own if own[0].rank == rank else own[1:], key=lambda seat: seat.rank != rank)
        return msgspec.structs.replace(self, seats={**self.seats, self.host: tuple(left)})
