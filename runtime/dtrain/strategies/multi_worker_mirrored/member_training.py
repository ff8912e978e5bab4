"""One task's part in a call of `fit`, whose members make steps by docs/design/steps.md."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from dtrain.collectives.step import Phase
from dtrain.config import MultiWorkerMirroredSection
from dtrain.config.choices import TooFew
from dtrain.errors import DtrainError
from dtrain.messages import SnapshotReply, Sums, Verdict
from dtrain.messages.rounds import RoundMade
from dtrain.parameters.store import TwoSidedStore
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.membership import LEASE_S
from dtrain.protocol.part_dealer import PartDealer
from dtrain.roles.chief.start import Start
from dtrain.roles.collective.lane_work import LaneThread, LaneWork, MeansOverHosts
from dtrain.roles.collective.member_driver import MemberDriver
from dtrain.roles.collective.member_rounds import Adopted, LeaderOrders, phases_of
from dtrain.roles.collective.over_hosts import HostLedger, OtherHosts, OverHosts
from dtrain.roles.collective.rules import Rules, Waits
from dtrain.runs.reporting import Reporter
from dtrain.state.fit_state import Open
from dtrain.steps.member import COMES_S, HostMemory, RoundMember
from dtrain.steps.round_parts import RoundRules
from dtrain.strategies.interface import FitOrder
from dtrain.strategies.multi_worker_mirrored.hosts import HostWays
from dtrain.strategies.multi_worker_mirrored.members import MemberEntry
from dtrain.strategies.multi_worker_mirrored.orders import VALUES, LeaderOrder, OrderBook
from dtrain.strategies.multi_worker_mirrored.step_calls import NoStepCalls, StepCalls
from dtrain.strategies.multi_worker_mirrored.training import (
    ArenaReplica,
    ReplicaTraining,
    SharedFitHolder,
    StepBoundary,
    rules_of,
)
from dtrain.wire.one_host.members import LEADS

HOSTS_LEASE_S = 10.0
"""The time without a message after which a member of another host is silent."""
SHARES_BYTES = 1 << 20
"""From this size of all variables on, several members of a host reduce them."""
CARRYING, POSITION = "carrying", "position"
_encode = msgspec.msgpack.Encoder().encode


class MemberFitHolder(SharedFitHolder):
    """The state of a call of `fit`; `driver` is to be set."""

    driver: MemberDriver

    def mark(self) -> SnapshotReply:
        reply = super().mark()
        return msgspec.structs.replace(reply, state=reply.state.but(dealt=self.driver.dealt))


class MemberBook(OrderBook):
    """The leader's orders, and what makes the round under way where values are there once."""

    _writes_records = False

    def owes_values(self) -> bool:
        """Return whether an order was given at this version whose values may not have been assigned."""
        order = self.order
        at_this = order.version == self._state.global_step
        return at_this and (bool(self._ledger.entries.get(VALUES)) or order.end == order.version)

    def values(self, version: int) -> tuple[Mapping[str, bytes], bool]:
        """Return the values to be assigned, by name, and whether training ends at this version."""
        body = self._ledger.entries.get(VALUES)
        values = msgspec.msgpack.decode(body, type=dict[str, bytes]) if body else {}
        return values, self.order.end == version

    @property
    def position(self) -> int:
        """The position of the newest record for other hosts; -1: there is none."""
        return int(self._ledger.entries.get(POSITION, b"-1"))

    def begin_term(self, position: int) -> None:
        """Write records from this position on, as the leader of several hosts."""
        self._writes_records = True
        self._ledger.write({POSITION: b"%d" % position})

    def _put(self, entries: Mapping[str, bytes]) -> None:
        if self._writes_records:
            entries = {**entries, POSITION: b"%d" % (self.position + 1)}
        super()._put(entries)

    def take_over(self, entries: Mapping[str, bytes], whole: bool) -> None:
        """Write what the leader, at another host, has written; with `whole` nothing else counts any more."""
        version = self._state.global_step
        self.poll(version)
        gone = dict.fromkeys(self._ledger.entries, b"") if whole else {}
        news = {**gone, **entries}
        self._ledger.write(news)
        self._apply(news, version)

    def carry(self, round_: int, made: RoundMade) -> None:
        body = _encode((round_, made))
        if self._ledger.entries.get(CARRYING) != body:
            self._ledger.write({CARRYING: body})

    def carrying(self, round_: int) -> RoundMade | None:
        """Return what makes a round, if that has begun to change values that are there once."""
        body = self.entries.get(CARRYING)
        of_round, made = msgspec.msgpack.decode(body, type=tuple[int, RoundMade]) if body else (-1, None)
        return made if of_round == round_ else None

    def finish_earlier(self) -> None:
        """Drop the values of the leader before: they were assigned as this one began to lead."""
        self.carried_out()


