"""Asynchronous updates: tickets to push, repairs of batches, and gradients that are stale.

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

The rule *Exactly once* (docs/design/protocol.md#exactly-once); ps:0 keeps this where there are other servers:

1. A replica pushes a batch to every server, and goes on when all have answered. So a batch is *unconfirmed*
   from its arrival at ps:0 until the replica's next push, or until it says that all servers have answered.
2. If the replica is lost before, or another process has taken its place, the push may have reached some
   servers only. Then the batch is due for repair: any replica computes it again and pushes it to every
   server; those that have it pass over it.
3. A repair makes no step and needs no ticket of the gate. It is itself unconfirmed until all servers have
   answered.
4. While a batch is unconfirmed or under repair, servers may contain different batches: training has not
   ended, and has not reached a version at which the leader holds it.

The staleness of a push is the number of versions applied between the pull that its weights came from and its
arrival.

A gradient g that was computed at weights w_then and arrives at weights w_now is replaced by a first-order
estimate of the gradient there, with the diagonal of the outer product of g for the Hessian:

    g + strength * g * g * (w_now - w_then)

Source: Zheng et al. 2017, "Asynchronous Stochastic Gradient Descent with Delay Compensation"
(arXiv:1609.08326), the variant with a constant strength (lambda_0 = 0.04 in their experiments on CIFAR-10).
"""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import msgspec
import numpy as np

from dtrain.config.choices import StaleGradients
from dtrain.messages import Verdict
from dtrain.protocol.part_dealer import NO_PART
from dtrain.types import Array, Blocks


@dataclass
class TicketGate:
    """ps:0's side of an asynchronous run.

    Attributes:
        accepted: the global step.
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
        return self.accepted >= self.max_steps

    @property
    def held_back(self) -> bool:
        return self.until is not None and self.accepted >= self.until

    @property
    def warms_up(self) -> bool:
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
        return 0 in live if self.warms_up else bool(live)

    def join(self, rank: int) -> None:
        """Let a replica take part from now on, for the first time or again."""
        if rank not in self.clocks:
            self._set_clock(rank, self._slowest())

    def leave(self, rank: int) -> None:
        self.holders.discard(rank)
        self._set_clock(rank, None)

    @property
    def left(self) -> int:
        """The number of tickets that may be given for now, besides those in hand."""
        end = self.max_steps if self.until is None else min(self.until, self.max_steps)
        return max(0, end - self.accepted - len(self.holders))

    @property
    def fingerprint(self) -> Hashable:
        """Return all that a refusal depends on besides the rank's clock: while it is equal, it holds."""
        slowest = None if self.staleness_bound is None else self._slowest()
        return bool(self.left), self.warms_up, slowest

    def request(self, rank: int) -> bool:
        """Give `rank` a ticket if the rules allow it now; with a ticket already nothing changes."""
        if rank in self.holders:
            return True
        if not self.left or (rank != 0 and self.warms_up):
            return False
        self.join(rank)
        if self.staleness_bound is not None and self.clocks[rank] > self._slowest() + self.staleness_bound:
            return False
        self.holders.add(rank)
        return True

    def settle(self, rank: int, accepted: bool) -> None:
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


class Repairs(msgspec.Struct):
    """The batches of one term that are not known to be on every server.

    Attributes:
        due: to be pushed again, in the order in which they are given out.
        unconfirmed: by rank the incarnation and sequence of its newest accepted push, and its batch.
        given: by rank, the batch that it is to push again.
    """

    due: dict[int, None] = msgspec.field(default_factory=dict)
    unconfirmed: dict[int, tuple[int, int, int]] = msgspec.field(default_factory=dict)
    given: dict[int, int] = msgspec.field(default_factory=dict)

    @property
    def done(self) -> bool:
        return not (self.unconfirmed or self.due or self.given)

    @property
    def ranks(self) -> Collection[int]:
        return self.unconfirmed.keys() | self.given.keys()

    def pushed(self, rank: int, incarnation: int, sequence: int, batch: int) -> None:
        """Record that ps:0 accepted a push, so the same process's earlier push was answered everywhere."""
        before = self.unconfirmed.get(rank)
        if before is not None and before[0] != incarnation and before[2] != batch:
            self.due[before[2]] = None
        self.unconfirmed[rank] = incarnation, sequence, batch
        if self.given and self.given.get(rank) == batch:
            del self.given[rank]

    def confirmed(self, rank: int, sequence: int) -> None:
        entry = self.unconfirmed.get(rank)
        if entry is not None and entry[1] <= sequence:
            del self.unconfirmed[rank]

    def lose(self, rank: int) -> None:
        """Repair what a replica, lost or started again, may have pushed to some servers only."""
        entry = self.unconfirmed.pop(rank, None)
        if entry is not None:
            self.due[entry[2]] = None
        self.give_back(rank)

    def give(self, rank: int) -> int:
        """Return the batch that a replica is to push again; NO_PART if there is none."""
        if rank not in self.given and self.due:
            batch = next(iter(self.due))
            del self.due[batch]
            self.given[rank] = batch
        return self.given.get(rank, NO_PART)

    def give_back(self, rank: int) -> None:
        """Let another replica, or the same one later, push again what this one did not."""
        batch = self.given.pop(rank, None)
        if batch is not None:
            self.due[batch] = None


