"""One task's part in a call of `fit`, put together of what the replicas share and what hosts agree on."""

from collections.abc import Callable

import msgspec

from dtrain.collectives.backups import BackupRules
from dtrain.config import MultiWorkerMirroredSection
from dtrain.config.choices import TooFew
from dtrain.errors import DtrainError
from dtrain.parameters.store import TwoSidedStore
from dtrain.protocol.part_dealer import PartDealer
from dtrain.roles.chief.start import Start
from dtrain.roles.collective.backup_driver import BackupDriver
from dtrain.roles.collective.rules import Rules, Waits
from dtrain.runs.reporting import Reporter
from dtrain.strategies.multi_worker_mirrored.backups import (
    BackupBook,
    BackupFitHolder,
    BackupTraining,
    EpochSums,
)
from dtrain.strategies.multi_worker_mirrored.orders import LeaderOrder, OrderBook
from dtrain.strategies.multi_worker_mirrored.rendezvous import Entry
from dtrain.strategies.multi_worker_mirrored.step_calls import NoStepCalls
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
    driver: BackupDriver
    calls: NoStepCalls


def make_training(
    entry: Entry,
    start: Start,
    section: MultiWorkerMirroredSection,
    replicas: int,
    reporter: Reporter,
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
    state = BackupFitHolder(start, store, PartDealer.of(begun.dealt, whole=False), boundary)
    order = LeaderOrder(0, begun.optimizer, until=begun.version)
    parts = _with_backups(entry, state, store, order, section, rules, waits)
    doorbells = entry.shared.doorbells
    assert isinstance(doorbells, Doorbells)
    training = BackupTraining(
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