class MemberTraining(ReplicaTraining):
    """One member's part in a call of `fit`, and the leader's work for it, where it leads."""

    driver: MemberDriver

    def contribute(self, part: int, examples: int, sums: Sums | None, finite: bool) -> Outcome:
        outcome = self.driver.contribute(part, examples, sums, finite)
        self._lead_if_due()
        if outcome.verdict is not Verdict.PENDING:
            self.wait_for_order()
        return outcome

    def _wait_while(self, goes_on: Callable[[], bool], what: str) -> None:
        """Wait for the leader; return early if this task leads now."""
        driver = self.driver
        driver.look()
        while not self.leads and goes_on():
            self._lead_if_due()
            if self.leads:
                return
            if (failure := self._failure()) is not None:
                raise failure
            driver.wait_while(lambda: goes_on() and self._failure() is None, what)

    def _lead_if_due(self) -> None:
        """Lead, if this member leads the rounds."""
        driver = self.driver
        if self.leads or self.book.concluded or not driver.leads:
            return
        if driver.owes_values:
            driver.void(values=True)
        self.book.lead(driver.rank, self.global_step)
        self._lead(self)

    def _conclude(self) -> bool:
        if self.keeper is None:
            self._wait_while(lambda: not self.book.concluded, "the end of fit")
            return not self.leads
        self._saved = self.keeper.finish()
        self._publish_end()
        self.book.conclude(self.global_step)
        self.driver.void(values=False)  # so that everybody looks
        return True

    def order(self, order: FitOrder) -> None:
        with self.driver:
            super().order(order)

    def _change(self, order: FitOrder, optimizer: dict[str, Any]) -> None:
        """Carry out an order. Where it writes values, a round without a version does that: what others
        compute meanwhile counts for nothing, and is computed again.
        """
        book, driver, version = self.book, self.driver, self.global_step
        values = self._new_values(order)
        writes = values is not None or (order.stop and not self.finished)
        number, end = book.order.number + 1, self._end_of(order)
        book.give(LeaderOrder(number, optimizer, order.until, end, version), values, version)
        driver.limit(order.until)
        if writes:
            driver.void(values=True)
            book.carried_out()


def make_member_training(
    entry: MemberEntry,
    start: Start,
    section: MultiWorkerMirroredSection,
    reporter: Reporter,
    waits: Waits,
    *,
    failure: Callable[[], DtrainError | None],
    lead: Callable[[ReplicaTraining], None],
    on_close: Callable[[ReplicaTraining, BaseException | None], None],
) -> MemberTraining:
    """Return this member's part; the arguments are as of `ReplicaTraining`."""
    begun, arena, known = start.state, entry.arena, entry.known
    store = arena.store(begun.optimizer, begun.lineage.origin, begun.max_steps, known.side)
    rules = rules_of(section, entry.replicas, alone=begun.alone)
    whole = not begun.dealt.even
    boundary = StepBoundary()
    state = MemberFitHolder(start, store, PartDealer.of(begun.dealt, whole=whole), boundary)
    state.global_step = known.version
    state.tally = state.tally.holding(arena.tally(known.side) or ())
    order = LeaderOrder(0, begun.optimizer, until=begun.version)
    book = MemberBook(entry.ledger, state, order, entry.shared.terms.leader)
    driver = Assembly(entry, state, store, book, section, rules, waits).driver()
    state.driver = driver
    state.guard_by(driver)
    calls = StepCalls(entry.calls, driver, driver.notify, waits) if whole else NoStepCalls()
    about = driver, None, calls, book, state, boundary, section, reporter
    training = MemberTraining(*about, name_of=waits.name_of, failure=failure, lead=lead, on_close=on_close)
    training.replicas = [ArenaReplica(training, section, reporter)]
    return training


