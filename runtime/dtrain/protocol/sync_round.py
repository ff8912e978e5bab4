"""Synchronous updates: the newest-version rule, over the parts of batches.

The rules *Newest version*, *One decision* and *Determinism* (docs/design/protocol.md#newest-version):

1. T replicas train and N0 parts make a version; b = T - N0 replicas are backups.
2. A replica always starts from the newest version and contributes at most `quota` parts to it (one, unless
   fewer replicas than parts share them).
3. Without backups a version is made of one batch: of every part of it that is not refused. With backups it is
   made of the first N0 parts that are complete. A part is complete when every server holds it, and counts
   once, also if two replicas computed it.
4. A later contribution to a version is stale: never applied, never silent.
5. There is no queue of tokens, so no backlog exists and nothing can go stale by waiting.
6. Sums are taken in the order of part numbers, so that the result does not show which replica computed a
   part.

`SyncRound` is every server's side; `SyncDecision` is what ps:0 does besides, once for all servers. Deciding
over contributions that are complete *everywhere* keeps training going when a replica dies between two
servers: counted shard by shard, or over what ps:0 alone holds, one death in some twenty leaves the servers
waiting for different sets of replicas for ever.

Source: the accumulators of `tf.compat.v1.train.SyncReplicasOptimizer`, whose token queue this rule replaces
(a dead or slow replica of four costs 1.5 times per step there, 1.04 here); `tf.data`'s rebatching for the
parts.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field
from math import ceil
from typing import Generic, TypeVar

import msgspec

Contribution = tuple[int, int, int]
"""(rank, incarnation, ordinal): the ordinal-th contribution of a replica to the version being made.

The incarnation keeps a replica that died halfway and its successor apart: their halves never make one
contribution.
"""

Gradient = TypeVar("Gradient")


def quota(parts: int, replicas: int) -> int:
    """Return how many parts one replica may contribute to one version: one, or ceil(N0 / T) when T < N0."""
    return max(1, ceil(parts / max(1, replicas)))


class SyncRound(Generic[Gradient]):
    """One server's side: it holds contributions to the newest version until they are committed or stale."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.held: dict[Contribution, Gradient] = {}

    def offer(self, contribution: Contribution, base_version: int, gradient: Gradient) -> bool:
        """Hold a contribution; False if it is stale. Offering the same one again changes nothing.

        Raises:
            ValueError: a broken peer computed the gradient from a version that this server has not reached.
        """
        if base_version > self.version:
            raise ValueError(
                f"a gradient computed from version {base_version}, and version {self.version} is the newest"
            )
        if base_version < self.version:
            return False
        self.held.setdefault(contribution, gradient)
        return True

    def missing(self, version: int, contributors: Iterable[Contribution]) -> list[Contribution]:
        return [c for c in contributors if c not in self.held] if version == self.version else []

    def commit(self, version: int, contributors: Sequence[Contribution]) -> list[Gradient] | None:
        """Take the contributors' gradients in order and move to the next version; None if done before.

        Raises:
            ValueError: the commit is for a version that this server has not reached, or names a contribution
                it lacks.
        """
        if version < self.version:
            return None
        if version > self.version or self.missing(version, contributors):
            raise ValueError(
                f"commit of version {version} cannot follow version {self.version} with {sorted(self.held)}"
            )
        gradients = [self.held[contribution] for contribution in contributors]
        self.held.clear()
        self.version += 1
        return gradients


class NextVersion(msgspec.Struct, frozen=True):
    """The contents of the next version.

    Attributes:
        contributors: in the order of their parts.
        parts: the divisor of the mean: the contributors, and the parts of their batch that have no examples.
    """

    contributors: tuple[Contribution, ...]
    parts: int


class TooFew(msgspec.Struct, frozen=True):
    """A shortage: fewer contributions can come than are needed, since a time."""

    possible: int
    needed: int
    since_s: float


