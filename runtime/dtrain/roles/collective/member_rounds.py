"""The rounds of one member of a host: it carries messages to and from the round machine, and reduces.

What is to be done `steps.member.RoundMember` decides (docs/design/steps.md).
"""

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import NamedTuple

from dtrain.collectives.step import Phase
from dtrain.config.choices import NanPolicy
from dtrain.errors import NonFiniteGradientError, PeerError
from dtrain.messages import AnyMessage
from dtrain.messages.rounds import (
    CallMade,
    CompletePart,
    MemberReport,
    MemberSeat,
    ReduceAttempt,
    RoundMade,
    Told,
)
from dtrain.parameters.store import TwoSidedStore
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.lane_work import LaneJob, LaneWork
from dtrain.roles.collective.over_hosts import OverHosts
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

LINK_S = 10.0
"""The seconds after which a member counts as ended to which there is no socket, if its process does not live.
"""


class LeaderOrders(NamedTuple):
    """How a member finds the leader's orders, which all of a host share.

    Attributes:
        heed: applies the orders from the newest version on; returns the last version that may be made.
        values: returns, for the newest version, the values that the leader assigns, by name, and whether
            training ends with them.
        owes_values: returns whether an earlier leader has ordered values that may not be assigned yet.
        awaits_values: returns whether a member at this side of the values still lacks ordered ones.
        adopt: lets training stand at a version.
    """

    heed: Callable[[int], int | None]
    values: Callable[[int], tuple[Mapping[str, bytes], bool]]
    owes_values: Callable[[], bool]
    awaits_values: Callable[[int], bool]
    adopt: Callable[[int], None]