class Assembly(NamedTuple):
    """The pieces that run one member, and how they are put together."""

    entry: MemberEntry
    state: MemberFitHolder
    store: TwoSidedStore
    book: MemberBook
    section: MultiWorkerMirroredSection
    rules: Rules
    waits: Waits

    def driver(self) -> MemberDriver:
        """Return what runs this member; it begins to carry messages."""
        entry, arena, rules, waits = self.entry, self.entry.arena, self.rules, self.waits
        phases = phases_of(self.store, arena)
        member = self._member(phases)
        means = None if entry.hosts is None else self._means(entry.hosts)
        work = LaneWork(
            arena,
            self.store,
            phases,
            rules.weighting,
            entry.number,
            sums_after=self._sums_after,
            note=lambda job: self.book.carry(job.round, job.attempt.made),
            over_hosts=means,
        )
        orders = self._orders(lambda: driver)
        driver = MemberDriver(arena, entry.links, member, rules, orders, waits, work)
        if entry.told is not None:
            driver.begin_later(entry.told)
        if entry.hosts is not None and means is not None:
            driver.serve(self._over_hosts(driver, member, work, means, entry.hosts))
        elif self._backups:
            driver.serve()
        return driver

    def _member(self, phases: Sequence[Phase]) -> RoundMember:
        entry, known, told, rules = self.entry, self.entry.known, self.entry.told, self.rules
        parts, max_steps = known.dealt.parts, self.store.max_steps
        assert max_steps is not None, "a call of fit has a last step"
        round_rules = RoundRules(
            replicas=rules.replicas or parts,
            max_steps=max_steps,
            until=self.book.order.until,
            needed=0 if rules.too_few == TooFew.SHRINK else rules.needed(parts, parts),
            retry=self.section.repeats_late,
            alone=rules.alone,
            shares=entry.arena.shape.values_nbytes >= SHARES_BYTES,
            phases=len(phases),
            carries=Phase.ROWS in phases,
            passes_silent=self._backups and entry.hosts is None,
        )
        begin: dict[str, Any] = {}
        if told is not None:
            begin = {"round_": told.round, "membership": told.membership}
        lease_s = LEASE_S if self._backups else math.inf
        if entry.hosts is not None:
            lease_s = HOSTS_LEASE_S
        now_s = self.waits.clock.now()
        member = RoundMember(entry.number, known, round_rules, lease_s, now_s, term=entry.term, **begin)
        member.find_carrying(self.book.carrying)
        if entry.hosts is None and self._backups:
            standing, take_lead = entry.arena.standing, partial(entry.links.locks.acquire, LEADS)
            member.share(HostMemory(take_lead, standing.read, standing.write))
        elif told is None and entry.hosts is not None:
            member.await_first(COMES_S)
        return member

    @property
    def _backups(self) -> bool:
        return self.entry.known.dealt.even

    def _orders(self, driver: Callable[[], MemberDriver]) -> LeaderOrders:
        book, state = self.book, self.state

        def heed() -> None:
            book.poll(driver().newest)
            driver().limit(book.order.until)

        def adopt(news: Adopted, tally: Open) -> None:
            if news.sums is None:
                state.tally = state.tally.holding(tally)
            else:
                state.count(news.sums)
            state.global_step = news.version

        return LeaderOrders(heed, lambda: book.values(driver().newest), book.owes_values, adopt)

    def _sums_after(self, before: Open, version: int, given: Sequence[Sums]) -> Open:
        tally = self.state.tally.holding(before)
        for each in given:
            tally.add(version, each)
        return tally.open()

    # Several hosts

    @property
    def _generation(self) -> int:
        return self.entry.shared.terms.state.generation

    def _means(self, hosts: HostWays) -> MeansOverHosts:
        return MeansOverHosts(
            self.entry.arena,
            self.entry.number,
            *hosts.named(self._generation),
            weighting=self.section.weighting,
            deterministic=self.section.deterministic,
            patience_s=self.waits.patience_s,
        )

    def _over_hosts(
        self,
        driver: MemberDriver,
        member: RoundMember,
        work: LaneWork,
        means: MeansOverHosts,
        hosts: HostWays,
    ) -> OverHosts:
        entry, streams = self.entry, self.entry.links.far
        assert streams is not None, "it reaches other hosts"
        hosts.begin_members(driver.ask_in, lambda: member.members)
        book = self.book
        over = OverHosts(
            member,
            streams,
            HostLedger(lambda: book.position, lambda: book.entries, book.begin_term, book.take_over),
            entry.calls.memory,
            LaneThread(work, means, entry.links.wake),
            OtherHosts(
                lambda seat: hosts.learn_at(seat.task, seat.address),
                partial(hosts.bring, entry.arena, self._generation),
                hosts.end_members,
            ),
        )
        book.publish = over.publish
        return over
