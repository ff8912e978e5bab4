"""What a server holds in one term: variables, the rule by which they change, the table of what was seen."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dtrain.cluster import ClusterSpec, Role
from dtrain.config import AsyncSection, ServerSection, SyncSection
from dtrain.errors import InputError
from dtrain.learning.core.drawn_table import DrawnTable
from dtrain.messages import Initialise, Lineage, Marked, Push, Reply, Row, Verdict
from dtrain.parameters.compression import Compression
from dtrain.parameters.placement import Plan
from dtrain.parameters.published import Room
from dtrain.parameters.store import Store
from dtrain.protocol.applied_batches import NONE, AppliedBatches
from dtrain.protocol.batch_cut import BatchCut
from dtrain.protocol.exactly_once import Seen, SeenPushes
from dtrain.protocol.part_dealer import Dealt, PartDealer
from dtrain.protocol.sync_round import SyncDecision
from dtrain.protocol.tally import Tally
from dtrain.roles.parameter_server.actions import Caller
from dtrain.roles.parameter_server.async_pushes import AsyncPushes
from dtrain.roles.parameter_server.sync_pushes import SyncPushes
from dtrain.roles.parameter_server.sync_step import SyncStep

Blocks = Sequence[np.ndarray[Any, Any]]


@dataclass
class Held:
    """The variables of one term, and the rule by which they change.

    Attributes:
        max_steps: the last version; an order may lower it.
        dealer, tally: at ps:0.
        earlier_rows: at ps:0: the numbers of every epoch of other calls of `fit`, by call.
        order: the number of the newest order that was obeyed.
        recorded: at ps:0: the number of the newest `Record`.
        stopped: whether it has ended training.
    """

    generation: int
    term: int
    lineage: Lineage
    plan: Plan
    training: ServerSection
    max_steps: int
    directory: str
    store: Store
    pushes: SyncPushes | AsyncPushes
    seen: SeenPushes
    dealer: PartDealer | None = None
    tally: Tally | None = None
    earlier_rows: dict[int, dict[int, Row]] = field(default_factory=dict)
    order: tuple[int, int] = (0, 0)
    recorded: tuple[int, int] = (0, 0)
    stopped: bool = False

    @classmethod
    def of(
        cls,
        message: Initialise,
        blocks: Blocks,
        cluster: ClusterSpec,
        server: int,
        subscribers: Sequence[Caller],
        room: Room,
    ) -> "Held":
        """As the leader says; `subscribers` are told of commits, the values are kept in `room`.

        Raises:
            DtrainError, msgspec.ValidationError: plan, optimizer and blocks do not fit together.
        """
        plan = Plan.from_dict(message.plan)
        training = message.training
        servers = cluster.count(Role.PS)
        if plan.servers != servers:
            raise InputError(f"a plan for {plan.servers} servers, and the cluster has {servers}")
        layout = plan.layout(server)
        compression, dense = Compression.of(training.compression), len(layout.groups)
        store = Store(
            layout,
            message.optimizer,
            blocks[:dense],
            message.lineage.origin,
            message.max_steps,
            room,
            compression,
        )
        if message.slots:
            store.restore_slots(message.slots, blocks[dense:])
        for table in store.tables:
            variable = plan.variables[table.shard.variable]
            for name, description in message.drawn.get(variable.name, {}).items():
                table.drawn[name] = DrawnTable.described(description, variable.shape)
        dealer = tally = None
        if server == 0:
            dealer, tally = _dealer(message, training), _tally(message)
        pushes = _rule(message, store, training, cluster, server, subscribers, dealer, tally)
        seen = SeenPushes.restore(message.seen)
        return cls(
            message.generation,
            message.term,
            message.lineage,
            plan,
            training,
            message.max_steps,
            message.directory,
            store,
            pushes,
            seen,
            dealer,
            tally,
            message.history if server == 0 else {},
        )

    def received(self, replica: str, message: Push, blocks: Blocks) -> Blocks:
        """The blocks of a push of this term as they are without compression.

        Raises:
            InputError: it cannot be taken, and why.
        """
        if message.plan_hash != self.plan.hash:
            raise InputError(
                f"{replica} pushes by plan {message.plan_hash}, the run's is {self.plan.hash}: do all tasks "
                "build the same model?"
            )
        if not message.examples:
            return ()
        try:
            blocks = self.store.received(blocks)
        except InputError as error:
            raise InputError(f"a gradient of {replica} does not fit: {error}") from None
        if message.base_version > self.pushes.version:
            raise InputError(
                f"{replica} pushes from version {message.base_version}, the newest is {self.pushes.version}"
            )
        return blocks

    @property
    def awaits_others(self) -> bool:
        """At ps:0: whether the version at which it stands has not been made on every server; see
        `protocol.repairs`.
        """
        return isinstance(self.pushes, AsyncPushes) and self.pushes.awaits_others

    @property
    def finished(self) -> bool:
        """Whether the last version has been made, at ps:0 on every server."""
        return self.pushes.version >= self.max_steps and not self.awaits_others

    @property
    def applied(self) -> AppliedBatches | None:
        """In async: the batches that the variables contain."""
        return self.pushes.applied if isinstance(self.pushes, AsyncPushes) else None

    @property
    def halved(self) -> bool:
        """ps:0, in async: whether the servers contain different batches for good: the term is over."""
        return isinstance(self.pushes, AsyncPushes) and self.pushes.halved is not None

    def marked(self) -> Marked:
        """Answer a mark."""
        rule = self.pushes
        if not isinstance(rule, AsyncPushes):
            return Marked(applied=NONE)
        first = rule.gate is not None
        return Marked(
            applied=rule.applied.export(),
            again=rule.again if first else (),
            settled=rule.settled_below if first else 0,
        )

    def confirm(self, rank: int, sequence: int) -> None:
        """Note that all servers have answered a replica's pushes up to this one."""
        if isinstance(self.pushes, AsyncPushes):
            self.pushes.confirm(rank, sequence)

    def repairs(self, rank: int) -> bool:
        """Return whether the part that a replica is to push next makes no step."""
        rule = self.pushes
        return isinstance(rule, AsyncPushes) and rule.repairs is not None and rank in rule.repairs.given

    @property
    def cut(self) -> BatchCut:
        """How every batch is cut into parts; ps:0 says it."""
        return BatchCut() if self.dealer is None else BatchCut(self.dealer.parts, self.dealer.even)

    @property
    def history(self) -> dict[int, dict[int, Row]]:
        """ps:0: the numbers of every epoch that has ended, by call of `fit`."""
        if self.tally is None or not (self.tally.kept and self.tally.rows):
            return self.earlier_rows
        return {**self.earlier_rows, self.generation: self.tally.rows}

    def refuse(self, replica: str, rank: int, message: Push) -> tuple[Reply, Blocks]:
        """Answer a gradient that is not finite."""
        self.seen.record(replica, Seen(message.incarnation, message.sequence, Verdict.REFUSED))
        reason = f"the gradient of {replica} from version {message.base_version} holds NaN or infinity"
        ticket, part = self.pushes.refused(rank, message.part)
        if self.halved:
            reason += "; other servers may have its batch, so all go back to the newest checkpoint"
        told = self.pushes.told_to(rank)
        reply = Reply(
            verdict=Verdict.REFUSED,
            version=self.pushes.version,
            reason=reason,
            ticket=ticket,
            part=part,
            tally=told,
        )
        return reply, self.pushes.values_for(rank)

    def repeat(self, rank: int, row: Seen) -> tuple[Reply, Blocks]:
        """The answer to a push that was judged before: the first verdict, the newest values."""
        assert row.verdict is not None
        ticket, part = self.pushes.permit(rank)
        reply = Reply(
            verdict=row.verdict,
            version=self.pushes.version,
            staleness=row.staleness,
            duplicate=True,
            accepted=int(row.verdict is Verdict.ACCEPTED),
            stale=int(row.verdict is Verdict.STALE),
            ticket=ticket,
            reason="a repeated gradient held NaN or infinity" if row.verdict is Verdict.REFUSED else None,
            part=part,
            tally=self.pushes.told_to(rank),
            repairs=self.repairs(rank),
        )
        # One that is pending goes on computing with the values that it has.
        return reply, () if row.verdict is Verdict.PENDING else self.pushes.values_for(rank)


