"""Puts the parts of one call of `fit` on parameter servers together, from the lowest to the highest."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dtrain.config import AsyncSection, ServerSection, SyncSection
from dtrain.config.choices import Transport, Weighting
from dtrain.parameters.compression import Compression
from dtrain.parameters.packing import CompressedPacking, Packing
from dtrain.parameters.placement import Plan
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.process.clock import SYSTEM, Clock
from dtrain.roles.chief.keeper.driver import Keeper
from dtrain.roles.chief.order_driver import OrderDriver
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.roles.worker.driver import ReplicaDriver
from dtrain.roles.worker.machine import Replica
from dtrain.runs.reporting import Reporter
from dtrain.strategies.context import TaskContext
from dtrain.strategies.parameter_server.failures import Failures
from dtrain.strategies.parameter_server.leader import ServerLeader
from dtrain.strategies.parameter_server.replica import ServerReplica
from dtrain.strategies.parameter_server.training import ServerTraining
from dtrain.wire.connecting import arrays_to_send
from dtrain.wire.connector import ConnectTask


@dataclass(frozen=True, kw_only=True)
class Opening:
    """The parts of one call of `fit`.

    Attributes:
        number: of the call of `fit`.
        plan: where variables lie.
        context: which task this is.
        section: the rules.
        link: the task's lease.
        keeper: the leader's; None in other tasks.
        host: the server that hosts the control plane.
        connect: opens a connection for tensors to a task.
        connect_s: how long a server may take to be there at first.
        patience_s: how long one may be away later.
        reporter: told of everything.
        sequence: the number of the last push of this process.
        checkpoint_folder: the leader's.
        on_close: called when training ends.
        clock: the time, and how to wait.
    """

    number: int
    plan: Plan
    context: TaskContext
    section: ServerSection
    link: HeartbeatLink
    keeper: Keeper | None
    host: int
    connect: ConnectTask
    connect_s: float
    patience_s: float
    reporter: Reporter
    sequence: int
    checkpoint_folder: Path | None
    on_close: Callable[[ServerTraining], None]
    clock: Clock = SYSTEM


def open_training(parts: Opening) -> ServerTraining:
    """Connect to the servers, get the first values, and, as the leader, learn what is in force.

    Raises:
        PeerError: a server is gone for good, or will not have this task.
    """
    section = parts.section
    context = parts.context
    reporter = parts.reporter
    keeper = parts.keeper
    failures = Failures(parts.link, keeper)
    driver, gradients = _driver(parts)
    machine = driver.machine
    weights = driver.weights
    orders = _orders(parts) if keeper is not None else None

    def abort(reason: str) -> None:
        driver.abort(reason)
        if orders is not None:
            orders.abort(reason)

    parts.link.on_failure = abort
    if keeper is not None:
        keeper.on_failure = abort
        keeper.own_step = lambda: (machine.term, machine.global_step)
    reporter.status.stale_gradients = 0
    driver.start()
    leader = None
    if keeper is not None and orders is not None and parts.checkpoint_folder is not None:
        leader = ServerLeader(
            parts.plan, weights, driver, orders, keeper, failures, reporter, parts.checkpoint_folder
        )
    reporter.status.max_steps = machine.max_steps
    reporter.progress(machine.global_step)
    reporter.running()
    reporter.bytes_moved = lambda: driver.bytes_moved
    replicas = (
        [ServerReplica(context.rank, driver, gradients, weights, section, reporter, failures, leader)]
        if context.rank >= 0
        else []
    )
    return ServerTraining(
        driver,
        weights,
        replicas,
        leader,
        reporter,
        cut=machine.cut,
        weighs_examples=isinstance(section, SyncSection) and section.weighting == Weighting.EXAMPLES,
        on_close=parts.on_close,
    )


def _driver(parts: Opening) -> tuple[ReplicaDriver, ReplicaMemory]:
    """Return what exchanges gradients for values, connected, and the gradients."""
    section = parts.section
    plan = parts.plan
    trains = parts.context.rank >= 0
    room = partial(arrays_to_send, section.transport if trains else Transport.GRPC)
    compression = Compression.of(section.compression)
    weights = ReplicaMemory(plan)
    gradients = ReplicaMemory(plan, None if compression else room)
    machine = Replica(
        plan.servers,
        parts.number,
        parts.link.incarnation,
        plan.hash,
        isinstance(section, SyncSection),
        trains,
        saves=parts.keeper is not None,
        nan_policy=section.nan_policy,
        first_judges=isinstance(section, AsyncSection) and section.max_staleness is not None,
        sequence=parts.sequence,
        host=parts.host,
    )
    driver = ReplicaDriver(
        machine,
        weights,
        gradients,
        parts.connect,
        parts.reporter,
        connect_s=parts.connect_s,
        patience_s=parts.patience_s,
        packing=CompressedPacking(compression, weights, gradients, room)
        if compression
        else Packing(weights, gradients),
        clock=parts.clock,
    )
    return driver, gradients


def _orders(parts: Opening) -> OrderDriver:
    return OrderDriver(
        parts.plan.servers,
        parts.number,
        parts.link.incarnation,
        parts.connect,
        parts.patience_s,
        parts.clock,
        host=parts.host,
    )
