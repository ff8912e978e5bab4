"""The rounds of one member of a host: it carries messages to and from the round machine, and reduces.

What is to be done `steps.member.RoundMember` decides (docs/design/steps.md).
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dtrain.collectives.step import Phase
from dtrain.config.choices import NanPolicy, Weighting
from dtrain.errors import NonFiniteGradientError
from dtrain.messages import Sums, Verdict
from dtrain.messages.rounds import (
    CompletePart,
    MemberReport,
    MemberSeat,
    ReduceAttempt,
    RoundMade,
    Told,
)
from dtrain.parameters.store import TwoSidedStore
from dtrain.parameters.updater import Contributions
from dtrain.protocol.contributions import Outcome
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.round import SliceWork
from dtrain.roles.collective.rules import Rules, Waits
from dtrain.state.batch_cut import Dealt
from dtrain.state.fit_state import Open
from dtrain.steps.follower import (
    AbandonAttempt,
    Action,
    CommitRound,
    ComputeDeals,
    HoldRound,
    LeaveRun,
    Reduce,
    SkipRounds,
)
from dtrain.steps.member import RoundMember
from dtrain.wire.one_host.members import MemberLinks

PENDING = Outcome(Verdict.PENDING)
FINISHED = Outcome(Verdict.FINISHED)
LINK_S = 10.0
"""The seconds after which a member to which there is no socket counts as ended."""


class Adopted(NamedTuple):
    """A round that is over.

    Attributes:
        version, side: that follow it.
        sums: of the parts that made it, in their order; None: this member was not told of it.
    """

    version: int
    side: int
    sums: Sequence[Sums] | None


class LeaderOrders(NamedTuple):
    """How a member finds the leader's orders and the sums of epochs, which all of a host share.

    Attributes:
        heed: lets what is ordered hold, in this thread.
        values: returns the values that the leader assigns, by name, and whether training ends with them.
        adopt: counts a round that is over; the sums of epochs come with one of which it was not told.
        sums_after: returns the sums of the epochs that have not ended, with those of a version's parts.
        owes_values: returns whether an earlier leader has ordered values that may not be assigned yet.
        carry: writes down what makes a round before it cannot be made of anything else any more.
    """

    heed: Callable[[], None]
    values: Callable[[], tuple[Mapping[str, bytes], bool]]
    owes_values: Callable[[], bool]
    adopt: Callable[[Adopted, Open], None]
    sums_after: Callable[[Open, int, Sequence[Sums]], Open]
    carry: Callable[[int, RoundMade], None]


class MemberRounds:
    """One member's messages and lanes. Whoever has `turn` may use it.

    Attributes:
        store: whose `variables` are those of all, at the version that this member has adopted.
        owes_values: whether this member, as the leader, has yet to assign what an earlier one ordered.
        made_by: the ranks whose gradients made the newest version, in the order of their parts.
    """

    def __init__(
        self,
        arena: Arena,
        links: MemberLinks,
        member: RoundMember,
        store: TwoSidedStore,
        rules: Rules,
        orders: LeaderOrders,
        waits: Waits,
        *,
        phases: Sequence[Phase],
    ) -> None:
        """Take part; `phases` are those that a lane goes through, in this order."""
        known = member.known
        self.store = store
        self.rank = member.members[member.number].rank
        self.made_by: list[int] = []
        self._arena, self._links, self._member = arena, links, member
        self._rules, self._orders, self._waits = rules, orders, waits
        self._dealt_parts = known.dealt.parts
        self._phases, self._work = phases, SliceWork(store)
        self._version, self._side = known.version, known.side
        self._adopted, self._adopted_round = known.version, member.round
        self._news: list[Adopted] = []
        self._begun_attempt = -1, -1
        self._made: tuple[int, RoundMade] = -1, RoundMade()
        self._voids = {False: 0, True: 0}
        self._round = member.round
        self._held, self._held_since_s = -1, 0.0
        self._asked: dict[int, int] = {}
        self._welcomed: set[int] = set()
        self._ended: set[int] = set()
        self._unlinked: dict[int, float] = {}
        self._is_left = self._led = False
        self.owes_values = False
        self._arrives = self._resyncs = False
        self._ordered: RoundMade | None = None
        self._known_members = member.members
        self._failure: BaseException | None = None
        self._turn = threading.Condition(threading.RLock())

    def begin_later(self, told: Told, gone: Sequence[int]) -> None:
        """Begin after others, by what the leader has told; the members `gone` have ended."""
        for number in gone:
            self._ended.add(number)
            self._member.gone(number)
        self._member.received(self._member.leader, told, self._waits.clock.now())

    # How training stands

    @property
    def version(self) -> int:
        """The version that this member has adopted."""
        return self._adopted

    @property
    def newest(self) -> int:
        """The newest version, which this member may not have adopted yet."""
        return self._version

    @property
    def round(self) -> int:
        return self._round

    @property
    def finished(self) -> bool:
        return self.store.max_steps is not None and self.version >= self.store.max_steps

    @property
    def members(self) -> set[int]:
        """The ranks of the members."""
        return {seat.rank for seat in self._member.members.values()}

    @property
    def dead(self) -> set[int]:
        """The ranks of members that have ended."""
        return {seat.rank for number, seat in self._member.members.items() if number in self._ended}

    @property
    def leads(self) -> bool:
        return self._member.leads_in > 0

    @property
    def leader(self) -> int:
        """The rank of the member that is taken for the leader."""
        seat = self._member.members.get(self._member.leader)
        return self.rank if seat is None else seat.rank

    @property
    def dealt(self) -> Dealt:
        """The state of the dealer as this round began."""
        return self._member.known.dealt

    # Messages

    def _look(self, timeout_s: float) -> bool:
        """Wait for messages; return whether there were any."""
        heard = self._links.receive(timeout_s)
        with self._turn:
            now_s = self._waits.clock.now()
            for number, message in heard:
                if message is None:
                    self._ended.add(number)
                    self._member.gone(number)
                elif isinstance(message, MemberReport | Told):
                    self._member.received(number, message, now_s)
            self._pump()
            self._turn.notify_all()
        return bool(heard)

    def _pump(self) -> None:
        """Let the member go on, and do what follows."""
        member = self._member
        while True:
            now_s = self._waits.clock.now()
            self._arrive()
            sent, actions = member.drain(now_s)
            for number, message in sent:
                if isinstance(message, Told) and message.attempt is not None and message.attempt.first:
                    self._note_carry(message.round, message.attempt.first, message.attempt.made)
                self._links.send(number, message)
            for action in actions:
                self._carry_out(action, now_s)
            self._round = member.round
            self._link(now_s)
            self._welcome()
            if not actions:
                return

    def _arrive(self) -> None:
        """Say that this process, where it leads, orders nothing more; first what an earlier leader owes."""
        if self.leads and not self._led:
            self._led = True
            self._orders.heed()
            self.owes_values = self._orders.owes_values()
        if self.owes_values:
            self._member.arrive(self._member.round, ordered=RoundMade(values=True))
        elif self._arrives:
            self._member.arrive(self._member.round, ordered=self._ordered)

    def _carry_out(self, action: Action, now_s: float) -> None:
        match action:
            case Reduce(round_, attempt):
                self._reduce(round_, attempt)
            case CommitRound(round_, made):
                self._commit(round_, made)
            case SkipRounds(_, version, side):
                self._go_on(Adopted(version, side, None))
                self._orders.heed()
            case HoldRound(_, live):
                self._held_since_s = now_s if self._held < 0 else self._held_since_s
                self._held = live
            case ComputeDeals():
                self._orders.heed()
            case LeaveRun():
                self._is_left = True
            case AbandonAttempt():
                """Nothing is left of it: a lane is reduced at once."""

    def _link(self, now_s: float) -> None:
        """Connect new members, and ask in those that would like to be."""
        if self._member.members is not self._known_members:
            self._known_members = self._member.members
            self._links.ranks = sorted(self.members)
        offered = self._links.offered
        numbers = self._links.numbers
        for number, seat in self._member.members.items() if len(numbers) < len(self._member.members) else ():
            if number in numbers or number in self._ended or number == self._member.number:
                continue
            if seat.rank in offered and self._links.take_up(seat.rank, number):
                self._unlinked.pop(number, None)
            elif now_s - self._unlinked.setdefault(number, now_s) >= LINK_S:
                self._unlinked.pop(number)
                self._ended.add(number)
                self._member.gone(number)
        for rank, which in offered.items() if self.leads else ():
            if self._asked.get(rank) != which:
                self._asked[rank] = which
                self._member.admit(
                    MemberSeat(number=-1, rank=rank, task=self._waits.name_of(rank), address=str(which))
                )

    def _welcome(self) -> None:
        for seat, told, _ in self._member.welcome:
            if seat.number not in self._welcomed and seat.number in self._links.numbers:
                self._welcomed.add(seat.number)
                self._links.send(seat.number, told)

    # Rounds

    def _note_carry(self, round_: int, phase: int, made: RoundMade) -> None:
        """Write down, as the leader, what makes a round, before the phase that changes what is there once."""
        if made.parts and Phase.ROWS in self._phases and phase == len(self._phases) - 1:
            self._orders.carry(round_, made)

    def _reduce(self, round_: int, attempt: ReduceAttempt) -> None:
        self._orders.heed()
        lanes = attempt.lanes[self._member.number]
        made, last = attempt.made, attempt.last == len(self._phases) - 1
        if made.void:
            if 0 in lanes:
                values, ends = self._orders.values()
                self.store.assign_beside(values, self._side, ends=ends)
        else:
            if (round_, attempt.number) != self._begun_attempt:
                self._begin(attempt)
                self._begun_attempt = round_, attempt.number
            for phase in range(attempt.first, attempt.last + 1):
                if self.leads:
                    self._note_carry(round_, phase, made)
                for lane in lanes:
                    self._work.work(self._phases[phase], lane, attempt.count)
        if last and 0 in lanes:
            sums = [done.sums for done in made.parts if done.sums is not None]
            before = self._arena.tally(self._side)
            assert before is not None, "the sums of a version are written before it begins"
            self._arena.put_tally(self._side + 1, self._orders.sums_after(before, self._version, sums))
        self._member.reduced(attempt.number, attempt.last + 1)

    def _begin(self, attempt: ReduceAttempt) -> None:
        made = attempt.made
        given = Contributions.of(
            [self._arena.given(done.place) for done in made.parts],
            made.divisor - len(made.parts),
            [done.examples for done in made.parts] if self._rules.weighting == Weighting.EXAMPLES else None,
            self._version,
        )
        needs = self._work.begin(given, self._side)
        if Phase.SQUARES in needs and Phase.SQUARES not in self._phases:
            self._work.work(Phase.SQUARES, 0, 1)

    def _commit(self, round_: int, made: RoundMade) -> None:
        self._made = round_, made
        self._held = -1
        if made.refused and self._rules.nan_policy == NanPolicy.FAIL:
            rank = self._rank_of(made.refused[0])
            self._failure = NonFiniteGradientError(not_finite(self._waits, rank, self._version + 1))
        self._arrives, self._ordered = False, None
        if made.void:
            self._voids[made.values] += 1
            self.owes_values = self.owes_values and not made.values
        if made.parts or made.values:
            sums = [done.sums for done in made.parts if done.sums is not None]
            self._go_on(Adopted(self._version + (not made.void), self._side + 1, sums))
        if made.parts:
            self.made_by = [self._rank_of(done) for done in made.parts]
        self._orders.heed()

    def _rank_of(self, done: CompletePart) -> int:
        return self._member.seats[done.holder].rank

    def _go_on(self, news: Adopted) -> None:
        self._version, self._side = news.version, news.side
        self._news.append(news)

    def _adopt(self) -> None:
        """Go on to the newest version, with all that made it."""
        self._adopted_round = self._round
        if not self._news:
            return
        if self._resyncs or any(each.sums is None for each in self._news):
            tally = self._arena.tally(self._side)
            self._resyncs = tally is None  # another member writes there: the next version has it
            self._orders.adopt(self._news[-1]._replace(sums=None), tally or ())
        else:
            for each in self._news:
                self._orders.adopt(each, ())
        self._adopted = self._version
        self.store.stand_at(self._side)
        self._news.clear()


def not_finite(waits: Waits, rank: int, step: int) -> str:
    """Return why the gradient of a rank makes no step."""
    return f"the gradient of {waits.name_of(rank)} for step {step} holds NaN or infinity"


def phases_of(store: TwoSidedStore, arena: Arena) -> list[Phase]:
    """Return the phases that a lane goes through."""
    limits = not store.optimizer.elementwise
    rows = bool(arena.shape.tables_once)
    return [*([Phase.SQUARES] if limits else ()), *([Phase.ROWS] if rows else ()), Phase.UPDATE]