def _dealer(message: Initialise, training: ServerSection) -> PartDealer:
    """Deal whole batches where no replica was a backup when the fit began, however many replicas there are
    now.
    """
    dealt = Dealt(*message.dealt)
    return PartDealer.of(dealt, whole=isinstance(training, SyncSection) and not dealt.even)


def _tally(message: Initialise) -> Tally:
    rows = {} if message.alone else message.history.get(message.generation, {})
    first_step = message.lineage.first_step
    return Tally.of(
        first_step, message.steps_per_epoch, message.first_epoch, message.tally, rows, kept=not message.alone
    )


def _rule(
    message: Initialise,
    store: Store,
    training: ServerSection,
    cluster: ClusterSpec,
    server: int,
    subscribers: Sequence[Caller],
    dealer: PartDealer | None,
    tally: Tally | None,
) -> SyncPushes | AsyncPushes:
    leader = cluster.rank(cluster.leader, training.chief_trains) if cluster.leader else None
    if isinstance(training, AsyncSection):
        return AsyncPushes.of(
            store,
            training,
            version=message.version,
            max_steps=message.max_steps,
            server=server,
            servers=cluster.count(Role.PS),
            until=message.until,
            applied=AppliedBatches(*(message.applied or message.dealt[1:3])),
            repairs=message.repairs,
            torn=message.applied is not None,
            dealer=dealer,
            tally=tally,
            leader=leader,
            alone=message.alone,
        )
    step = None
    if dealer is not None and tally is not None:
        ranks = frozenset([0] if message.alone else range(len(cluster.replicas(training.chief_trains))))
        decision = SyncDecision(
            message.version,
            cluster.count(Role.PS),
            dealer.parts,
            len(ranks),
            dealer.whole,
            training.too_few == "shrink",
            live=ranks,
        )
        retry = training.on_stale == "retry_same_batch"
        step = SyncStep(dealer, decision, tally, retry, ranks if message.alone else None)
    return SyncPushes(
        store,
        training,
        subscribers,
        step,
        generation=message.generation,
        term=message.term,
        version=message.version,
        max_steps=message.max_steps,
        until=message.until,
        leader=leader,
    )
