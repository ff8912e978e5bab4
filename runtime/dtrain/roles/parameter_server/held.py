"""What a server holds in one term: variables, the rule by which they change, the table of what was seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from dtrain.cluster import ClusterSpec, Role
from dtrain.config import TrainingSection
from dtrain.errors import InputError
from dtrain.learning.drawn_table import DrawnTable
from dtrain.messages import Initialise, Lineage, Push, Reply, Verdict
from dtrain.protocol.batch_dealer import BatchDealer
from dtrain.protocol.compression import Compression
from dtrain.protocol.exactly_once import Seen, SeenPushes
from dtrain.protocol.placement import Plan
from dtrain.protocol.sync_round import quota
from dtrain.roles.parameter_server.actions import Caller
from dtrain.roles.parameter_server.async_pushes import AsyncPushes
from dtrain.roles.parameter_server.published import Room
from dtrain.roles.parameter_server.store import Store
from dtrain.roles.parameter_server.sync_pushes import SyncPushes

Blocks = Sequence[np.ndarray[Any, Any]]


@dataclass
class Held:
    """The variables of one term, and the rule by which they change.

    Attributes:
        max_steps: the last version; an order may lower it.
        order: the number of the newest order that was obeyed.
        stopped: whether it has ended training.
    """

    generation: int
    term: int
    lineage: Lineage
    plan: Plan
    training: TrainingSection
    max_steps: int
    directory: str
    store: Store
    dealer: BatchDealer
    pushes: SyncPushes | AsyncPushes
    seen: SeenPushes
    order: tuple[int, int] = (0, 0)
    stopped: bool = False

    @classmethod
    def of(
        cls, message: Initialise, blocks: Blocks, cluster: ClusterSpec, server: int, subscribers: Sequence[Caller], room: Room
    ) -> "Held":
        """As the leader says; `subscribers` are told of commits, the values are kept in `room`.

        Raises:
            DtrainError, msgspec.ValidationError: plan, optimizer and blocks do not fit together.
        """
        plan, training = Plan.from_dict(message.plan), msgspec.convert(message.training, TrainingSection)
        servers = cluster.count(Role.PS)
        if plan.servers != servers:
            raise InputError(f"a plan for {plan.servers} servers, and the cluster has {servers}")
        layout = plan.layout(server)
        compression, dense = Compression.of(training.compression), len(layout.groups)
        store = Store(layout, message.optimizer, blocks[:dense], message.lineage.origin, message.max_steps, room, compression)
        if message.slots:
            store.restore_slots(message.slots, blocks[dense:])
        for table in store.tables:
            variable = plan.variables[table.shard.variable]
            for name, description in message.drawn.get(variable.name, {}).items():
                table.drawn[name] = DrawnTable.described(description, variable.shape)
        replicas = len(cluster.replicas(training.chief_trains))
        dealer = BatchDealer.of(replicas, quota(training.replicas_needed(replicas), replicas), message.batches, message.dealt)
        pushes: SyncPushes | AsyncPushes
        if training.updates == "sync":
            pushes = SyncPushes(
                store,
                dealer,
                training,
                subscribers,
                generation=message.generation,
                term=message.term,
                version=message.version,
                max_steps=message.max_steps,
                replicas=replicas,
                server=server,
                servers=servers,
                until=message.until,
            )
        else:
            pushes = AsyncPushes.of(
                store,
                dealer,
                training,
                version=message.version,
                max_steps=message.max_steps,
                server=server,
                until=message.until,
                leader=cluster.rank(cluster.leader, training.chief_trains) if cluster.leader else None,
            )
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
            dealer,
            pushes,
            seen,
        )

    def received(self, replica: str, message: Push, blocks: Blocks) -> Blocks:
        """The blocks of a push of this term as they are without compression.

        Raises:
            InputError: it cannot be taken, and why.
        """
        if self.pushes.failed:
            raise InputError(self.pushes.failed)
        if message.plan_hash != self.plan.hash:
            raise InputError(
                f"{replica} pushes by plan {message.plan_hash}, the run's is {self.plan.hash}: do all tasks build the same model?"
            )
        try:
            blocks = self.store.received(blocks)
        except InputError as error:
            raise InputError(f"a gradient of {replica} does not fit: {error}") from None
        if message.base_version > self.pushes.version:
            raise InputError(f"{replica} pushes from version {message.base_version}, the newest is {self.pushes.version}")
        return blocks

    def refuse(self, replica: str, rank: int, message: Push) -> tuple[Reply, Blocks]:
        """The answer to a gradient that is not finite."""
        self.seen.record(replica, Seen(message.incarnation, message.sequence, Verdict.REFUSED))
        self.dealer.done(message.batch)
        reason = f"the gradient of {replica} from version {message.base_version} holds NaN or infinity"
        ticket = self.pushes.refused(rank)
        batch = self.dealer.give(rank) if ticket else -1
        reply = Reply(Verdict.REFUSED, self.pushes.version, reason=reason, ticket=ticket, batch=batch)
        return reply, self.pushes.values_for(rank)

    def repeat(self, rank: int, row: Seen) -> tuple[Reply, Blocks]:
        """The answer to a push that was judged before: the first verdict, the newest values."""
        assert row.verdict is not None
        ticket = self.pushes.ticket(rank)
        reply = Reply(
            row.verdict,
            self.pushes.version,
            staleness=row.staleness,
            duplicate=True,
            accepted=int(row.verdict is Verdict.ACCEPTED),
            stale=int(row.verdict is Verdict.STALE),
            ticket=ticket,
            reason="a repeated gradient held NaN or infinity" if row.verdict is Verdict.REFUSED else None,
            batch=self.dealer.give(rank) if ticket else -1,
        )
        # One that is pending goes on computing with the values that it has.
        return reply, () if row.verdict is Verdict.PENDING else self.pushes.values_for(rank)
