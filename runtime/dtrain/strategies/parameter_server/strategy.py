"""The place of one chief, worker or evaluator among the parameter servers, for all of its calls of `fit`."""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from dtrain.checkpoints import EvaluatedCheckpoint, OptimizerState, Pace
from dtrain.cluster import AddressBook, Role, TaskId
from dtrain.config import NO_SERVERS, SyncSection, outer_of
from dtrain.data.distribution.once import share_over_hosts
from dtrain.errors import ProgramError, SpecError
from dtrain.messages import HeartbeatReply
from dtrain.parameters import placement
from dtrain.parameters.placement import unclippable
from dtrain.process.assignment import TaskAssignment
from dtrain.protocol.membership import LEASE_S
from dtrain.roles.chief.driver import server_name
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.roles.worker.driver import ReplicaDriver
from dtrain.runs.files import KillRequest, RunFiles
from dtrain.state.batch_cut import BatchCut
from dtrain.strategies.cluster_task import ClusterTask
from dtrain.strategies.interface import Ended, Problem, Strategy, Training, discard_rows
from dtrain.strategies.learned import LeaderLearns, spreads_over_hosts
from dtrain.strategies.parameter_server.opening import LeadingTask, open_training
from dtrain.strategies.parameter_server.training import LocalTrainingParts, ServerTraining, TrainingParts
from dtrain.strategies.passed_over import PassedOverTraining
from dtrain.strategies.replicas.distributed_dataset import InputWorkers
from dtrain.strategies.replicas.loops import Loops
from dtrain.wire.connecting import Connector

if TYPE_CHECKING:  # loaded by the program that coordinates
    from dtrain.strategies.coordinator.cluster_coordinator import Coordination

CUT_S = 15.0
"""Seconds beyond `wait.server_s` after which no cable can be why a server of another host does not answer:
its launcher has given up a host that was cut off for so long.
"""


