"""The step machine as ps:0 hosts it: pushes come in, decisions go out, and sums of loss and metrics are kept.

What it decides every server carries out, the host's own included; see `Decide`.
"""

from collections.abc import Callable, Collection, Hashable, Sequence, Set
from dataclasses import dataclass, field

from dtrain.config import SyncSection
from dtrain.config.choices import TooFew
from dtrain.control.interface import Action, Caller, Decide, NextTurn, Send
from dtrain.messages import Commit, Complete, Push, Refusal, RefusalKind, Release, Subscribe
from dtrain.protocol.part_dealer import NO_PART
from dtrain.protocol.tally import Tally
from dtrain.state.fit_state import Open
from dtrain.state.rounds import speeds_of
from dtrain.steps.machine import Contribution, StepMachine


@dataclass(kw_only=True)
class SyncSteps(StepMachine):
    """The steps of one term, in messages.

    Attributes:
        pushes: contributions to the version that is being made, with the message that brought each.
        pending: those whose replicas wait for the next version or for another part.
        released: those whose replicas were given another part.
        last_commit: the newest decision, for a server that connects again.
        by_speed: whether replicas share a round of local steps by their speed.
        step_s: by rank, how long a local step takes; the newer a round is, the more it counts.
    """

    tally: Tally
    training: SyncSection
    followers: Sequence[Caller]
    generation: int
    term: int
    missing: Callable[[], str]
    leader: int | None = None
    shared_out: int = 0
    by_speed: bool = False
    step_s: dict[int, float] = field(default_factory=dict, init=False)
    _speeds: tuple[int, tuple[int, ...]] = field(default=(-1, ()), init=False)
    pushes: dict[Contribution, Push] = field(default_factory=dict, init=False)
    pending: dict[Contribution, None] = field(default_factory=dict, init=False)
    released: set[Contribution] = field(default_factory=set, init=False)
    last_commit: Commit | None = field(default=None, init=False)

    # How training stands

    @property
    def too_few(self) -> bool:
        return self.too_few_since_s is not None

    @property
    def awaits_others(self) -> bool:
        return False

    @property
    def fingerprint(self) -> Hashable:
        """All that `next_part` depends on beside what each rank has done: while it stays, refusals stay."""
        return self.version, self.shared_out

    def told_to(self, rank: int) -> Open:
        """Return the sums of the epochs that have not ended, to the leader alone."""
        return self.tally.open() if rank == self.leader else ()

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

    def next_turn(self, rank: int) -> NextTurn:
        """Deal to a replica what it may push next."""
        part = self.next_part(rank)
        return NextTurn(ticket=part != NO_PART, part=part, tally=self.told_to(rank), speeds=self.speeds)

    def refused(self, rank: int, part: int) -> NextTurn:
        """Note a gradient that is not finite; return what the replica may push next."""
        self.refuse(rank, part)
        return self.next_turn(rank)

    @property
    def speeds(self) -> tuple[int, ...]:
        """By which the round that is dealt is shared, from its first part to its last: what is measured
        meanwhile is for the next one.
        """
        if self.by_speed and self._speeds[0] != self.dealer.batch:
            self._speeds = self.dealer.batch, speeds_of(self.step_s, self.dealer.parts)
        return self._speeds[1]

    # Contributions and decisions

    def offered(self, contribution: Contribution, push: Push, now: float) -> list[Action]:
        """Note a part that the host holds now, or that has no examples; return what follows from it."""
        dealer = self.dealer
        self.pushes[contribution] = push
        self.pending[contribution] = None
        if push.step_s:
            rank = contribution[0]
            self.step_s[rank] = (self.step_s.get(rank, push.step_s) + push.step_s) / 2
        passes_over = self.contribute(contribution, push.part, push.examples, push.empty)
        decided = self.share_out(now) if passes_over else self.decide()
        # else there is no other part for the replica, and `next_part` need not be asked
        may_be_another = not dealer.whole or bool(dealer.due) or contribution[0] in dealer.current
        if contribution in self.pending and may_be_another:
            decided += self._deal_to(contribution)
        return decided

    def reported(self, server: int, message: Complete) -> list[Action]:
        self.report(server, (message.rank, message.incarnation, message.ordinal), message.version)
        return self.decide()

    def members_changed(self, live: Set[int], anew: Collection[int], now: float) -> list[Action]:
        self.change_members(live, anew)
        return self.share_out(now)

    def share_out(self, now: float) -> list[Action]:
        """Deal parts that may have come back, or those of a batch that has begun, to replicas that wait."""
        self.shared_out += 1
        dealt = [decided for contribution in list(self.pending) for decided in self._deal_to(contribution)]
        return dealt + self.judge(now)

    def _deal_to(self, contribution: Contribution) -> list[Action]:
        """If there is another part for a replica that waits, let it go on, on every server."""
        part = self.next_part(contribution[0])
        if part == NO_PART:
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
        if self.rests:
            return decided
        found = self.shortage(now)
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
        decided = self.decided()
        if decided is None:
            return []
        commit = Commit(
            generation=self.generation,
            version=self.version,
            contributors=decided.contributors,
            term=self.term,
            parts=decided.parts,
        )
        self.last_commit = commit
        for contribution in decided.contributors:
            self.tally.add(self.version, self.pushes[contribution].sums)
        self.advance(decided)
        self._forget_pushes()
        return self._decision(commit)

    def _decision(self, decision: Commit | Release, part: int = NO_PART) -> list[Action]:
        """Return a decision as it goes to every server, the host's own last."""
        return [*(Send(follower, decision) for follower in self.followers), Decide(decision, part)]

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
