"""The step machine of synchronous training: which parts make the next version, and who computes them.

It joins the dealer of parts (docs/design/protocol.md#one-batch-a-step) to the decision which contributions
count (docs/design/protocol.md#one-decision). ps:0 hosts it for servers, the leading replica for replicas that
reduce among themselves, and the one process for replicas in threads. They differ in how a gradient is held
and reduced, of which it knows nothing: a contribution is *held* when its gradient is where it is to be
reduced.
"""

from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass, field

from dtrain.protocol.part_dealer import NO_PART, PartDealer
from dtrain.protocol.sync_round import Contribution, NextVersion, SyncDecision


@dataclass(kw_only=True)
class StepMachine:
    """The steps of one call of `fit`, from the version at which it stands.

    Attributes:
        retry: whether a part that came too late is computed again.
        rests_held: whether no part is dealt while the leader holds training (`deterministic`, local steps):
            the values may be about to change, or the optimizer of the replicas.
        until: the version at which the leader holds training: none is made beyond it; None: there is none.
        ranks: the only replicas that are dealt parts; None: all.
        turn: where more replicas live than a batch has parts, those that compute one of this batch; None:
            all.
        batches: how many batches and versions have begun, for who waits for the next one.
        contributed: the part of each contribution to the version that is being made.
    """

    dealer: PartDealer
    decision: SyncDecision
    max_steps: int
    retry: bool = False
    rests_held: bool = False
    until: int | None = None
    ranks: Set[int] | None = None
    turn: Set[int] | None = field(default=None, init=False)
    batches: int = field(default=0, init=False)
    contributed: dict[Contribution, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._begin_batch()

    # How training stands

    @property
    def version(self) -> int:
        return self.decision.version

    @property
    def held_back(self) -> bool:
        return self.until is not None and self.version >= self.until

    @property
    def rests(self) -> bool:
        """Whether no version is made now, whatever is contributed."""
        return self.version >= self.max_steps or self.held_back

    def awaited(self) -> tuple[Collection[int], Collection[int]]:
        """Return the ranks that owe a part, and the servers that lack one."""
        ranks, servers = self.decision.awaited()
        return ranks if self.turn is None else [rank for rank in ranks if rank in self.turn], servers

    # Parts

    def _begin_batch(self) -> None:
        self.batches += 1
        if self.dealer.whole:
            self.decision.begin(self.dealer.begin_batch())
            self._take_turns()

    def _take_turns(self) -> None:
        """Let every replica compute a part of equally many batches, where more live than there are parts."""
        live, parts, batch = self.decision.live, self.dealer.parts, self.dealer.batch
        self.turn = None
        if self.dealer.whole and len(live) > parts:
            ranks = sorted(live)
            self.turn = {ranks[number % len(ranks)] for number in range(batch * parts, (batch + 1) * parts)}

    def next_part(self, rank: int) -> int:
        """Return the part that a replica is to compute, until that is contributed; NO_PART: none now.

        Where a part that came too late is computed again, the last steps wait for it: no part of a pass that
        is never made takes its place.
        """
        version = self.decision.version
        if version >= self.max_steps or (self.rests_held and self.held_back):
            return NO_PART
        dealer, decision, turn = self.dealer, self.decision, self.turn
        if rank not in decision.live:
            return NO_PART
        if rank not in dealer.current and not (
            len(dealer.parts_of[rank]) < decision.quota and (turn is None or rank in turn)
        ):
            return NO_PART
        fresh = not self.retry or dealer.outstanding < (self.max_steps - version) * dealer.parts
        return dealer.give(rank, decision.live if turn is None else turn, fresh=fresh)

    def too_late(self, rank: int, part: int) -> bool:
        """Note that a part came too late; return whether others may compute it now.

        A batch that is dealt whole was settled when its version was made. But a part of the present one may
        have been computed from an earlier version: the replica was told of it in the answer to a push that it
        had repeated.
        """
        if self.dealer.whole:
            comes_back = self.dealer.given.get(part) == rank and part in self.decision.open
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
            self.decision.settle(part, empty=False)
            self._pass_over()

    def _pass_over(self) -> bool:
        """Begin the next batch if every gradient of this one was refused; return whether it was so."""
        if not self.decision.all_refused:
            return False
        self._begin_batch()
        return True

    # Contributions and decisions

    def contribute(self, contribution: Contribution, part: int, examples: int, empty: int = 0) -> bool:
        """Note a part that the host of this machine holds; of its batch the last `empty` ones have no
        examples, and it has none itself where `examples` is 0. Return whether its batch is passed over now.
        """
        dealer, decision = self.dealer, self.decision
        dealer.pushed(contribution[0], part)
        self.contributed[contribution] = part
        if examples:
            decision.offer(contribution, part)
            if part in dealer.due and contribution[0] in decision.live:
                dealer.hold(part, contribution[0])  # thought lost, the replica need not compute it again
            self.reported(decision.host, contribution, decision.version)
        elif not dealer.whole:
            dealer.settle(part)
        if dealer.whole and (empty or not examples):
            end = part // dealer.parts * dealer.parts + dealer.parts
            own = None if examples else part
            for each in [each for each in decision.open if each == own or end - empty <= each < end]:
                decision.settle(each, empty=True)
                dealer.hold(each)
        return self._pass_over()

    def reported(self, server: int, contribution: Contribution, version: int) -> None:
        """Note that a server holds a contribution; once complete, its part is not computed again."""
        part = self.decision.report(server, contribution, version)
        if part is not None and part in self.dealer.due:
            self.dealer.hold(part, contribution[0])

    def change_members(self, live: Set[int], anew: Collection[int] = ()) -> None:
        """Go on with these replicas; the processes of `anew` are other ones than before.

        Parts of those that are lost are dealt again, but for complete ones.
        """
        live = live if self.ranks is None else live & self.ranks
        for rank in sorted((self.decision.live - live) | set(anew)):
            self.dealer.lose(rank, self.decision.complete)
        self.decision.members_changed(live, anew)
        self._take_turns()

    def decided(self) -> NextVersion | None:
        """Return what makes the next version; None: not enough is complete, or none is to be made."""
        decided = self.decision.decided()
        return None if decided is None or self.rests else decided

    def advance(self, decided: NextVersion) -> None:
        """Settle the parts of a version that is made, and begin the next batch; lost replicas' parts were
        given back before.
        """
        if not self.dealer.whole:
            self._settle(decided.contributors)
        self.decision.committed()
        self.contributed.clear()
        self._begin_batch()

    def _settle(self, contributors: Iterable[Contribution]) -> None:
        counted = set(contributors)
        for contribution, part in self.contributed.items():
            if contribution in counted:
                self.dealer.settle(part)
            elif self.dealer.given.get(part) == contribution[0]:
                self.too_late(contribution[0], part)