class ServersStrategy(Strategy):
    """This task's part in a cluster with parameter servers."""

    has_coordinator = False
    coordination: "Coordination | None" = None

    def __init__(self, assignment: TaskAssignment) -> None:
        """Set up the task, or raise a `SpecError` without servers; no connection is made before `open`."""
        if not assignment.cluster.servers:
            raise SpecError(NO_SERVERS)
        self.assignment = assignment
        self.training = assignment.spec.on_servers
        self._task = task = ClusterTask(assignment, self.training)
        self.context = task.context
        self.reporter = task.reporter
        self.evaluations = task.evaluations
        self._patience_s = assignment.spec.wait.server_s
        self._run_dir = task.run_dir
        self._leading: LeadingTask | None = None
        self._heartbeats: list[HeartbeatLink] = []
        host = assignment.cluster.control_host
        assert host is not None  # a cluster with servers has one
        self._host = host.index
        self._connector = self._connect_by(AddressBook(assignment.cluster))
        self._generation = 0
        self._came_late = False
        self._reading: ReplicaDriver | None = None
        self._open: ServerTraining | None = None
        self._owner: object = None
        self._inner: OptimizerState | None = None
        self._pushes_sent = 0  # in all calls of `fit`: the numbers of pushes go on
        if spreads_over_hosts(assignment):
            share_over_hosts(self._learning(host))

    def _learning(self, host: TaskId) -> LeaderLearns:
        return LeaderLearns(
            self.reporter,
            self._join,
            partial(self._connector.connect_heart, host),
            leads=lambda: self.is_leader,
            fits=lambda: self._generation,
            patience_s=self._patience_s,
        )

    @property
    def num_replicas_in_sync(self) -> int:
        """N in synchronous training, as it was when the run began; else 1, as where closures train."""
        if self.has_coordinator or not isinstance(self.training, SyncSection):
            return 1
        return self._task.begun_with or self.training.replicas_needed(self.context.num_replicas)

    @property
    def _connect_s(self) -> float:
        """How long a server may take to appear, or from the second `fit` on to come back."""
        return self.assignment.connect_s if self._generation <= 1 else self._patience_s

    def _connect_by(self, book: AddressBook) -> Connector:
        return self._task.connector(self.training.transport, book)

    @property
    def _lease(self) -> HeartbeatLink:
        return self._heartbeats[self._host if self.is_leader else 0]

    def open(self, problem: Problem) -> Training:
        if self.shared is not None:
            raise ProgramError(
                "fit: this program has called its ClusterCoordinator, and its workers run closures from then "
                "on; call fit before, or train in closures"
            )
        problem.check_unconstrained()
        self._generation += 1
        self.reporter.fit_begins()
        self._join()
        local: LocalTrainingParts | None = None
        if problem.rounds is not None:
            from dtrain.strategies.parameter_server import local_steps

            before = self.optimizer_state(problem.owner)
            spec, folder, kept = self.assignment.spec.checkpoint, self._task.run_dir, None
            if spec.inner and folder is not None:
                kept = local_steps.KeptMoments(RunFiles(folder).moments(self.assignment.task), spec)
            problem, local = local_steps.begin(
                problem,
                self.training,
                self.context.num_replicas,
                before,
                kept=kept,
                succeeds=bool(self.assignment.attempt or self._task.begun_with),
            )
        plan = placement.plan(
            problem.variables,
            len(self.assignment.cluster.servers),
            self.training.placement,
            self.training.partitioner,
        )
        if reason := unclippable(problem.optimizer, plan):
            raise SpecError(reason)
        leading = self._leading
        if leading is not None and not leading.begin(
            self._generation, plan, problem, self._cut, self._connect_s
        ):
            self.reporter.warn(
                f"call {self._generation} of fit had ended before this program was started again: passed over"
            )
            self.reporter.fit_ends()
            return PassedOverTraining(problem, self._generation, leading.checkpoints)
        keeper = None if leading is None else leading.keeper
        parts = TrainingParts(
            number=self._generation,
            plan=plan,
            context=self.context,
            section=self.training,
            link=self._lease,
            keeper=keeper,
            host=self._host,
            connect=self._connector.connect,
            connect_s=self._connect_s,
            patience_s=self._patience_s,
            reporter=self.reporter,
            sequence=self._pushes_sent,
            steps_per_epoch=problem.steps_per_epoch,
            checkpoint_folder=None if leading is None else leading.checkpoints,
            on_close=self._closed,
            local=local,
        )
        try:
            training = open_training(parts)
        except BaseException as error:
            if keeper is not None:  # else it would go on asking the servers beside the farewell
                keeper.stop(save=isinstance(error, SystemExit | KeyboardInterrupt))
            raise
        self._open = training
        self._owner = problem.owner
        if self._generation == 1 and self._came_late and training.finished:
            what = "training" if self._lease.reply.ended else "this call of fit"
            ended = f"{what} had ended at step {training.global_step} before this task came"
            self.reporter.warn(f"{ended}: nothing is left for it to do")
        return training

    @property
    def _cut(self) -> BatchCut:
        training = self.training
        even = isinstance(training, SyncSection) and training.has_backups(self.context.num_replicas)
        return BatchCut(self.num_replicas_in_sync, even)

    def _closed(self, training: ServerTraining) -> None:
        """Keep what a call of `fit` that ends leaves to the next one, and to the farewell."""
        self._let_read(training.driver)
        self._inner = training.inner_state
        leading = self._leading
        if leading is not None and leading.keeper is not None and not leading.keeper.asked.alone:
            leading.recorded[leading.keeper.asked.generation] = training.recorded
        self._pushes_sent = training.driver.machine.sequence
        self._lease.on_failure = lambda reason: None
        self._open = None

    def _let_read(self, driver: ReplicaDriver) -> None:
        """Keep the connections of an ended training while the rows of its tables may still be read."""
        if self._reading is not None:
            self._reading.close()
        self._reading = driver
        if not driver.tables:
            driver.close()
            self._reading = None

    def _join(self) -> HeartbeatLink:
        """Take a lease at the control host; the leader at every server (each must know when it is gone)."""
        if self._heartbeats:
            return self._lease
        servers = range(len(self.assignment.cluster.servers)) if self.is_leader else [self._host]
        for server in servers:
            task = TaskId(Role.PS, server)
            self.reporter.waiting(str(task))
            on_silence = partial(self._server_is_silent, server) if self.is_leader else lambda silent_s: None
            link = HeartbeatLink(
                str(task),
                partial(self._connector.connect_heart, task),
                self.reporter,
                connect_s=self._connect_s,
                patience_s=self._patience_s,
                on_silence=on_silence,
                book=self._connector.book if server == self._host else None,
                moved_to=self.assignment.moved_to,
            )
            self._heartbeats.append(link)
        self._lease.on_reply = self._heard
        if self.is_leader:
            assert self._run_dir is not None, "a leader has a run directory"
            self._leading = LeadingTask(
                self._heartbeats,
                self._host,
                self._connector.connect,
                self.reporter,
                self._run_dir,
                self.training,
                self.assignment.spec.checkpoint,
                self._patience_s,
            )
        first = self._lease.reply
        self._came_late = not self.is_leader and first.generation > 0 and first.version >= first.max_steps
        self.reporter.waiting(None)
        return self._lease

    def _heard(self, reply: HeartbeatReply) -> None:
        """From the lease's thread: the state of the run at ps:0."""
        if self.is_leader:
            self._task.write_down(reply)
        if (training := self._open) is not None:
            training.heard_term(reply.term)

    def _server_is_silent(self, server: int, silent_s: float) -> None:
        """Leader: a server has not answered for a lease or more; if it stands still, it is started again."""
        busy = self._leading is not None and self._leading.busy
        name = server_name(server)
        reason = f"{self.assignment.task} has not heard from it for {silent_s:.0f} s"
        if self._leading is not None:
            self._leading.break_with(server, f"{name}: {reason}")
        if self.assignment.launched and self._run_dir is not None:
            statuses = [
                status
                for link in self._heartbeats[server : server + 1]
                for status in link.reply.statuses
                if status.task == name
            ]
            wait = self.assignment.spec.wait
            far_s = 0.0 if self.assignment.on_one_host else wait.server_s - wait.start_s + CUT_S
            unsure = busy or not statuses or silent_s < far_s
            heard_attempt = None if unsure else statuses[0].attempt
            request = KillRequest(reason, heard_attempt, time.monotonic(), LEASE_S)
            RunFiles(self._run_dir).request_kill(TaskId(Role.PS, server), request)

    def _make_loops(self) -> Loops:
        """Return the replica that a closure is; it runs functions only in a program with a coordinator."""
        return Loops(
            self,
            refusal="on parameter servers replicas meet at the servers alone, within fit, and run no "
            "functions together; override Model.train_step for a step of your own, or use "
            "dt.MirroredStrategy or dt.MultiWorkerMirroredStrategy",
        )

    def coordinate(self) -> "Coordination":
        from dtrain.strategies.coordinator import closures, cluster_coordinator, values

        if self.evaluates:
            told = "a program with a coordinator writes no checkpoints of fit: the evaluator ends"
            self.reporter.warn(told)
            raise SystemExit(0)
        self._join()
        connect = self._connector.connect
        servers = values.Servers(self._task, connect)
        self._lease.on_failure = servers.abort
        self.shared = values.ProgramValues(closures.ProgramNames())
        if not self.is_leader:
            cluster_coordinator.serve(self.shared, servers, self._task, self._lease, connect)
        session = self._lease.incarnation
        self.coordination = cluster_coordinator.coordinate(self.shared, servers, self._task, session)
        return self.coordination

    def _make_input_workers(self) -> InputWorkers:
        """Return this task alone: as in TensorFlow nothing is dealt or cut on parameter servers."""
        return InputWorkers()

    def optimizer_state(self, owner: object) -> OptimizerState | None:
        """See `FitStrategy`; in local steps it is that of this task's replica."""
        if outer_of(self.training) is None:
            return None if self._leading is None else self._leading.optimizer_state(owner)
        if owner is not self._owner:
            return None
        return self._inner if self._open is None else self._open.inner_state

    def checkpoints(self, pace: Pace, ended: Ended = discard_rows) -> Iterator[EvaluatedCheckpoint]:
        """Yield checkpoints of the leader's folder, seen under the same path, or of the `remote` one."""
        self._generation += 1
        return self._task.follow(self._join, pace, self._generation, ended)

    def evaluated(self, global_step: int, metrics: Mapping[str, float]) -> None:
        self._task.evaluated(global_step, metrics)

    def close(self, error: BaseException | None = None) -> None:
        share_over_hosts(None)
        if self._reading is not None:
            self._reading.close()
        self._task.close(error, self._heartbeats, self._take_leave)
        self._heartbeats.clear()

    def _take_leave(self, farewell: bool) -> None:
        if self.coordination is not None:
            self.coordination.end(farewell=farewell)
        if self._leading is not None:
            if self.coordination is not None and farewell:
                self._leading.connect(self._patience_s)
            self._leading.close(farewell=farewell)
