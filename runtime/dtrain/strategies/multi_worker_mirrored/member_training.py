"""One task's part in a call of `fit`, whose members make steps by docs/design/steps.md."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

from dtrain.collectives.step import Phase
from dtrain.config import MultiWorkerMirroredSection
from dtrain.config.choices import TooFew
from dtrain.errors import DtrainError
from dtrain.parameters.store import TwoSidedStore
from dtrain.protocol.membership import LEASE_S
from dtrain.protocol.part_dealer import PartDealer
from dtrain.roles.chief.start import Start
from dtrain.roles.collective.lane_work import LaneThread, LaneWork, MeansOverHosts
from dtrain.roles.collective.member_driver import MemberDriver
from dtrain.roles.collective.member_rounds import LeaderOrders, phases_of
from dtrain.roles.collective.over_hosts import HostLedger, OtherHosts, OverHosts
from dtrain.roles.collective.rules import Rules, Waits
from dtrain.runs.reporting import Reporter
from dtrain.steps.member import COMES_S, HostMemory, RoundMember
from dtrain.steps.round_parts import RoundRules
from dtrain.strategies.multi_worker_mirrored.hosts import HostWays
from dtrain.strategies.multi_worker_mirrored.members import MemberEntry
from dtrain.strategies.multi_worker_mirrored.orders import LeaderOrder, OrderBook
from dtrain.strategies.multi_worker_mirrored.step_calls import NoStepCalls, StepCalls
from dtrain.strategies.multi_worker_mirrored.training import (
    ArenaReplica,
    ReplicaTraining,
    SharedFitHolder,
    rules_of,
)
from dtrain.wire.one_host.members import LEADS

HOSTS_LEASE_S = 10.0
"""The time without a message after which a member of another host is silent."""
SHARES_BYTES = 1 << 20
"""From this size of all variables on, several members of a host reduce them."""


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
) -> ReplicaTraining:
    """Return this member's part; the arguments are as of `ReplicaTraining`."""
    begun, arena, known = start.state, entry.arena, entry.known
    store = arena.store(begun.optimizer, begun.lineage.origin, begun.max_steps, known.side)
    rules = rules_of(section, entry.replicas.number, alone=begun.alone)
    whole = not begun.dealt.even
    state = SharedFitHolder(start, store, PartDealer.of(begun.dealt, whole=whole), nullcontext())
    state.global_step = known.version
    order = LeaderOrder(0, begun.optimizer, until=begun.version)
    book = OrderBook(entry.ledger, state, order, entry.shared.terms.leader)
    driver = Assembly(entry, state, store, book, section, rules, waits).driver()
    state.driver = driver
    state.guard_by(driver)
    calls = StepCalls(entry.calls, driver, driver.notify, waits) if whole else NoStepCalls()
    about = driver, calls, book, state, section, reporter
    training = ReplicaTraining(*about, failure=failure, lead=lead, on_close=on_close)
    training.replicas = [ArenaReplica(training, section, reporter)]
    return training


class Assembly(NamedTuple):
    """The pieces that run one member, and how they are put together."""

    entry: MemberEntry
    state: SharedFitHolder
    store: TwoSidedStore
    book: OrderBook
    section: MultiWorkerMirroredSection
    rules: Rules
    waits: Waits

    def driver(self) -> MemberDriver:
        """Return what runs this member; it begins to carry messages."""
        entry, arena, rules, waits = self.entry, self.entry.arena, self.rules, self.waits
        book = self.book
        phases = phases_of(self.store, arena)
        member = self._member(phases)
        means = None if entry.hosts is None else self._means(entry.hosts)
        work = LaneWork(
            arena,
            self.store,
            phases,
            rules.weighting,
            entry.number,
            sums_after=lambda *step: self.state.tally.after(*step),
            note=lambda job: book.carry(job.round, job.attempt.made),
            over_hosts=means,
        )
        orders = LeaderOrders(book.heed, book.values, book.owes_values, book.awaits_values, book.stand_at)
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
        idle = entry.replicas.idle  # with a chief that only leads one replica at least has to live
        round_rules = RoundRules(
            replicas=rules.replicas or parts,
            max_steps=max_steps,
            until=self.book.order.until,
            needed=len(idle) if rules.too_few == TooFew.SHRINK else rules.needed(parts, parts),
            idle=idle,
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
        member.carrying = self.book.carrying
        if entry.hosts is None and self._backups:
            standing, take_lead = entry.arena.standing, partial(entry.links.locks.acquire, LEADS)
            member.share(HostMemory(take_lead, standing.read, standing.write))
        elif told is None and entry.hosts is not None:
            member.await_first(COMES_S)
        return member

    @property
    def _backups(self) -> bool:
        return self.entry.known.dealt.even

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
                hosts.warn,
            ),
        )
        book.publish = over.publish
        return over
