"""A coordinator and its workers: on the tasks of a cluster with parameter servers, or alone in one process.

Alone, one worker is a thread of this process, and the variables lie here. Messages, queue and rules are
those of a cluster, so a program that works here works there.
"""

from functools import partial
from typing import NoReturn

import msgspec

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import ServerSection
from dtrain.errors import SpecError
from dtrain.messages import Attended, Closure, Failure, HeartbeatReply, Hello
from dtrain.parameters import placement
from dtrain.parameters.placement import Plan
from dtrain.process.assignment import TaskAssignment
from dtrain.process.clock import SYSTEM
from dtrain.roles.chief.driver import LeaderDriver
from dtrain.roles.coordinator.closures import Attendant, ClosureService
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.roles.parameter_server.shared_variables import SharedVariables
from dtrain.runs.reporting import Account, Reporter
from dtrain.strategies.cluster_task import ClusterTask
from dtrain.strategies.coordinator.closures import ProgramNames
from dtrain.strategies.coordinator.cluster_coordinator import Coordination
from dtrain.strategies.coordinator.execution import Execution
from dtrain.strategies.coordinator.values import ProgramValues, Servers, VariableClient
from dtrain.wire.channel import MemoryChannel
from dtrain.wire.connecting import ConnectTask
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.service import TaskService


class CoordinatorTask(msgspec.Struct, frozen=True, kw_only=True):
    """The place of this process in its cluster, with a lease at the control host."""

    task: ClusterTask
    assignment: TaskAssignment
    section: ServerSection
    lease: HeartbeatLink
    connect: ConnectTask
    credentials: Credentials
    reporter: Reporter

    @property
    def leader(self) -> TaskId:
        leader = self.assignment.cluster.leader
        assert leader is not None  # a cluster with tasks that train has one
        return leader

    @property
    def patience_s(self) -> float:
        return self.assignment.spec.wait.server_s

    def servers(self) -> Servers:
        """Return connections to all servers; what ends the lease ends their waits."""
        servers = Servers(self.task, self.connect)
        self.lease.on_failure = servers.abort
        return servers

    def plan(self, values: ProgramValues) -> Plan:
        return placement.plan(
            values.specs,
            len(self.assignment.cluster.servers),
            self.section.placement,
            self.section.partitioner,
        )


class ClusterCoordination(Coordination):
    """The coordinator of a cluster."""

    def __init__(self, place: CoordinatorTask, names: ProgramNames, values: ProgramValues) -> None:
        """Give the servers the variables, and serve the workers.

        Raises:
            SpecError: the cluster has no worker, or this task cannot serve at its address.
            PeerError: a server does not come, or refuses.
        """
        assignment = place.assignment
        if not any(task != place.leader for task in assignment.cluster.replicas()):
            raise SpecError(
                "ClusterCoordinator: expected workers beside the chief, found none in the cluster; in a "
                "process without a cluster, and so without dt.distribute.Server, a thread runs closures"
            )
        self.names = names
        self._place = place
        self._servers = place.servers()
        plan, session = place.plan(values), place.lease.incarnation
        client = VariableClient(self._servers.ask, plan, session)
        client.share(values.first_values())
        self.service = ClosureService(
            assignment.hello(),
            assignment.cluster,
            session,
            plan,
            place.reporter,
            start_s=assignment.connect_s,
            patience_s=place.patience_s,
        )
        self._listens = TaskService(self.service, assignment, place.credentials, place.section.transport)
        values.use(client)
        place.reporter.running()

    def end(self, *, farewell: bool) -> None:
        if farewell:
            self.service.end()
        self._listens.stop()
        self._servers.close()
        if farewell:
            count = len(self._place.assignment.cluster.servers)
            leader = LeaderDriver(count, self._place.connect, self._place.patience_s)
            leader.farewell({})
            leader.close()


def serve(place: CoordinatorTask, names: ProgramNames, values: ProgramValues) -> NoReturn:
    """Run closures until the coordinator's program has ended; then raise SystemExit(0).

    Raises:
        ProgramError: this task's program has other variables than the coordinator's.
        PeerError: the coordinator or a server is gone for good.
    """
    servers = place.servers()
    running: list[Execution] = []

    def begin(attended: Attended) -> None:
        plan = Plan.from_dict(attended.plan)
        values.check(plan)
        client = VariableClient(servers.ask, plan, attended.session)
        values.use(client)
        running[:] = [Execution(names, client, place.reporter.activity)]

    def run(closure: Closure, arguments: bytes) -> bytes | Failure:
        begun_s = place.reporter.begins()
        came = running[0].run(closure, arguments)
        place.reporter.slow_down(begun_s)
        return came

    place.reporter.running()
    attendant = Attendant(
        str(place.leader),
        partial(place.connect, place.leader),
        place.reporter,
        begin=begin,
        run=run,
        connect_s=place.assignment.connect_s,
        patience_s=place.assignment.spec.wait.leader_s,
    )

    def failed(reason: str) -> None:
        servers.abort(reason)
        attendant.end(reason, failed=True)

    def replied(reply: HeartbeatReply) -> None:
        if reply.ended:
            attendant.end("the run has ended", failed=False)

    place.lease.on_failure = failed
    place.lease.on_reply = replied
    attendant.serve()
    servers.close()
    raise SystemExit(0)


def refuse_evaluator(reporter: Reporter) -> NoReturn:
    """End an evaluator, by SystemExit(0): it has nothing to do in a program with a coordinator."""
    reporter.warn("a program with a coordinator writes no checkpoints of fit: the evaluator ends")
    raise SystemExit(0)


CLUSTER = ClusterSpec.from_lists(chief=["here"], worker=["here"], ps=["here"])
PATIENCE_S = 60.0


class LocalCoordination(Coordination):
    """The coordinator of a program that runs alone, with one worker."""

    def __init__(self, names: ProgramNames, values: ProgramValues) -> None:
        self.names = names
        answer, plan = SharedVariables(0, 1).answer, placement.plan(values.specs, 1)
        client = VariableClient(lambda asked: [answer(message, each) for _, message, each in asked], plan, 1)
        client.share(values.first_values())
        values.use(client)
        self.service = ClosureService(
            _hello("chief:0"), CLUSTER, 1, plan, Account(), start_s=PATIENCE_S, patience_s=PATIENCE_S
        )
        self._execution = Execution(names, None)
        SYSTEM.start(self._serve, "worker")

    def _serve(self) -> None:
        connect = partial(MemoryChannel, "chief:0", self.service, _hello("worker:0"))
        attendant = Attendant(
            "chief:0",
            lambda timeout_s: connect(),
            Account(),
            begin=self._begin,
            run=self._execution.run,
            connect_s=PATIENCE_S,
            patience_s=PATIENCE_S,
        )
        attendant.serve()

    def _begin(self, attended: Attended) -> None:
        """Begin the only session, which is there already."""
        assert attended.session == 1

    def end(self, *, farewell: bool) -> None:
        self.service.end()


def begin_alone() -> tuple[LocalCoordination, ProgramValues]:
    """Begin to coordinate a program that runs without a cluster."""
    names = ProgramNames()
    values = ProgramValues(names)
    return LocalCoordination(names, values), values


def _hello(task: str) -> Hello:
    return Hello(run_id="alone", cluster_hash="", task=task)