class StalenessRule(msgspec.Struct, frozen=True):
    """An asynchronous server's judgement of a gradient by its staleness.

    Attributes:
        policy: ``apply`` as it is; ``drop`` above `max_staleness`; ``scale`` the learning rate by 1 / max(1,
            staleness) (Zhang et al. 2015, arXiv:1511.05950).
    """

    policy: StaleGradients = StaleGradients.APPLY
    max_staleness: int | None = None

    def judge(self, staleness: int) -> tuple[Verdict, float]:
        if self.max_staleness is not None and staleness > self.max_staleness:
            return Verdict.STALE, 0.0
        return Verdict.ACCEPTED, 1.0 / max(1, staleness) if self.policy == StaleGradients.SCALE else 1.0


BLOCK = 1 << 15
"""Elements that are corrected at a time: four arrays of them stay in the cache."""


@dataclass
class DelayCompensation:
    """One server's copies of the weights that each replica has: of trained groups, and of table rows read.

    Attributes:
        strength: of the correction, lambda in the paper.
        trainable: which blocks are corrected; the others carry new values, not gradients.
    """

    strength: float
    trainable: Sequence[int]
    _versions: dict[int, int] = field(default_factory=dict, init=False)
    _weights: dict[int, list[Array]] = field(default_factory=dict, init=False)
    _rows: dict[tuple[int, int], tuple[Array, Array]] = field(default_factory=dict, init=False)

    def remember(self, rank: int, version: int, values: Blocks) -> None:
        weights = self._weights.setdefault(rank, [np.empty_like(values[index]) for index in self.trainable])
        for copy, index in zip(weights, self.trainable, strict=True):
            np.copyto(copy, values[index])
        self._versions[rank] = version

    def remember_rows(self, rank: int, table: int, ids: Array, values: Array) -> None:
        if (rank, table) not in self._rows:  # the kernel gives memory only where it is written
            self._rows[rank, table] = np.empty_like(values), np.zeros(len(values), bool)
        then, known = self._rows[rank, table]
        then[ids] = values[ids]
        known[ids] = True

    def compensate(
        self,
        rank: int,
        base_version: int,
        gradients: Blocks,
        values: Blocks,
        tables: Mapping[int, Array] | None = None,
    ) -> Blocks:
        """Return the gradients as they would be at `values`: new arrays if trained, the others as they
        came. After a gradient of each of `values` come row numbers and flat rows of each of the
        trained `tables`. A gradient from weights other than those remembered, and rows that were not
        read, stay as they are.
        """
        if self._versions.get(rank) != base_version:
            return gradients
        corrected = list(gradients)
        for then, index in zip(self._weights[rank], self.trainable, strict=True):
            corrected[index] = self._corrected(gradients[index], values[index], then)
        for position, (table, now) in enumerate((tables or {}).items()):
            index = len(values) + 2 * position
            corrected[index + 1] = self._corrected_rows(
                rank, table, gradients[index], gradients[index + 1], now
            )
        return corrected

    def _corrected_rows(self, rank: int, table: int, ids: Array, rows: Array, now: Array) -> Array:
        if (rank, table) not in self._rows:
            return rows
        then, known = self._rows[rank, table]
        read = known[ids]
        result: Array = rows.reshape(len(ids), *now.shape[1:]).copy()
        listed = [result[read], now[ids[read]], then[ids[read]]]
        result[read] = self._corrected(*(array.reshape(-1) for array in listed)).reshape(listed[0].shape)
        return result.reshape(-1)

    def _corrected(self, gradient: Array, now: Array, then: Array) -> Array:
        result = np.empty_like(gradient)
        for start in range(0, gradient.size, BLOCK):
            part = slice(start, start + BLOCK)
            out = result[part]
            g = gradient[part]
            np.subtract(now[part], then[part], out=out)
            out *= g
            out *= out.dtype.type(self.strength)
            out += 1
            out *= g
        return result