@dataclass
class SyncDecision:
    """ps:0's side: the choice of the contributions that make the next version.

    Attributes:
        servers: K; a contribution is complete when all of them hold it.
        replicas: T at the start.
        whole: whether a version is made of one whole batch (no backups).
        open: with `whole`, the parts of the batch that are neither complete nor settled.
        complete: by part, the first contribution of it that every server holds.
        completed_by: by rank, how many of these are its own.
        live: ranks of the replicas that are alive or still expected for the first time.
        host: the server that hosts the control plane.
    """

    version: int
    servers: int
    parts: int
    replicas: int
    whole: bool = True
    shrink: bool = False
    host: int = 0
    open: set[int] = field(default_factory=set)
    complete: dict[int, Contribution] = field(default_factory=dict)
    completed_by: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    live: Set[int] = frozenset()
    _owing: dict[int, None] = field(default_factory=dict, init=False)
    quota: int = field(default=1, init=False)
    _lacking: list[int] = field(default_factory=list, init=False)
    _part_of: dict[Contribution, int] = field(default_factory=dict)
    _holders: dict[Contribution, set[int]] = field(default_factory=dict)
    _empty: int = 0
    too_few_since_s: float | None = None

    def __post_init__(self) -> None:
        self.members_changed(self.live)

    def members_changed(self, live: Set[int], anew: Collection[int] = ()) -> None:
        self.live = live
        fewer = self.shrink and 0 < len(live) < self.replicas
        self.quota = quota(self.parts, len(live) if fewer else self.replicas)
        held_by: defaultdict[int, int] = defaultdict(int)
        self._lacking = [0] * self.servers
        for contribution in self._part_of:
            rank = contribution[0]
            held_by[rank] += 1
            if rank in live and rank not in anew:
                self._await_others(contribution)
        done = {rank for rank, count in held_by.items() if count >= self.quota and rank not in anew}
        self._owing = dict.fromkeys(sorted(live - done))

    def _await_others(self, contribution: Contribution) -> None:
        holders = self._holders.get(contribution, ())
        for server in range(self.servers):
            self._lacking[server] += server != self.host and server not in holders

    def begin(self, parts: Iterable[int]) -> None:
        self.open = set(parts)
        self._empty = 0

    def offer(self, contribution: Contribution, part: int) -> None:
        """Record the part of a contribution, which only ps:0 knows, from the push itself."""
        self._part_of[contribution] = part
        self._await_others(contribution)
        if contribution[2] + 1 >= self.quota:
            self._owing.pop(contribution[0], None)

    def report(self, server: int, contribution: Contribution, version: int) -> int | None:
        """Record that a server holds a contribution whole; return its part if complete, once."""
        if version != self.version:
            return None
        holders = self._holders.setdefault(contribution, set())
        part = self._part_of.get(contribution)
        if part is not None and server not in holders and self._lacking[server] > 0:
            self._lacking[server] -= 1
        holders.add(server)
        if (
            part is None
            or len(holders) < self.servers
            or part in self.complete
            or (self.whole and part not in self.open)
        ):
            return None
        if not self.whole and (
            len(self.complete) >= self.parts or self.completed_by[contribution[0]] >= self.quota
        ):
            return None
        self.complete[part] = contribution
        self.completed_by[contribution[0]] += 1
        self.open.discard(part)
        return part

    def settle(self, part: int, *, empty: bool) -> None:
        """Record that a part will not be contributed: it has no examples, or its gradient was refused."""
        if part in self.open:
            self.open.remove(part)
            self._empty += empty

    @property
    def all_refused(self) -> bool:
        return self.whole and not self.open and not self.complete

    def decided(self) -> NextVersion | None:
        enough = self.complete and not self.open if self.whole else len(self.complete) >= self.parts
        if not enough:
            return None
        contributors = tuple(self.complete[part] for part in sorted(self.complete))
        return NextVersion(contributors, len(contributors) + self._empty)

    def too_few(self, now: float) -> TooFew | None:
        needed = len(self.open) + len(self.complete) if self.whole else self.parts
        by_the_dead = sum(parts for rank, parts in self.completed_by.items() if rank not in self.live)
        possible = by_the_dead + len(self.live) * self.quota
        if possible >= needed:
            self.too_few_since_s = None
            return None
        if self.too_few_since_s is None:
            self.too_few_since_s = now
        return TooFew(possible, needed, self.too_few_since_s)

    def committed(self) -> None:
        self.version += 1
        self.too_few_since_s = None
        for state in (self._part_of, self._holders, self.complete, self.completed_by, self.open):
            state.clear()
        self.members_changed(self.live)

    def awaited(self) -> tuple[Collection[int], list[int]]:
        lacking = [server for server, count in enumerate(self._lacking) if count > 0]
        if self._owing or lacking:
            return self._owing.keys(), lacking
        done = {part % self.parts for part in self.open}  # the live replicas have done their share
        return sorted(rank for rank in done if rank < self.replicas and rank not in self.live), []
