"""The host's part in synchronous training: which part each replica computes, and what makes the next version.
Machine.

It joins the dealer of parts, the decision (docs/design/protocol.md#one-decision) and the sums of loss and
metrics. What it decides every server carries out, the host's own included; see `Decide`.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from dtrain.config import SyncSection
from dtrain.config.choices import TooFew
from dtrain.control.interface import Action, Caller, Decide, Send
from dtrain.messages import Commit, Complete, Push, Refusal, RefusalKind, Release, Subscribe
from dtrain.protocol.part_dealer import NO_PART, PartDealer
from dtrain.protocol.sync_round import Contribution, NextVersion, SyncDecision
from dtrain.protocol.tally import Tally
from dtrain.state.fit_state import Open


@dataclass(kw_only=True)
class SyncSteps:
    """The steps of one term.

    Attributes:
        ranks: the only replicas that are dealt parts; None: all.
        turn: where more replicas live than a batch has parts, those that compute one of this batch; None:
            all.
        pushes: contributions to the version that is being made, with the message that brought each.
        pending: those whose replicas wait for the next version or for another part.
        released: those whose replicas were given another part.
        last_commit: the newest decision, for a server that connects again.
    """

    dealer: PartDealer
    decision: SyncDecision
    tally: Tally
    training: SyncSection
    followers: Sequence[Caller]
    generation: int
    term: int
    max_steps: int
    missing: Callable[[], str]
    until: int | None = None
    ranks: Set[int] | None = None
    leader: int | None = None
    failed: Refusal | None = None
    shared_out: int = 0
    turn: Set[int] | None = field(default=None, init=False)
    pushes: dict[Contribution, Push] = field(default_factory=dict, init=False)
    pending: dict[Contribution, None] = field(default_factory=dict, init=False)
    released: set[Contribution] = field(default_factory=set, init=False)
    last_commit: Commit | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._retry = self.training.repeats_late
        self._begin_batch()

    # How training stands

    @property
    def version(self) -> int:
        return self.decision.version

    @property
    def held_back(self) -> bool:
        return self.until is not None and self.decision.version >= self.until

    @property
    def _rests(self) -> bool:
        return self.failed is not None or self.version >= self.max_steps or self.held_back

    @property
    def too_few(self) -> bool:
        return self.decision.too_few_since_s is not None

    @property
    def awaits_others(self) -> bool:
        return False

    @property
    def fingerprint(self) -> Hashable:
        """All that `permit` depends on beside what each rank has done: while it stays, refusals stay."""
        return self.decision.version, self.shared_out

    def awaited(self) -> tuple[Collection[int], Collection[int]]:
        ranks, servers = self.decision.awaited()
        return ranks if self.turn is None else [rank for rank in ranks if rank in self.turn], servers

    def told_to(self, rank: int) -> Open:
        """Return the sums of the epochs that have not ended, to the leader alone."""
        return self.tally.open() if rank == self.leader else ()

    def repairs_next(self, rank: int) -> bool:
        return False

    def confirm(self, rank: int, sequence: int) -> None: ...

    # What the leader changes

    def hold(self) -> int:
        """Let no version be made but those under way; return the one after them."""
        self.until = self.version
        return self.version

    def release(self, until: int | None) -> None:
        self.until = until

    def end_at(self, version: int) -> None:
        self.max_steps = version
        if self.version >= version:
            self._forget_pushes()

    # Parts

    def _begin_batch(self) -> None:
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

    def permit(self, rank: int) -> tuple[bool, int]:
        """Return whether a replica may push next, and the part that it is to compute.

        With `deterministic` no replica begins with values that the leader may be about to change. Where a
        part that came too late is computed again, the last steps wait for it: no part of a pass that is never
        made takes its place.
        """
        version = self.decision.version
        if version >= self.max_steps or (self.training.deterministic and self.held_back):
            return False, NO_PART
        dealer, decision, turn = self.dealer, self.decision, self.turn
        if rank not in decision.live:
            return False, NO_PART
        if rank not in dealer.current and not (
            len(dealer.parts_of[rank]) < decision.quota and (turn is None or rank in turn)
        ):
            return False, NO_PART
        fresh = not self._retry or dealer.outstanding < (self.max_steps - version) * dealer.parts
        part = dealer.give(rank, decision.live if turn is None else turn, fresh=fresh)
        return part != NO_PART, part

    def came_too_late(self, rank: int, part: int) -> bool:
        """Note that the gradient of a part has arrived too late; see `too_late`."""
        self.dealer.pushed(rank, part)
        return self.too_late(rank, part)

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
        self.dealer.late(part, again=self._retry)
        return False

    def refused(self, rank: int, part: int, *, empty: bool = False) -> tuple[bool, int]:
        """Where every part of a batch was refused, the next one takes its place."""
        dealer = self.dealer
        dealer.pushed(rank, part)
        if not dealer.whole:
            dealer.settle(part)
        elif part // dealer.parts == dealer.batch:  # else its batch has made a version without it
            dealer.hold(part)
            self.decision.settle(part, empty=False)
            self._passes_over()
        return self.permit(rank)

    def _passes_over(self) -> bool:
        """Begin the next batch if every gradient of this one was refused; return whether it was so."""
        if not self.decision.all_refused:
            return False
        self._begin_batch()
        return True

    # Contributions and decisions

    def offered(self, contribution: Contribution, push: Push, now: float) -> list[Action]:
        """Note a part that the host holds now, or that has no examples; return what follows from it."""
        dealer, decision = self.dealer, self.decision
        dealer.pushed(contribution[0], push.part)
        self.pushes[contribution] = push
        self.pending[contribution] = None
        if push.examples:
            decision.offer(contribution, push.part)
            if push.part in dealer.due and contribution[0] in decision.live:
                dealer.hold(push.part, contribution[0])  # thought lost, the replica need not compute it again
            self.reported(self.decision.host, contribution, push.base_version)
        elif not dealer.whole:
            dealer.settle(push.part)
        if dealer.whole and (push.empty or not push.examples):
            end = push.part // dealer.parts * dealer.parts + dealer.parts
            own = None if push.examples else push.part
            for part in [part for part in decision.open if part == own or end - push.empty <= part < end]:
                decision.settle(part, empty=True)
                dealer.hold(part)
        decided = self.share_out(now) if self._passes_over() else self.decide()
        # else there is no other part for the replica, and `permit` need not be asked
        may_be_another = not dealer.whole or bool(dealer.due) or contribution[0] in dealer.current
        if contribution in self.pending and may_be_another:
            decided += self._deal_to(contribution)
        return decided

    def complete(self, server: int, message: Complete) -> list[Action]:
        contribution = (message.rank, message.incarnation, message.ordinal)
        self.reported(server, contribution, message.version)
        return self.decide()

    def reported(self, server: int, contribution: Contribution, version: int) -> None:
        """Note that a server holds a contribution; once complete, its part is not computed again."""
        part = self.decision.report(server, contribution, version)
        if part is not None and part in self.dealer.due:
            self.dealer.hold(part, contribution[0])

    def members_changed(self, live: Set[int], anew: Collection[int], now: float) -> list[Action]:
        live = live if self.ranks is None else live & self.ranks
        for rank in sorted((self.decision.live - live) | set(anew)):
            self.dealer.lose(rank, self.decision.complete)
        self.decision.members_changed(live, anew)
        self._take_turns()
        return self.share_out(now)

    def share_out(self, now: float) -> list[Action]:
        """Deal parts that may have come back, or those of a batch that has begun, to replicas that wait."""
        self.shared_out += 1
        dealt = [decided for contribution in list(self.pending) for decided in self._deal_to(contribution)]
        return dealt + self.judge(now)

    def _deal_to(self, contribution: Contribution) -> list[Action]:
        """If there is another part for a replica that waits, let it go on, on every server."""
        may, part = self.permit(contribution[0])
        if not may:
            return []
        self.released.add(contribution)
        del self.pending[contribution]
        return self._decision(self._release(contribution), part)

    def _release(self, contribution: Contribution) -> Release:
        return Release(
            generation=self.generation, version=self.version, contribution=contribution, term=self.term
        )

    def judge(self, now: float) -> list[Action]:
        decided = self.decide()
        if self._rests:
            return decided
        found = self.decision.too_few(now)
        if found is None:
            return decided
        waited_s = now - found.since_s
        if self.training.too_few == TooFew.FAIL or waited_s >= self.training.too_few_timeout_s:
            reason = (
                f"too few replicas: {found.needed} contributions are needed for version {self.version + 1} "
                f"and at most {found.possible} can come, for {waited_s:.1f} s (training.too_few: "
                f"{self.training.too_few}): {self.missing()}"
            )
            self.failed = Refusal(reason=reason, kind=RefusalKind.TOO_FEW_REPLICAS)
        return decided

    def decide(self) -> list[Action]:
        decided = self.decision.decided()
        if decided is None or self._rests:
            return []
        commit = Commit(
            generation=self.generation,
            version=self.version,
            contributors=decided.contributors,
            term=self.term,
            parts=decided.parts,
        )
        self.last_commit = commit
        self._made(decided)
        return self._decision(commit)

    def _decision(self, decision: Commit | Release, part: int = NO_PART) -> list[Action]:
        """Return a decision as it goes to every server, the host's own last."""
        return [*(Send(follower, decision) for follower in self.followers), Decide(decision, part)]

    def _made(self, decided: NextVersion) -> None:
        """Settle the parts of this version, and begin the next batch; lost replicas' parts were given
        back before.
        """
        version = self.version
        for contribution in decided.contributors:
            self.tally.add(version, self.pushes[contribution].sums)
        if not self.dealer.whole:
            self._settle(decided.contributors)
        self.decision.committed()
        self._forget_pushes()
        self._begin_batch()

    def _settle(self, contributors: Iterable[Contribution]) -> None:
        counted = set(contributors)
        for contribution, push in self.pushes.items():
            if contribution in counted:
                self.dealer.settle(push.part)
            elif self.dealer.given.get(push.part) == contribution[0]:
                self.too_late(contribution[0], push.part)

    def _forget_pushes(self) -> None:
        self.pushes.clear()
        self.pending.clear()
        self.released.clear()

    def said_since(self, message: Subscribe) -> list[Commit | Release]:
        """Return what a server that connects (again) has missed: servers are never more than one version
        apart. Where it stood when it asked may be long ago: it may have been initialised since.
        """
        last = self.last_commit
        said: list[Commit | Release] = []
        asked = message.generation, message.term, message.version
        if last is not None and asked <= (last.generation, last.term, last.version):
            said.append(last)
        return said + [self._release(contribution) for contribution in sorted(self.released)]
