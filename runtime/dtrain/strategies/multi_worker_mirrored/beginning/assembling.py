"""One task's part in a call of `fit`, put together of what the replicas share."""

from collections.abc import Callable
from dataclasses import dataclass

from dtrain.collectives.backups import BackupRules
from dtrain.config import MultiWorkerMirroredSection
from dtrain.config.choices import TooFew
from dtrain.errors import DtrainError
from dtrain.parameters.store import Store
from dtrain.protocol.part_dealer import PartDealer
from dtrain.roles.chief.start import Start
from dtrain.roles.collective.backup_driver import BackupDriver
from dtrain.roles.collective.driver import CollectiveDriver
from dtrain.roles.collective.rules import Rules, Waits
from dtrain.runs.reporting import Reporter
from dtrain.strategies.interface import Leader
from dtrain.strategies.multi_worker_mirrored.between_hosts.agreement import across
from dtrain.strategies.multi_worker_mirrored.between_hosts.hosts import HostWays
from dtrain.strategies.multi_worker_mirrored.opening import Entry
from dtrain.strategies.multi_worker_mirrored.orders import Order, OrderBook
from dtrain.strategies.multi_worker_mirrored.replica import ArenaReplica
from dtrain.strategies.multi_worker_mirrored.step_boundary import StepBoundary
from dtrain.strategies.multi_worker_mirrored.step_calls import StepCalls
from dtrain.strategies.multi_worker_mirrored.training import ReplicaTraining, SharedFitHolder, rules_of
from dtrain.strategies.multi_worker_mirrored.with_backups.no_calls import NoStepCalls
from dtrain.strategies.multi_worker_mirrored.with_backups.state import BackupBook, BackupFitHolder, EpochSums
from dtrain.strategies.multi_worker_mirrored.with_backups.training import BackupTraining
from dtrain.wire.one_host.locks import Locks


@dataclass(frozen=True)
class Parts:
    """The pieces of a task's training that know of backups, or of none."""

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
    lead: Callable[[ReplicaTraining], Leader],
    on_close: Callable[[ReplicaTraining, BaseException | None], None],
) -> ReplicaTraining:
    """Return this task's part.

    Args:
        entry: the way into it.
        start: what is trained, and where it began.
        section: the rules.
        replicas: how many there are at the start.
        reporter, failure, lead, on_close: as of `ReplicaTraining`.
        hosts: the ways to other hosts.
        waits: how the driver waits.
    """
    arena = entry.arena
    begun = start.state
    store = arena.store(begun.optimizer, begun.lineage.origin, begun.max_steps)
    boundary = StepBoundary()
    rules = rules_of(section, replicas, alone=begun.alone)
    of_backups = arena.shape.backups
    dealer = PartDealer.of(begun.dealt, whole=not of_backups)
    state = (BackupFitHolder if of_backups else SharedFitHolder)(start, arena.values, store, dealer, boundary)
    order = Order(0, begun.optimizer, until=begun.version)
    if isinstance(state, BackupFitHolder):
        parts = _with_backups(entry, state, store, order, section, rules, waits)
    else:
        parts = _of_whole_batches(entry, state, store, order, section, rules, waits, hosts)
    training = (BackupTraining if of_backups else ReplicaTraining)(
        parts.driver,
        entry.shared.bells,
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
    store: Store,
    order: Order,
    section: MultiWorkerMirroredSection,
    rules: Rules,
    waits: Waits,
    hosts: HostWays | None,
) -> Parts:
    arena, bells = entry.arena, entry.shared.bells
    state.global_step = arena.board.versions[entry.from_round % 2]
    state.tally = state.tally.holding(arena.tally(entry.from_round))
    book = OrderBook(entry.ledger, state, order, entry.shared.terms.leader)
    driver = CollectiveDriver(
        arena,
        bells,
        entry.rank,
        store,
        state.dealer,
        rules,
        orders=book,
        from_round=entry.from_round,
        waits=waits,
        across=across(hosts, entry, book, section, waits.patience_s, rules),
    )
    return Parts(state, book, driver, StepCalls(entry.calls, driver, bells, waits))


def _with_backups(
    entry: Entry,
    state: BackupFitHolder,
    store: Store,
    order: Order,
    section: MultiWorkerMirroredSection,
    rules: Rules,
    waits: Waits,
) -> Parts:
    arena, bells, terms = entry.arena, entry.shared.bells, entry.shared.terms
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
        bells,
        Locks(entry.shared.descriptors[0]),
        entry.rank,
        store,
        backups,
        rules,
        EpochSums(state),
        book,
        linked=sorted(bells.linked),
        joins=terms.joins,
        waits=waits,
    )
    return Parts(state, book, driver, NoStepCalls())
