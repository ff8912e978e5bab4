"""The step machine of synchronous training: which parts make the next version, and who computes them.

It joins the dealer of parts (docs/design/protocol.md#one-batch-a-step) to the decision which contributions
count. ps:0 hosts it for servers, the leading replica for replicas that reduce among themselves, and the one
process for replicas in threads. They differ in how a gradient is held and reduced, of which it knows nothing:
a contribution is *held* when its gradient is where it is to be reduced.

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

Deciding over contributions that are complete *everywhere* keeps training going when a replica dies between
two servers: counted shard by shard, or over what ps:0 alone holds, one death in some twenty leaves the
servers waiting for different sets of replicas for ever.

Source: the accumulators of `tf.compat.v1.train.SyncReplicasOptimizer`, whose token queue this rule replaces
(a dead or slow replica of four costs 1.5 times per step there, 1.04 here); `tf.data`'s rebatching for the
parts.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass, field
from math import ceil

import msgspec

from dtrain.messages import Refusal
from dtrain.protocol.part_dealer import NO_PART, PartDealer

Contribution = tuple[int, int, int]
"""(rank, incarnation, ordinal): the ordinal-th contribution of a replica to the version being made.

The incarnation keeps a replica that died halfway and its successor apart: their halves never make one
contribution.
"""


def quota(parts: int, replicas: int) -> int:
    """Return how many parts one replica may contribute to one version: one, or ceil(N0 / T) when T < N0."""
    return max(1, ceil(parts / max(1, replicas)))


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


@dataclass(kw_only=True)
class StepMachine:
    """The steps of one call of `fit`, from the version at which it stands.

    Attributes:
        servers: K; a contribution is complete when all of them hold it.
        replicas: T at the start.
        live: ranks of the replicas that are alive or still expected for the first time.
        shrink: whether fewer live replicas contribute more parts each.
        host: the server that hosts the control plane.
        retry: whether a part that came too late is computed again.
        rests_held: whether no part is dealt while the leader holds training (`deterministic`, local steps):
            the values may be about to change, or the optimizer of the replicas.
        until: the version at which the leader holds training: none is made beyond it; None: there is none.
        ranks: the only replicas that are dealt parts; None: all.
        failed: why no version is made any more; None: some may be.
        turn: where more replicas live than a batch has parts, those that compute one of this batch; None:
            all.
        batches: how many batches and versions have begun, for who waits for the next one.
        contributed: the part of each contribution to the version that is being made.
        open: without backups, the parts of the batch that are neither complete nor settled.
        complete: by part, the first contribution of it that every server holds.
        completed_by: by rank, how many of these are its own.
    """

    dealer: PartDealer
    version: int
    replicas: int
    live: Set[int]
    max_steps: int
    servers: int = 1
    shrink: bool = False
    host: int = 0
    retry: bool = False
    rests_held: bool = False
    until: int | None = None
    ranks: Set[int] | None = None
    failed: Refusal | None = None
    turn: Set[int] | None = field(default=None, init=False)
    batches: int = field(default=0, init=False)
    contributed: dict[Contribution, int] = field(default_factory=dict, init=False)
    open: set[int] = field(default_factory=set, init=False)
    complete: dict[int, Contribution] = field(default_factory=dict, init=False)
    completed_by: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int), init=False)
    quota: int = field(default=1, init=False)
    too_few_since_s: float | None = field(default=None, init=False)
    _owing: dict[int, None] = field(default_factory=dict, init=False)
    _lacking: list[int] = field(default_factory=list, init=False)
    _part_of: dict[Contribution, int] = field(default_factory=dict, init=False)
    _holders: dict[Contribution, set[int]] = field(default_factory=dict, init=False)
    _empty: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._count_members()
        self._begin_batch()

    # How training stands

    @property
    def held_back(self) -> bool:
        return self.until is not None and self.version >= self.until

    @property
    def rests(self) -> bool:
        """Whether no version is made now, whatever is contributed."""
        return self.version >= self.max_steps or self.held_back or self.failed is not None

    def awaited(self) -> tuple[Collection[int], Collection[int]]:
        """Return the ranks that owe a part, and the servers that lack one."""
        lacking = [server for server, count in enumerate(self._lacking) if count > 0]
        ranks: Collection[int] = self._owing.keys()
        if not (ranks or lacking):  # the live replicas have done their share
            left = {part % self.dealer.parts for part in self.open}
            ranks = sorted(rank for rank in left if rank < self.replicas and rank not in self.live)
        return ranks if self.turn is None else [rank for rank in ranks if rank in self.turn], lacking

    def shortage(self, now: float) -> TooFew | None:
        whole, parts = self.dealer.whole, self.dealer.parts
        needed = len(self.open) + len(self.complete) if whole else parts
        by_the_dead = sum(count for rank, count in self.completed_by.items() if rank not in self.live)
        possible = by_the_dead + len(self.live) * self.quota
        if possible >= needed:
            self.too_few_since_s = None
            return None
        if self.too_few_since_s is None:
            self.too_few_since_s = now
        return TooFew(possible, needed, self.too_few_since_s)

    # Parts

    def _begin_batch(self) -> None:
        self.batches += 1
        if self.dealer.whole:
            self.open = set(self.dealer.begin_batch())
            self._empty = 0
            self._take_turns()

    def _take_turns(self) -> None:
        """Let every replica compute a part of equally many batches, where more live than there are parts."""
        live, parts, batch = self.live, self.dealer.parts, self.dealer.batch
        self.turn = None
        if self.dealer.whole and len(live) > parts:
            ranks = sorted(live)
            self.turn = {ranks[number % len(ranks)] for number in range(batch * parts, (batch + 1) * parts)}

    def next_part(self, rank: int) -> int:
        """Return the part that a replica is to compute, until that is contributed; NO_PART: none now.

        Where a part that came too late is computed again, the last steps wait for it: no part of a pass that
        is never made takes its place.
        """
        dealer, live, turn = self.dealer, self.live, self.turn
        if self.version >= self.max_steps or (self.rests_held and self.held_back) or rank not in live:
            return NO_PART
        if rank not in dealer.current and not (
            len(dealer.parts_of[rank]) < self.quota and (turn is None or rank in turn)
        ):
            return NO_PART
        left = (self.max_steps - self.version) * dealer.parts
        fresh = not self.retry or len(dealer.due) + len(dealer.given) < left
        return dealer.give(rank, live if turn is None else turn, fresh=fresh)

    def too_late(self, rank: int, part: int) -> bool:
        """Note that a part came too late; return whether others may compute it now.

        A batch that is dealt whole was settled when its version was made. But a part of the present one may
        have been computed from an earlier version: the replica was told of it in the answer to a push that it
        had repeated.
        """
        if self.dealer.whole:
            comes_back = self.dealer.given.get(part) == rank and part in self.open
            if comes_back:
                self.dealer.give_back(part)
            return comes_back
        self.dealer.late(part, again=self.retry)
        return False

    def came_too_late(self, rank: int, part: int) -> bool:
        """Note that the gradient of a part has arrived too late; see `too_late`."""
        self.dealer.pushed(rank, part)
        return self.too_late(rank, part)

    def refuse(self, rank: int, part: int) -> None:
        """Note a gradient that is not finite: its part makes no version. Where every part of a batch was
        refused, the next one takes its place.
        """
        dealer = self.dealer
        dealer.pushed(rank, part)
        if not dealer.whole:
            dealer.settle(part)
        elif part // dealer.parts == dealer.batch:  # else its batch has made a version without it
            dealer.hold(part)
            self.settle(part, empty=False)
            self._pass_over()

    def settle(self, part: int, *, empty: bool) -> None:
        """Record that a part will not be contributed: it has no examples, or its gradient was refused."""
        if part in self.open:
            self.open.remove(part)
            self._empty += empty

    def _pass_over(self) -> bool:
        """Begin the next batch if every gradient of this one was refused; return whether it was so."""
        all_refused = self.dealer.whole and not self.open and not self.complete
        if all_refused:
            self._begin_batch()
        return all_refused

    # Contributions and decisions

    def contribute(self, contribution: Contribution, part: int, examples: int, empty: int = 0) -> bool:
        """Note a part that the host of this machine holds; of its batch the last `empty` ones have no
        examples, and it has none itself where `examples` is 0. Return whether its batch is passed over now.
        """
        dealer, rank = self.dealer, contribution[0]
        dealer.pushed(rank, part)
        self.contributed[contribution] = part
        if examples:
            self._part_of[contribution] = part
            self._await_others(contribution)
            if contribution[2] + 1 >= self.quota:
                self._owing.pop(rank, None)
            if part in dealer.due and rank in self.live:
                dealer.hold(part, rank)  # thought lost, the replica need not compute it again
            self.report(self.host, contribution, self.version)
        elif not dealer.whole:
            dealer.settle(part)
        if dealer.whole and (empty or not examples):
            end = part // dealer.parts * dealer.parts + dealer.parts
            own = None if examples else part
            for each in [each for each in self.open if each == own or end - empty <= each < end]:
                self.settle(each, empty=True)
                dealer.hold(each)
        return self._pass_over()

    def _await_others(self, contribution: Contribution) -> None:
        holders = self._holders.get(contribution, ())
        for server in range(self.servers):
            self._lacking[server] += server != self.host and server not in holders

    def report(self, server: int, contribution: Contribution, version: int) -> None:
        """Note that a server holds a contribution whole; once complete, its part is not computed again."""
        if version != self.version:
            return
        dealer, rank = self.dealer, contribution[0]
        holders = self._holders.setdefault(contribution, set())
        part = self._part_of.get(contribution)
        if part is not None and server not in holders and self._lacking[server] > 0:
            self._lacking[server] -= 1
        holders.add(server)
        if part is None or len(holders) < self.servers or part in self.complete:
            return
        if dealer.whole and part not in self.open:
            return
        if not dealer.whole and (len(self.complete) >= dealer.parts or self.completed_by[rank] >= self.quota):
            return
        self.complete[part] = contribution
        self.completed_by[rank] += 1
        self.open.discard(part)
        if part in dealer.due:
            dealer.hold(part, rank)

    def change_members(self, live: Set[int], anew: Collection[int] = ()) -> None:
        """Go on with these replicas; the processes of `anew` are other ones than before.

        Parts of those that are lost are dealt again, but for complete ones.
        """
        live = live if self.ranks is None else live & self.ranks
        for rank in sorted((self.live - live) | set(anew)):
            self.dealer.lose(rank, self.complete)
        self.live = live
        self._count_members(anew)
        self._take_turns()

    def _count_members(self, anew: Collection[int] = ()) -> None:
        """Count anew what each replica may contribute, and who owes a part of this version."""
        live = self.live
        fewer = self.shrink and 0 < len(live) < self.replicas
        self.quota = quota(self.dealer.parts, len(live) if fewer else self.replicas)
        held_by: defaultdict[int, int] = defaultdict(int)
        self._lacking = [0] * self.servers
        for contribution in self._part_of:
            rank = contribution[0]
            held_by[rank] += 1
            if rank in live and rank not in anew:
                self._await_others(contribution)
        done = {rank for rank, count in held_by.items() if count >= self.quota and rank not in anew}
        self._owing = dict.fromkeys(sorted(live - done))

    def decided(self) -> NextVersion | None:
        """Return what makes the next version; None: not enough is complete, or none is to be made."""
        whole, parts = self.dealer.whole, self.dealer.parts
        enough = self.complete and not self.open if whole else len(self.complete) >= parts
        if not enough or self.rests:
            return None
        contributors = tuple(self.complete[part] for part in sorted(self.complete))
        return NextVersion(contributors, len(contributors) + self._empty)

    def advance(self, decided: NextVersion) -> None:
        """Settle the parts of a version that is made, and begin the next batch; lost replicas' parts were
        given back before.
        """
        if not self.dealer.whole:
            self._settle(decided.contributors)
        self.version += 1
        self.too_few_since_s = None
        for state in (self._part_of, self._holders, self.complete, self.completed_by, self.open):
            state.clear()
        self.contributed.clear()
        self._count_members()
        self._begin_batch()

    def _settle(self, contributors: Iterable[Contribution]) -> None:
        counted = set(contributors)
        for contribution, part in self.contributed.items():
            if contribution in counted:
                self.dealer.settle(part)
            elif self.dealer.given.get(part) == contribution[0]:
                self.too_late(contribution[0], part)
