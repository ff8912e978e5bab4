"""Synchronous updates with backup replicas: the newest-version rule.

    1. T replicas train and N contributions make a version; b = T - N replicas are backups.
    2. A replica always starts from the newest version and may contribute `quota` times to each (once, unless T < N).
    3. The first N contributions to version v that are complete on every server make v + 1, on every server and shard.
    4. What comes later for v is stale: never applied, never silent.
    5. There is no queue of tokens, so no backlog exists and nothing can go stale by waiting.

`SyncRound` is what every server does; `SyncDecision` is what ps:0 does besides, once for all servers. A decision over what is
complete *everywhere* is what keeps training going when a replica dies between two servers: counted shard by shard, or over
what ps:0 alone holds, one death in some twenty leaves the servers waiting for different sets of replicas for ever.

Source: the accumulators of `tf.compat.v1.train.SyncReplicasOptimizer`, whose token queue this rule replaces (a dead or slow
replica of four costs 1.5 times per step there, 1.04 here).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass, field
from math import ceil
from typing import Generic, TypeVar

Contribution = tuple[int, int, int]
"""(rank, incarnation, ordinal): the ordinal-th contribution of a replica to the version being made.

The incarnation keeps a replica that died halfway and its successor apart: their halves never make one contribution.
"""

Gradient = TypeVar("Gradient")


def quota(needed: int, replicas: int) -> int:
    """How often one replica may contribute to one version: once, or ceil(N / T) when T < N."""
    return max(1, ceil(needed / replicas))


class SyncRound(Generic[Gradient]):
    """One server's side: hold contributions to the newest version until they are committed or stale."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.held: dict[Contribution, Gradient] = {}

    def offer(self, contribution: Contribution, base_version: int, gradient: Gradient) -> bool:
        """Hold a contribution; False if it is stale. Offering the same one again changes nothing.

        Raises:
            ValueError: the gradient was computed from a version that this server has not reached: a broken peer.
        """
        if base_version > self.version:
            raise ValueError(f"a gradient computed from version {base_version}, and version {self.version} is the newest")
        if base_version < self.version:
            return False
        self.held.setdefault(contribution, gradient)
        return True

    def missing(self, version: int, contributors: Iterable[Contribution]) -> list[Contribution]:
        """Which contributors of a commit this server does not hold; none for a commit that is already carried out."""
        return [c for c in contributors if c not in self.held] if version == self.version else []

    def commit(self, version: int, contributors: Collection[Contribution]) -> list[Gradient] | None:
        """Take the contributors' gradients in rank order and move to the next version; None if that was done before.

        Raises:
            ValueError: the commit is for a version that this server has not reached, or names a contribution it lacks.
        """
        if version < self.version:
            return None
        if version > self.version or self.missing(version, contributors):
            raise ValueError(f"commit of version {version} cannot follow version {self.version} with {sorted(self.held)}")
        gradients = [self.held[contribution] for contribution in sorted(contributors)]
        self.held.clear()
        self.version += 1
        return gradients


@dataclass(frozen=True)
class TooFew:
    """Fewer contributions can come than are needed, and since when."""

    possible: int
    needed: int
    since_s: float


@dataclass
class SyncDecision:
    """ps:0's side: which N contributions make the next version.

    What is asked after every report is counted as reports come, so that no answer takes longer with more replicas.

    Attributes:
        servers: K; a contribution is complete when all of them hold it.
        needed: N.
        quota: see `quota`.
        shrink: with too few live replicas, make a version of all that can come instead of waiting.
        live: ranks of the replicas that are alive or still expected for the first time.
        holders: by rank: each contribution that was reported, and the servers that hold it.
        complete: in the order in which they became so.
    """

    version: int
    servers: int
    needed: int
    quota: int = 1
    shrink: bool = False
    live: Set[int] = frozenset()
    holders: dict[int, dict[Contribution, set[int]]] = field(default_factory=dict, init=False)
    complete: list[Contribution] = field(default_factory=list, init=False)
    _completed_by: Counter[int] = field(default_factory=Counter, init=False)
    _completed_by_the_dead: int = field(default=0, init=False)
    _awaited: dict[int, None] = field(default_factory=dict, init=False)
    _lacking: Counter[int] = field(default_factory=Counter, init=False)
    _needed_next: int = field(default=0, init=False)
    _too_few_since_s: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._needed_next = self.needed
        self._awaited = dict.fromkeys(sorted(self.live))

    def members_changed(self, live: Collection[int]) -> None:
        """Only these ranks are alive or still expected for the first time."""
        changed = set(live) ^ self.live
        for rank in changed:
            self._discount(rank)
        self.live = frozenset(live)
        for rank in changed:
            self._count(rank)

    def report(self, server: int, contribution: Contribution, version: int) -> None:
        """A server holds a contribution whole. Reports of earlier versions and repeated ones change nothing."""
        if version != self.version:
            return
        rank = contribution[0]
        holders = self.holders.setdefault(rank, {}).setdefault(contribution, set())
        if server in holders:
            return
        self._discount(rank)
        holders.add(server)
        if len(holders) == self.servers and self._completed_by[rank] < self.quota:
            self.complete.append(contribution)
            self._completed_by[rank] += 1
        self._count(rank)

    def decide(self, now: float) -> tuple[Contribution, ...] | TooFew | None:
        """The contributors of the next version in rank order, once there are enough; None while they may still come."""
        needed = self.needed
        possible = self._completed_by_the_dead + len(self.live) * self.quota
        if possible < needed and self.shrink and possible > 0:
            needed = possible
        if len(self.complete) >= needed:
            self._too_few_since_s = None
            return tuple(sorted(self.complete[:needed]))
        if possible >= needed:
            self._too_few_since_s = None
            return None
        if self._too_few_since_s is None:
            self._too_few_since_s = now
        return TooFew(possible, self.needed, self._too_few_since_s)

    def resize(self, needed: int) -> None:
        """Replicas have joined or left: more are waited for from the next version on, fewer at once (rule 7)."""
        self._needed_next = needed
        self.needed = min(self.needed, needed)

    def committed(self) -> None:
        """The decision has been sent out: start the next version."""
        self.version += 1
        self.needed = self._needed_next
        self.holders.clear()
        self.complete.clear()
        self._completed_by.clear()
        self._completed_by_the_dead = 0
        self._lacking.clear()
        self._awaited = dict.fromkeys(sorted(self.live))

    def awaited(self) -> tuple[Collection[int], list[int]]:
        """Of the live ranks that owe a contribution: those of which none is under way, and the servers that lack one of the others.

        Under way is what ps:0 itself holds and another server does not.
        """
        return self._awaited.keys(), sorted(server for server, count in self._lacking.items() if count > 0)

    def _count(self, rank: int) -> None:
        """Add one rank to what is counted of all."""
        if rank not in self.live:
            self._completed_by_the_dead += self._completed_by[rank]
        elif self._completed_by[rank] < self.quota:
            if lacking := self._lacking_of(rank):
                self._lacking.update(lacking)
            else:
                self._awaited[rank] = None

    def _discount(self, rank: int) -> None:
        """Take it out again, before anything about it changes."""
        if rank not in self.live:
            self._completed_by_the_dead -= self._completed_by[rank]
        elif self._completed_by[rank] < self.quota:
            self._lacking.subtract(self._lacking_of(rank))
            self._awaited.pop(rank, None)

    def _lacking_of(self, rank: int) -> set[int]:
        """The servers that have not reported what ps:0 itself holds of a rank."""
        servers = range(self.servers)
        return {s for held_by in self.holders.get(rank, {}).values() if 0 in held_by for s in servers if s not in held_by}
