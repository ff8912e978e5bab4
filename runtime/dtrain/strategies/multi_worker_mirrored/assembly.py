"""One task's part in a call of `fit`, put together of what the replicas share and what hosts agree on."""

import socket
from collections.abc import Callable
from functools import partial

import msgspec

from dtrain.collectives.backups import BackupRules
from dtrain.config import MultiWorkerMirroredSection
from dtrain.config.choices import TooFew
from dtrain.errors import DtrainError
from dtrain.parameters.store import TwoSidedStore
from dtrain.protocol.part_dealer import PartDealer
from dtrain.roles.chief.start import Start
from dtrain.roles.collective.backup_driver import BackupDriver
from dtrain.roles.collective.between_hosts.agreement import OF_THREADS, AgreementMember, HostProxy, Hosts
from dtrain.roles.collective.driver import CollectiveDriver
from dtrain.roles.collective.rules import Across, Book, Rules, Waits
from dtrain.runs.reporting import Reporter
from dtrain.strategies.multi_worker_mirrored.backups import (
    BackupBook,
    BackupFitHolder,
    BackupTraining,
    EpochSums,
)
from dtrain.strategies.multi_worker_mirrored.hosts import HostWays
from dtrain.strategies.multi_worker_mirrored.orders import LeaderOrder, OrderBook
from dtrain.strategies.multi_worker_mirrored.rendezvous import Entry
from dtrain.strategies.multi_worker_mirrored.step_calls import NoStepCalls, StepCalls
from dtrain.strategies.multi_worker_mirrored.training import (
    ArenaReplica,
    ReplicaTraining,
    SharedFitHolder,
    StepBoundary,
    rules_of,
)
from dtrain.wire.one_host.synchronization import Doorbells, Locks


class Parts(msgspec.Struct, frozen=True):
    """The pieces of a task's training that differ with and without backups."""

    state: SharedFitHolder
    book: OrderBook
    driver: CollectiveDriver | BackupDriver
    calls: StepCalls | NoStepCalls


def make_training(
    entry: Entry,
    start: Start,
    section: MultiWorkerMirroredSection,
    replicas: int,
    reporter: Reporter,
    hosts: HostWays | None,
    waits: Waits,
    *,
    failure: Callable[[], DtrainError | None],
    lead: Callable[[ReplicaTraining], None],
    on_close: Callable[[ReplicaTraining, BaseException | None], None],
) -> ReplicaTraining:
    """Return this task's part, with `replicas` at the start; the rest is as of `ReplicaTraining`."""
    arena = entry.arena
    begun = start.state
    store = arena.store(begun.optimizer, begun.lineage.origin, begun.max_steps)
    boundary = StepBoundary()
    rules = rules_of(section, replicas, alone=begun.alone)
    of_backups = arena.shape.backups
    dealer = PartDealer.of(begun.dealt, whole=not of_backups)
    state = (BackupFitHolder if of_backups else SharedFitHolder)(start, store, dealer, boundary)
    order = LeaderOrder(0, begun.optimizer, until=begun.version)
    if isinstance(state, BackupFitHolder):
        parts = _with_backups(entry, state, store, order, section, rules, waits)
    else:
        parts = _of_whole_batches(entry, state, store, order, section, rules, waits, hosts)
    doorbells = entry.shared.doorbells
    assert isinstance(doorbells, Doorbells)
    training = (BackupTraining if of_backups else ReplicaTraining)(
        parts.driver,
        doorbells,
        parts.calls,
        parts.book,
        state,
        boundary,
        section,
        reporter,
        name_of=waits.name_of,
        failure=failure,
        lead=lead,
        on_close=on_close,
    )
    training.replicas = [ArenaReplica(training, section, reporter)]
    return training


def _of_whole_batches(
    entry: Entry,
    state: SharedFitHolder,
    store: TwoSidedStore,
    order: LeaderOrder,
    section: MultiWorkerMirroredSection,
    rules: Rules,
    waits: Waits,
    hosts: HostWays | None,
) -> Parts:
    arena, doorbells = entry.arena, entry.shared.doorbells
    assert isinstance(doorbells, Doorbells)
    state.global_step = arena.board.versions[entry.from_round % 2]
    state.tally = state.tally.holding(arena.tally(entry.from_round) or ())
    book = OrderBook(entry.ledger, state, order, entry.shared.terms.leader)
    driver = CollectiveDriver(
        arena,
        doorbells,
        entry.rank,
        store,
        state.dealer,
        rules,
        orders=book,
        from_round=entry.from_round,
        waits=waits,
        across=across(hosts, entry, book, section, waits.patience_s, rules),
    )
    return Parts(state, book, driver, StepCalls(entry.calls, driver, doorbells.ring, waits))


def _with_backups(
    entry: Entry,
    state: BackupFitHolder,
    store: TwoSidedStore,
    order: LeaderOrder,
    section: MultiWorkerMirroredSection,
    rules: Rules,
    waits: Waits,
) -> Parts:
    arena, doorbells, terms = entry.arena, entry.shared.doorbells, entry.shared.terms
    assert isinstance(doorbells, Doorbells)
    state.global_step = arena.record.read().version
    book = BackupBook(entry.ledger, state, order, terms.leader)
    backups = BackupRules(
        state.dealer.parts,
        rules.replicas or state.dealer.parts,
        shrink=section.too_few == TooFew.SHRINK,
        retry=section.repeats_late,
    )
    state.driver = driver = BackupDriver(
        arena,
        doorbells,
        Locks(entry.shared.descriptors[0]),
        entry.rank,
        store,
        backups,
        rules,
        EpochSums(state),
        book,
        linked=sorted(doorbells.linked),
        joins=terms.joins,
        waits=waits,
    )
    return Parts(state, book, driver, NoStepCalls())


LEASE_S = 10.0
"""The time without a message after which a host is silent."""


def across(
    hosts: HostWays | None,
    entry: Entry,
    book: OrderBook,
    section: MultiWorkerMirroredSection,
    patience_s: float,
    rules: Rules,
) -> Across | None:
    """Return this replica's part in the agreement with other hosts; None: all tasks share memory."""
    if hosts is None:
        return None
    terms, doorbells, arena = entry.shared.terms, entry.shared.doorbells, entry.arena
    assert isinstance(doorbells, Doorbells)
    needed = rules.needed(arena.shape.parts, arena.shape.parts)
    hosts.learn(terms.seats)
    heard, doorbell = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    doorbells.offer(OF_THREADS, heard)
    doorbells.take_up(OF_THREADS)
    known = Hosts(
        *hosts.named(terms.state.generation),
        lease_s=LEASE_S,
        patience_s=patience_s,
        alone=rules.alone,
        needed=needed if rules.too_few != TooFew.SHRINK else 0,
        name_of=hosts.name_of,
        longest_record=entry.ledger.nbytes,
        learn=hosts.learn,
        welcome=partial(hosts.welcome, arena, terms.state.generation),
    )

    def speak(number: int, written: Book) -> HostProxy:
        hosts.learn(arena.vote.read().seats)
        return HostProxy(
            arena,
            known,
            entry.rank,
            doorbells.ring,
            doorbell,
            number=number,
            book=written,
            weighting=section.weighting,
            deterministic=section.deterministic,
            calls=entry.calls,
        )

    assert entry.locks is not None, "several hosts have locks"
    about = arena, entry.locks, entry.rank, speak
    made = hosts.agreement_member = AgreementMember(*about, number=entry.from_round, speaks=entry.speaks)
    book.publish = made.record
    made.set_book(book)
    return made