class MemberRounds:
    """One member's messages and lanes. Whoever has `turn` may use it.

    Attributes:
        store: whose `variables` are those of all, at the version that this member has adopted.
        version: that version.
        base: the round in which this member computes.
        owes_values: whether this member, as the leader, has yet to assign what an earlier one ordered.
    """

    def __init__(
        self,
        arena: Arena,
        links: MemberLinks,
        member: RoundMember,
        rules: Rules,
        orders: LeaderOrders,
        waits: Waits,
        work: LaneWork,
    ) -> None:
        """Take part; `work` does this member's lanes."""
        known = member.known
        self.store = work.store
        self.rank = member.members[member.number].rank
        self._arena, self._links, self._member = arena, links, member
        self._rules, self._orders, self._waits = rules, orders, waits
        self._dealt_parts = known.dealt.parts
        self._work = work
        self.over_hosts: OverHosts | None = None
        self._version, self._side = known.version, known.side
        self.version, self._adopted_side, self._adopted_round = known.version, known.side, member.round
        self._awaits_records: Reduce | None = None
        self._seats_asking: SimpleQueue[MemberSeat] = SimpleQueue()
        self.base = member.round
        self._base_made: RoundMade | None = None
        self._voids = {False: 0, True: 0}
        self._round = member.round
        self._held, self._held_since_s = -1, 0.0
        self._asked: dict[int, int] = {}
        self._welcomed: set[int] = set()
        self._ended: set[int] = set()
        self._heard: dict[int, AnyMessage] = {}
        self._unlinked: dict[int, float] = {}
        self._is_left, self._led_in = False, 0
        self.owes_values = False
        self._arrives = False
        self._ordered: RoundMade | None = None
        self._known_members: Mapping[int, MemberSeat] = {}
        self._failure: BaseException | None = None
        self._turn = threading.Condition(threading.RLock())

    def begin_later(self, told: Told) -> None:
        """Begin after others, by what the leader has told."""
        self._member.received(self._member.leader, told, self._waits.clock.now())

    # How training stands

    @property
    def round(self) -> int:
        return self._round

    @property
    def side(self) -> int:
        """The side of the values that this member has adopted."""
        return self._adopted_side

    @property
    def at_end(self) -> bool:
        """Whether the version that this member has adopted is the last one."""
        return self.store.max_steps is not None and self.version >= self.store.max_steps

    @property
    def finished(self) -> bool:
        """Whether this member has the last version, and all values that the leader has ordered."""
        return self.at_end and not self._orders.awaits_values(self._adopted_side)

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
    def dealt(self) -> Dealt:
        return self._member.dealt

    @property
    def tally(self) -> Open:
        """The sums of the epochs that have not ended, at the newest version, where this member leads."""
        with self._turn:
            return self._arena.tally(self._side) or ()

    def heed(self) -> None:
        """Limit versions to the last one of all, and to the one that the newest order names."""
        with self._turn:
            until = self._orders.heed(self._version)
            assert self.store.max_steps is not None, "a call of fit has a last step"
            self._member.limit(self.store.max_steps, until)

    # Messages

    def _look(self, timeout_s: float) -> bool:
        """Wait for messages; return whether they bring news. One thread at a time may call this."""
        ready = self._links.events.poll(timeout_s)
        with self._turn:
            heard = self._links.take(ready)
            now_s = self._waits.clock.now()
            is_news = False
            for number, message in heard:
                if isinstance(message, MemberReport | Told):
                    if isinstance(message, Told) or message.member == number:
                        self._member.received(number, message, now_s)
                    before, self._heard[number] = self._heard.get(number), message
                    is_news |= isinstance(message, MemberReport) and message != before
                else:
                    is_news = True
                    self._hear(number, message)
            if is_news := self._pump() or is_news:
                self._turn.notify_all()
        return is_news

    def _hear(self, number: int, message: AnyMessage | None) -> None:
        """Take in an end, or a message that is not of the machine."""
        if message is None:
            self._note_end(number)
        elif self.over_hosts is not None:
            if isinstance(message, CallMade):
                self.heed()  # another member may have written what the leader has ordered
            self.over_hosts.take(number, message)

    def _note_end(self, number: int) -> None:
        self._ended.add(number)
        self._member.gone(number)
        if self.over_hosts is not None:
            self.over_hosts.ended(number)

    def _pump(self) -> bool:
        """Let the member go on, and do what follows; return whether anything did."""
        member, acts = self._member, False
        while True:
            now_s = self._waits.clock.now()
            self._arrive()
            over = self.over_hosts
            if over is not None:
                self._take_lanes(over)
            sent, actions = member.drain(now_s)
            if over is not None and any(isinstance(each, AbandonAttempt | ComputeDeals) for each in actions):
                self._abandon(over)  # before a new leader hears of that, or a gradient is written
            for number, message in sent:
                self._links.send(number, message)
            for action in actions:
                self._carry_out(action, now_s)
            self._round = member.round
            if over is not None:
                over.know()
            waits = self._unlinked or self._links.offers or member.leads_in
            if waits or member.members is not self._known_members:
                self._link(now_s)
            if over is not None:
                self._go_on_over_hosts(over)
            acts = acts or bool(actions)
            if not actions and self._led_in == member.leads_in:
                return acts

    def _go_on_over_hosts(self, over: OverHosts) -> None:
        while not self._seats_asking.empty():
            self._member.admit(self._seats_asking.get())
        over.look()
        over.tell()
        if over.changed:
            over.changed = False
            self.heed()
            self._links.notify(CallMade())
        waits = self._awaits_records
        if waits is not None:
            self.heed()
            if over.ledger.position() >= waits.attempt.written:
                self._awaits_records = None
                self._reduce(waits.round, waits.attempt)

    def _take_lanes(self, over: OverHosts) -> None:
        """Note which lanes are through, or cannot go on."""
        for job, error in over.lanes.take():
            attempt = job.attempt
            if error is None:
                self._member.reduced(attempt.number, attempt.last + 1)
            elif isinstance(error, PeerError):
                self._member.failed(attempt.number, over.lanes.means.blamed)
            else:
                self._failure = error

    def _abandon(self, over: OverHosts) -> None:
        self._awaits_records = None
        over.lanes.abandon()

    def _arrive(self) -> None:
        """Say that this process, where it leads, orders nothing more; first what an earlier leader owes."""
        if self._led_in != (term := self._member.leads_in):
            self._led_in = term
            self.heed()
            if term and self.over_hosts is not None:
                self.over_hosts.begin_to_lead()
            self.owes_values = bool(term) and self._orders.owes_values()
        written = -1 if self.over_hosts is None else self.over_hosts.ledger.position()
        if self.owes_values:
            self._member.arrive(self._member.round, written, RoundMade(values=True))
        elif self._arrives:
            self._member.arrive(self._member.round, written, self._ordered)

    def _carry_out(self, action: Action, now_s: float) -> None:
        match action:
            case Reduce(round_, attempt) if self.over_hosts is None:
                self._reduce(round_, attempt)
            case Reduce():
                assert self.over_hosts is not None, "on one host a lane is reduced at once"
                self._abandon(self.over_hosts)
                self._awaits_records = action
            case CommitRound(round_, made):
                self._commit(round_, made)
            case SkipRounds(_, version, side):
                self._version, self._side = version, side
                self.heed()
            case HoldRound(_, live):
                self._held_since_s = now_s if self._held < 0 else self._held_since_s
                self._held = live
            case ComputeDeals():
                self.heed()
            case LeaveRun():
                self._is_left = True
            case AbandonAttempt():
                """Its lanes were given up before this member answered the new leader."""

    def _link(self, now_s: float) -> None:
        """Connect new members, let those begin that may, and those ask that would like to."""
        over = self.over_hosts
        self._known_members = members = self._member.members
        host = members[self._member.number].host
        here = {number for number, seat in members.items() if seat.host == host}
        self._links.ranks = sorted(members[number].rank for number in here)
        offered = self._links.offered
        for number in sorted(here - self._links.numbers - self._ended - {self._member.number}):
            seat = members[number]
            if seat.rank in offered and self._links.take_up(seat.rank, number):
                self._unlinked.pop(number, None)
            elif now_s - self._unlinked.setdefault(number, now_s) >= LINK_S and not self._links.lives(number):
                self._unlinked.pop(number)
                self._note_end(number)
        self._welcome()
        for rank, which in offered.items() if self.leads and over is None else ():
            if self._asked.get(rank) != which:
                self._asked[rank] = which
                self._member.admit(
                    MemberSeat(number=-1, rank=rank, task=self._waits.name_of(rank), address=str(which))
                )

    def _welcome(self) -> None:
        over = self.over_hosts
        for welcomed in self._member.welcome:
            seat, told, _ = welcomed
            if over is not None and over.welcome(welcomed):
                continue
            here = over is None or not over.is_elsewhere(seat)
            if seat.number not in self._welcomed and (not here or seat.number in self._links.numbers):
                self._welcomed.add(seat.number)
                self._links.send(seat.number, told)

    def ask_in(self, seat: MemberSeat) -> None:
        """Let a process take part later, if this member leads; any thread may call this."""
        self._seats_asking.put(seat)
        self._links.wake()

    # Rounds

    def _reduce(self, round_: int, attempt: ReduceAttempt) -> None:
        made = attempt.made
        self.heed()
        values = self._orders.values(self._version) if made.void else ({}, False)
        sums = [done.sums for done in made.parts if done.sums is not None]
        job = LaneJob(round_, attempt, self._member.seats, self._version, self._side, values, sums)
        if self.over_hosts is not None:
            self._member.written(self.over_hosts.ledger.position())
            self.over_hosts.lanes.begin(job)
        else:
            self._work.run(job)
            self._member.reduced(attempt.number, attempt.last + 1)

    def _commit(self, round_: int, made: RoundMade) -> None:
        if round_ == self.base:
            self._base_made = made
        self._held = -1
        if made.refused and self._rules.nan_policy == NanPolicy.FAIL:
            rank = self._rank_of(made.refused[0])
            self._failure = NonFiniteGradientError(not_finite(self._waits, rank, self._version + 1))
        self._arrives, self._ordered = False, None
        if not made.parts:
            self._voids[made.values] += 1
            self.owes_values = self.owes_values and not made.values
        if made.parts or made.values:
            self._version, self._side = self._version + bool(made.parts), self._side + 1
        self.heed()

    def _rank_of(self, done: CompletePart) -> int:
        return self._member.seats[done.holder].rank

    def _adopt(self) -> None:
        """Go on to the newest version."""
        self._adopted_round = self._round
        if self._adopted_side != self._side:
            self.version, self._adopted_side = self._version, self._side
            self._orders.adopt(self._version)
            self.store.stand_at(self._side)


def not_finite(waits: Waits, rank: int, step: int) -> str:
    """Return why the gradient of a rank makes no step."""
    return f"the gradient of {waits.name_of(rank)} for step {step} holds NaN or infinity"


def phases_of(store: TwoSidedStore, arena: Arena) -> list[Phase]:
    """Return the phases that a lane goes through."""
    rows = [Phase.ROWS, Phase.NOTE] if arena.shape.tables_once else []
    before = [*([] if store.optimizer.elementwise else [Phase.SQUARES]), *rows]
    # Else each lane updates what it has the means of, without a wait for other lanes.
    means = [Phase.MEANS] if arena.shape.several_hosts and (before or arena.rows.tables) else []
    return [*means, *before, Phase.UPDATE]
