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
from dtrain.messages import Initialise, Lineage, Push
from dtrain.protocol.batch_dealer import BatchDealer
from dtrain.protocol.exactly_once import SeenPushes
from dtrain.protocol.placement import Plan
from dtrain.protocol.sync_round import quota
from dtrain.roles.actions import Caller
from dtrain.roles.async_pushes import AsyncPushes
from dtrain.roles.published import Room
from dtrain.roles.store import Store
from dtrain.roles.sync_pushes import SyncPushes

Blocks = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Held:
    """The variables of one term, and the rule by which they change."""

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
        store = Store(layout, message.optimizer, blocks[: len(layout.groups)], message.lineage.origin, message.max_steps, room)
        if message.slots:
            store.restore_slots(message.slots, blocks[len(layout.groups) :])
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
            )
        else:
            pushes = AsyncPushes.of(store, dealer, training, version=message.version, max_steps=message.max_steps, server=server)
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

    def push_refusal(self, replica: str, message: Push, blocks: Blocks) -> str | None:
        """Why a push of this term cannot be taken; None if it can."""
        if self.pushes.failed:
            return self.pushes.failed
        if message.plan_hash != self.plan.hash:
            return (
                f"{replica} pushes by plan {message.plan_hash}, the run's is {self.plan.hash}: do all tasks build the same model?"
            )
        if mismatch := self.store.push_mismatch(blocks):
            return f"a gradient of {replica} does not fit: {mismatch}"
        if message.base_version > self.pushes.version:
            return f"{replica} pushes from version {message.base_version}, the newest is {self.pushes.version}"
        return None
