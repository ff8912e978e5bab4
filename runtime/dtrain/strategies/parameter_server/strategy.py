"""The place of one chief, worker or evaluator among the parameter servers, for all of its calls of `fit`."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from dtrain.checkpoints import EvaluatedCheckpoint, OptimizerState, Pace
from dtrain.cluster import AddressBook, Role, TaskId
from dtrain.config import NO_SERVERS, SyncSection
from dtrain.config.choices import Validation
from dtrain.errors import SpecError
from dtrain.messages import HeartbeatReply, Row
from dtrain.messages.status import TaskPhase
from dtrain.parameters import placement
from dtrain.parameters.placement import Plan, unclippable
from dtrain.process.assignment import TaskAssignment
from dtrain.protocol.batch_cut import BatchCut
from dtrain.protocol.membership import LEASE_S
from dtrain.roles.chief.driver import server_name
from dtrain.roles.chief.keeper.driver import Keeper
from dtrain.roles.chief.kill_request import request_kill
from dtrain.roles.chief.start import replicas_in_sync, saved_rows
from dtrain.roles.evaluator.driver import follow_fit
from dtrain.roles.evaluator.followed_run import FollowedRun
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.roles.worker.driver import ReplicaDriver
from dtrain.runs import failure
from dtrain.runs.files import RunFiles
from dtrain.runs.joined import JoinedFromElsewhere
from dtrain.runs.metrics_log import MetricsLog
from dtrain.runs.reporting import Reporter
from dtrain.runs.standalone import HandRun
from dtrain.runs.task_states import STOPPED
from dtrain.strategies.context import TaskContext
from dtrain.strategies.interface import Strategy, Training
from dtrain.strategies.parameter_server.leading import Leading
from dtrain.strategies.parameter_server.opening import Opening, open_training
from dtrain.strategies.parameter_server.overlap import Overlap
from dtrain.strategies.parameter_server.training import ServerTraining
from dtrain.strategies.passed_over import PassedOverTraining
from dtrain.strategies.problem import Problem
from dtrain.wire.connector import Connector
from dtrain.wire.security.credentials import Credentials

TOLD_EVALUATIONS = 20
"""How many of its last evaluations an evaluator tells of with every heartbeat, so that the leader misses
none.
"""


class ParameterServerStrategy(Strategy):
    """This task's part in a cluster with parameter servers; see `Strategy`.

    Attributes:
        reporter: says how this task stands.
    """

    def __init__(self, assignment: TaskAssignment) -> None:
        """Take a place in the cluster; no connection is made before `open`.

        Raises:
            SpecError: the cluster has no parameter server.
        """
        if not assignment.cluster.servers:
            raise SpecError(NO_SERVERS)
        self.assignment = assignment
        self.training = assignment.spec.on_servers
        task = assignment.task
        cluster = assignment.cluster
        rank = cluster.rank(task, self.training.chief_trains)
        is_leader = task == cluster.leader
        has_evaluator = assignment.spec.cluster.count(Role.EVALUATOR) > 0
        self._hand_run = HandRun(assignment) if is_leader and not assignment.launched else None
        run_dir = self._hand_run.files.directory if self._hand_run else assignment.run_dir
        self.reporter = Reporter(replace(assignment, run_dir=run_dir))
        self.context = TaskContext(
            task=task,
            rank=-1 if rank is None else rank,
            num_replicas=len(cluster.replicas(self.training.chief_trains)),
            is_leader=is_leader,
            evaluates=task.role is Role.EVALUATOR,
            has_evaluator=has_evaluator,
            validates=self.training.validation == Validation.LEADER or not has_evaluator,
            directory=run_dir if assignment.launched else None,
            run_id=assignment.run_id,
            seed=self.training.seed,
            trace=self.reporter.trace,
        )
        self.evaluations: dict[int, Mapping[str, float]] = {}
        self._patience_s = assignment.spec.wait.server_s
        self._credentials = Credentials.of(assignment, self.reporter.warn)
        self.reporter.certificate = self._credentials.certificate_life
        self.reporter.introduce()
        if self._hand_run is not None:
            self.reporter.announce(f"leads the run; its files are in {run_dir}")
        self._run_dir = run_dir
        self._begun_with = replicas_in_sync(RunFiles(run_dir).checkpoints) if run_dir is not None else 0
        self._metrics = (
            MetricsLog(RunFiles(run_dir).metrics, time.monotonic) if self.is_leader and run_dir else None
        )
        self._joined = (
            JoinedFromElsewhere(RunFiles(run_dir), assignment.cluster)
            if self.is_leader and assignment.launched and run_dir
            else None
        )
        self._leading: Leading | None = None
        self._heartbeats: list[HeartbeatLink] = []
        host = cluster.control_host
        assert host is not None  # a cluster with servers has one
        self._host = host.index
        self._connector = self._connect_by(AddressBook(cluster))
        self._generation = 0
        self._came_late = False
        self._reading: ReplicaDriver | None = None
        self._overlap = Overlap(self.training.overlap)
        self._pushes_sent = 0  # in all calls of `fit`: the numbers of pushes go on
        self.followed_rows: Mapping[int, Row] = {}

    @property
    def num_replicas_in_sync(self) -> int:
        """N in synchronous training, as it was when the run began; else 1."""
        if not isinstance(self.training, SyncSection):
            return 1
        return self._begun_with or self.training.replicas_needed(self.context.num_replicas)

    @property
    def _connect_s(self) -> float:
        """How long a server may take to accept a connection: to appear, or from the second `fit` on to come
        back.
        """
        return self.assignment.connect_s if self._generation <= 1 else self._patience_s

    def _connect_by(self, book: AddressBook) -> Connector:
        return Connector(
            self.assignment, self._credentials, self.reporter.unreached, self.training.transport, book
        )

    @property
    def _lease(self) -> HeartbeatLink:
        """The lease at the control host."""
        return self._heartbeats[self._host if self.is_leader else 0]

    def open(self, problem: Problem) -> Training:
        """See `Strategy.open`."""
        self._generation += 1
        self.reporter.fit_begins()
        self._join()
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
        try:
            training = open_training(self._opening(plan, keeper))
        except BaseException as error:
            if keeper is not None:  # else it would go on asking the servers beside the farewell
                keeper.stop(save=isinstance(error, SystemExit | KeyboardInterrupt))
            raise
        if self._generation == 1 and self._came_late and training.clock.finished:
            what = "training" if self._lease.reply.ended else "this call of fit"
            ended = f"{what} had ended at step {training.clock.global_step} before this task came"
            self.reporter.warn(f"{ended}: nothing is left for it to do")
        return training

    @property
    def _cut(self) -> BatchCut:
        training = self.training
        even = isinstance(training, SyncSection) and training.has_backups(self.context.num_replicas)
        return BatchCut(self.num_replicas_in_sync, even)

    def _opening(self, plan: Plan, keeper: Keeper | None) -> Opening:
        return Opening(
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
            overlap=self._overlap,
            sequence=self._pushes_sent,
            checkpoint_folder=self._leading.checkpoints if self._leading else None,
            on_close=self._closed,
        )

    def _closed(self, training: ServerTraining) -> None:
        """Keep what a call of `fit` that ends leaves to the next one, and to the farewell."""
        self._let_read(training.driver)
        leading = self._leading
        if leading is not None and leading.keeper is not None and not leading.keeper.generation.alone:
            leading.recorded[leading.keeper.generation.number] = training.recorded
        self._pushes_sent = training.driver.machine.sequence
        self._lease.on_failure = lambda reason: None

    def _let_read(self, driver: ReplicaDriver) -> None:
        """Keep the connections of a training that has ended while the rows of its tables may still be
        read.
        """
        if self._reading is not None:
            self._reading.close()
        self._reading = driver
        if not driver.tables:
            driver.close()
            self._reading = None

    def _join(self) -> None:
        """Take a lease at the control host; the leader at every server (each must know when it is gone)."""
        if self._heartbeats:
            return
        servers = range(len(self.assignment.cluster.servers)) if self.is_leader else [self._host]
        for server in servers:
            task = TaskId(Role.PS, server)
            self.reporter.waiting(str(task))
            on_silence = partial(self._server_is_silent, server) if self.is_leader else lambda: None
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
        if self.is_leader:
            self._lease.on_reply = self._write_down
            self._leading = self._as_leader()
        first = self._lease.reply
        self._came_late = not self.is_leader and first.generation > 0 and first.version >= first.max_steps
        self.reporter.waiting(None)

    def _write_down(self, reply: HeartbeatReply) -> None:
        """Leader: log the status of every task, which the control host has sent, and keep the evaluations."""
        if self._metrics is not None:
            self._metrics.update(reply)
        for evaluation in (each for status in reply.statuses for each in status.evaluations):
            numbers = dict(evaluation)
            self.evaluations[int(numbers.pop("global_step"))] = numbers
        if self._joined is not None:
            self._joined.update(reply)
        for text in self._hand_run.update(reply) if self._hand_run is not None else ():
            self.reporter.announce(text)

    def _server_is_silent(self, server: int) -> None:
        """Leader: a server has not answered for a lease. It may be there and stand still: then it must be
        started again.
        """
        busy = self._leading is not None and self._leading.busy
        name = server_name(server)
        reason = f"{self.assignment.task} has not heard of it for {LEASE_S:g} s"
        if self._leading is not None:
            self._leading.break_with(server, f"{name}: {reason}")
        if self.assignment.launched and self._run_dir is not None:
            said = [
                said
                for link in self._heartbeats[server : server + 1]
                for said in link.reply.statuses
                if said.task == name
            ]
            heard_attempt = None if busy or not said else said[0].attempt
            task = TaskId(Role.PS, server)
            request_kill(self._run_dir, task, heard_attempt, reason, now_s=time.monotonic(), lease_s=LEASE_S)

    def _as_leader(self) -> Leading:
        if self._run_dir is None:
            raise AssertionError("a leader has a run directory")
        spec = self.assignment.spec
        return Leading(
            self._heartbeats,
            self._host,
            self._connector.connect,
            self.reporter,
            self._run_dir,
            self.training,
            spec.checkpoint,
            spec.wait.server_s,
        )

    def optimizer_state(self, owner: object) -> OptimizerState | None:
        """See `Strategy.optimizer_state`."""
        return None if self._leading is None else self._leading.optimizer_state(owner)

    def checkpoints(self, pace: Pace) -> Iterator[EvaluatedCheckpoint]:
        """See `Strategy.checkpoints`; the leader's folder must be visible under the same path, or the spec
        name a `remote` one.
        """
        self._generation += 1
        return self._follow(pace, self._generation)

    def _follow(self, pace: Pace, fit: int) -> Iterator[EvaluatedCheckpoint]:
        """Yield checkpoints; a task that is to be slow rests after each, in proportion to its evaluation."""
        self._join()
        link = self._lease
        self.reporter.running()

        visible = partial(self._visible_directory, link)
        run = FollowedRun(self.assignment.spec.checkpoint, visible, self.reporter.warn)
        for weights in follow_fit(link, run, self.reporter, pace, fit):
            begun_s = self.reporter.begins()
            yield weights
            self.reporter.slow_down(begun_s)
        directory = run(True)
        self.followed_rows = saved_rows(RunFiles(Path(directory)).checkpoints, fit) if directory else {}

    def _visible_directory(self, link: HeartbeatLink) -> Path | str | None:
        return self._run_dir or link.reply.directory

    def evaluated(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """See `Strategy.evaluated`."""
        evaluation = {"global_step": global_step, **metrics}
        status = self.reporter.status
        status.evaluation = evaluation
        status.evaluations = [*status.evaluations, evaluation][-TOLD_EVALUATIONS:]
        self.reporter.progress(global_step)
        self.reporter.write()

    def close(self, error: BaseException | None = None) -> None:
        """See `Strategy.close`."""
        if self._reading is not None:
            self._reading.close()
        status = self.reporter.status
        status.phase = TaskPhase.FINISHED
        status.exit_code = failure.exit_code(error) if error else 0
        if error is not None and status.exit_code:
            status.message = failure.describe(error, self.assignment).message
        for link in self._heartbeats:
            link.close()
        self._heartbeats.clear()
        if self._metrics is not None:
            self._metrics.flush()
        if self._leading is not None:
            # A leader that failed may be started again, by the launcher or by hand: the servers wait for it.
            stopped = self._hand_run is not None and status.exit_code in STOPPED
            self._leading.close(farewell=status.exit_code == 0 or stopped)
        self.reporter.close()
        if self._hand_run is not None:
            self.reporter.announce(self._hand_run.close(error))
