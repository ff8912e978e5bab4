"""Tickets of asynchronous updates: they make the last step exact and keep replicas close to each other.

The rule *Asynchronous updates* (docs/design/protocol.md#asynchronous-updates), ps:0's part:

1. A replica pushes only with a ticket, and a ticket allows one push; ps:0 gives them with its answers.
2. Accepted pushes plus tickets in hand never exceed `max_steps`: the global step reaches it exactly, on every
   server.
3. A ticket comes back when its holder is lost or its push is not accepted, and goes to a replica that waits.
4. Warm-up: while fewer than `warmup_steps` pushes are accepted, only rank 0 gets tickets.
5. No ticket leads beyond the version at which the leader holds training, for a change or at the end of an
   epoch.
6. Bounded staleness (SSP, s >= 1): a replica gets a ticket only while it is at most s pushes ahead of the
   slowest live one. A replica that joins starts at the slowest one's clock; a lost one holds up no other.

Every server applies a push on arrival, without a common decision. Sources: Ho et al. 2013 (SSP); DistBelief
(warm-up with one replica).
"""

import math
from collections.abc import Collection, Hashable, Set
from dataclasses import dataclass, field


@dataclass
class TicketGate:
    """ps:0's side of an asynchronous run.

    Attributes:
        accepted: the global step.
        max_steps: the step at which training ends.
        staleness_bound: s of SSP, or None.
        until: the version at which the leader holds training, or None.
        leader: the leader's rank; None if it does not train.
        clocks: accepted pushes of each rank, counted from where it joined.
    """

    accepted: int
    max_steps: int
    warmup_steps: int = 0
    staleness_bound: int | None = None
    until: int | None = None
    leader: int | None = None
    holders: set[int] = field(default_factory=set)
    clocks: dict[int, int] = field(default_factory=dict)
    _ranks_at: dict[int, set[int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for rank, clock in self.clocks.items():
            self._ranks_at.setdefault(clock, set()).add(rank)

    @property
    def finished(self) -> bool:
        """True if the last step has been accepted."""
        return self.accepted >= self.max_steps

    @property
    def held_back(self) -> bool:
        """True if the next version waits for the leader."""
        return self.until is not None and self.accepted >= self.until

    @property
    def warms_up(self) -> bool:
        """True if only rank 0 gets tickets."""
        return self.accepted < self.warmup_steps

    def hold(self, again: int = 0) -> int:
        """Give tickets only for `again` batches from now on; return the version after all pushes under way.

        The leader, which asks for it, is not about to push: its ticket is no push under way.
        """
        self.until = min(self.accepted + len(self.holders - {self.leader}) + again, self.max_steps)
        return self.until

    def end_at(self, version: int) -> None:
        """Make this version the last one; the leader's ticket comes back."""
        self.max_steps = version
        if self.leader is not None:
            self.holders.discard(self.leader)

    def possible(self, live: Collection[int]) -> bool:
        """Return whether a live rank may make the next version, now or after others have made theirs."""
        return 0 in live if self.warms_up else bool(live)

    def join(self, rank: int) -> None:
        """Let a replica take part from now on, for the first time or again."""
        if rank not in self.clocks:
            self._set_clock(rank, self._slowest())

    def leave(self, rank: int) -> None:
        """Take back the ticket of a replica that is lost or has left."""
        self.holders.discard(rank)
        self._set_clock(rank, None)

    @property
    def left(self) -> int:
        """The number of tickets that may be given for now, besides those in hand."""
        end = self.max_steps if self.until is None else min(self.until, self.max_steps)
        return max(0, end - self.accepted - len(self.holders))

    @property
    def all_given(self) -> bool:
        """True if the pushes under way lead to the last version that may be made for now."""
        return not self.left

    @property
    def standing(self) -> Hashable:
        """Return all that a refusal depends on besides the rank's clock: while it is equal, it holds."""
        slowest = None if self.staleness_bound is None else self._slowest()
        return self.all_given, self.warms_up, slowest

    def request(self, rank: int) -> bool:
        """Give `rank` a ticket if the rules allow it now; repeated requests with a ticket change nothing."""
        if rank in self.holders:
            return True
        if self.all_given or (rank != 0 and self.warms_up):
            return False
        self.join(rank)
        if self.staleness_bound is not None and self.clocks[rank] > self._slowest() + self.staleness_bound:
            return False
        self.holders.add(rank)
        return True

    def settle(self, rank: int, accepted: bool) -> None:
        """Take the ticket of `rank`, whose push has arrived."""
        self.holders.discard(rank)
        if accepted:
            self.accepted += 1
            # A replica that has left has no clock; it joins at the slowest one's when it asks again.
            if rank in self.clocks:
                self._set_clock(rank, self.clocks[rank] + 1)

    def awaited(self, live: Set[int]) -> Set[int]:
        """Return the ranks for which live ranks without a ticket wait; live: had a ticket, did not leave."""
        # A heartbeat asks this: count those who are too far ahead, instead of joining their sets.
        end = math.inf if self.staleness_bound is None else self._slowest() + self.staleness_bound
        ahead = sum(len(ranks) for clock, ranks in self._ranks_at.items() if clock > end)
        without = len(live) - len(self.holders) - ahead
        first_is_without = 0 in live and 0 not in self.holders and self.clocks.get(0, 0) <= end
        awaited: Set[int] = self._ranks_at[self._slowest()] if ahead else frozenset()
        if not self.warms_up:
            return (awaited | self.holders if awaited else self.holders) if without else awaited
        if without > first_is_without:
            awaited = awaited | {0}
        return awaited | self.holders if first_is_without else awaited

    def _slowest(self) -> int:
        return min(self._ranks_at, default=0)

    def _set_clock(self, rank: int, clock: int | None) -> None:
        if self.staleness_bound is None:  # no replica waits for a slower one
            if clock is None:
                self.clocks.pop(rank, None)
            else:
                self.clocks[rank] = clock
            return
        before = self.clocks.pop(rank, None)
        if before is not None:
            self._ranks_at[before].discard(rank)
            if not self._ranks_at[before]:
                del self._ranks_at[before]
        if clock is not None:
            self.clocks[rank] = clock
            self._ranks_at.setdefault(clock, set()).add(rank)
