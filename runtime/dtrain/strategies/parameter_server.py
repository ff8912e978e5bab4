"""Training with parameter servers: what one chief, worker or evaluator does of it. See `tf.distribute.ParameterServerStrategy`.

leader:   initialise the servers, start the checkpoint thread; then as a replica
replica:  heartbeat at ps:0, connect to every server, pull; push and receive until the last step
leader:   final checkpoint; farewell when the program ends
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from dtrain import checkpoints, failure
from dtrain.assignment import TaskAssignment
from dtrain.cluster import Role
from dtrain.errors import DtrainError, SpecError
from dtrain.hand_run import STOPPED, HandRun
from dtrain.messages import Verdict
from dtrain.protocol import placement
from dtrain.protocol.replica_memory import ReplicaMemory
from dtrain.protocol.staleness import StalenessHistogram
from dtrain.reporting import Reporter
from dtrain.roles.checkpoint_thread import CheckpointThread
from dtrain.roles.chief_driver import Leader, server_name
from dtrain.roles.evaluator import CheckpointWeights, Pace
from dtrain.roles.evaluator_driver import follow_checkpoints
from dtrain.roles.generation import Generation
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.roles.start import Start, continued, fresh, restored
from dtrain.roles.store import unclippable
from dtrain.roles.worker import Phase, Replica
from dtrain.roles.worker_driver import ReplicaDriver
from dtrain.run_files import RunFiles
from dtrain.strategy import Array, Problem, Session, StepResult, Strategy, scope_of
from dtrain.wire.channel import Channel
from dtrain.wire.client import GrpcChannel
from dtrain.wire.slow_link import through_link

CONNECT_S = 60.0
PATIENCE_S = 60.0


class ParameterServerStrategy:
    """This task's part in a cluster with parameter servers; see `Strategy`.

    Attributes:
        pushes_sent: in all sessions so far: the numbers of pushes go on from one `fit` to the next.
    """

    evaluates: bool

    def __init__(self, assignment: TaskAssignment) -> None:
        """Take a place in the cluster; nobody is talked to before `open`.

        Raises:
            SpecError: the cluster has no parameter server.
        """
        if not assignment.cluster.servers:
            raise SpecError("training on parameter servers needs at least one ps task in the cluster; found none")
        self.assignment = assignment
        self.training = assignment.spec.training
        task, cluster = assignment.task, assignment.cluster
        self.evaluates = task.role is Role.EVALUATOR
        self.is_leader = task == cluster.leader
        replicas = cluster.replicas(self.training.chief_trains)
        self.num_replicas = len(replicas)
        self.trains = task in replicas
        self.rank = replicas.index(task) if self.trains else -1
        self.has_evaluator = assignment.spec.cluster.count(Role.EVALUATOR) > 0
        self._hand_run = HandRun(assignment) if self.is_leader and not assignment.launched else None
        run_dir = self._hand_run.files.directory if self._hand_run else assignment.run_dir
        self.directory: Path | None = run_dir if assignment.launched else None
        self.seed = self.training.seed
        self.reporter = Reporter(replace(assignment, run_dir=run_dir))
        self._run_dir = run_dir
        self._leader: Leader | None = None
        self._heartbeats: list[HeartbeatLink] = []
        self._generation = 0
        self._owner: object = None
        self.pushes_sent = 0

    @property
    def num_replicas_in_sync(self) -> int:
        """N in synchronous training, else 1."""
        if self.training.updates != "sync":
            return 1
        return self.training.replicas_needed(self.num_replicas)

    def scope(self) -> AbstractContextManager[Strategy]:
        """Within it, models belong to this strategy."""
        return scope_of(self)

    def connect(self, server: int, timeout_s: float) -> Channel:
        """Open a connection to a server."""
        address = self.assignment.cluster.servers[server]
        channel = GrpcChannel(server_name(server), address, self.assignment.hello(), timeout_s)
        return through_link(channel, self.assignment.spec.simulate, str(self.assignment.task))

    def open(self, problem: Problem) -> Session:
        """See `Strategy.open`."""
        self._generation += 1
        self._join()
        plan = placement.plan(
            problem.variables, len(self.assignment.cluster.servers), self.training.placement, self.training.partitioner
        )
        if reason := unclippable(problem.optimizer, plan):
            raise SpecError(reason)
        batches = problem.max_steps * self.num_replicas_in_sync
        generation = Generation(self._generation, plan, self.training, problem.optimizer, problem.max_steps, batches)
        saver, entered_step = self._lead(generation, problem) if self.is_leader else (None, None)
        return ParameterServerSession(self, generation, problem.max_steps, self._heartbeats[0], saver, entered_step)

    def _join(self) -> None:
        """Take a lease at ps:0; the leader at every server (each must know when it is gone)."""
        if self._heartbeats:
            return
        servers = len(self.assignment.cluster.servers) if self.is_leader else 1
        for server in range(servers):
            self.reporter.waiting(server_name(server))
            connect = partial(self.connect, server)
            link = HeartbeatLink(connect, self.reporter, connect_s=CONNECT_S, patience_s=PATIENCE_S)
            self._heartbeats.append(link)
        if self._hand_run is not None:
            self._heartbeats[0].on_reply = self._hand_run.update
        self.reporter.waiting(None)

    def _lead(self, generation: Generation, problem: Problem) -> tuple[CheckpointThread, int]:
        """Make the variables exist; who saves them, and the version that they are at."""
        if self._leader is None:
            self._leader = Leader(len(self.assignment.cluster.servers), self.connect, CONNECT_S)
        start = self._start(generation, problem)
        self._owner, generation = problem.owner, replace(generation, origin=start.origin)
        if start.warning:
            self.reporter.warn(start.warning)
        if generation.number > 1:
            generation = replace(generation, max_steps=start.version + problem.max_steps)
        version = self._leader.initialise(generation, start, str(self._run_dir))
        link = self._heartbeats[0]
        saver = CheckpointThread(
            self._leader,
            generation,
            self.assignment.spec.checkpoint,
            self._checkpoints_directory(),
            warn=self.reporter.warn,
            step=lambda: max(link.reply.version, version),
        )
        saver.save_first(start)
        return saver, version

    def _start(self, generation: Generation, problem: Problem) -> Start:
        directory, plan, optimizer = self._checkpoints_directory(), generation.plan, problem.optimizer
        if generation.number > 1:
            return continued(directory, plan, optimizer, problem.initial_values(), same_owner=problem.owner is self._owner)
        if checkpoints.list_checkpoints(directory):
            return restored(directory, plan, optimizer)
        return fresh(plan, optimizer, problem.initial_values())

    def _checkpoints_directory(self) -> Path:
        if self._run_dir is None:
            raise AssertionError("a leader has a run directory")
        return RunFiles(self._run_dir).checkpoints

    def checkpoints(self, pace: Pace) -> Iterator[CheckpointWeights]:
        """See `Strategy.checkpoints`; the leader's folder of checkpoints must be visible under the same path."""
        self._join()
        link = self._heartbeats[0]
        self.reporter.running()
        found = follow_checkpoints(
            lambda: self._run_dir or link.reply.directory, lambda: link.failure is not None or link.reply.ended, self.reporter, pace
        )
        return self._at_own_speed(found)

    def _at_own_speed(self, found: Iterator[CheckpointWeights]) -> Iterator[CheckpointWeights]:
        """The same; a task that is to be slow rests after each, in proportion to what its evaluation took."""
        for weights in found:
            mark_s = time.thread_time()
            yield weights
            self.reporter.slow_down(time.thread_time() - mark_s)

    def evaluated(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """See `Strategy.evaluated`."""
        self.reporter.status.evaluation = {"global_step": global_step, **metrics}
        self.reporter.progress(global_step)
        self.reporter.write()

    def close(self, error: BaseException | None = None) -> None:
        """See `Strategy.close`."""
        for link in self._heartbeats:
            link.close()
        self._heartbeats.clear()
        if self._leader is not None:
            code = failure.exit_code(error) if error else 0
            # A leader that failed may be started again, by the launcher or by hand: the servers wait for it.
            if code == 0 or (self._hand_run is not None and code in STOPPED):
                self._leader.farewell()
            self._leader.close()
            self._leader = None
        self.reporter.close()
        if self._hand_run is not None:
            self._hand_run.close(error)


class ParameterServerSession:
    """One generation of variables, seen from one replica; see `Session`."""

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        generation: Generation,
        max_steps: int,
        link: HeartbeatLink,
        saver: CheckpointThread | None,
        entered_step: int | None,
    ) -> None:
        training = strategy.training
        self._strategy = strategy
        self._reporter = strategy.reporter
        self._training = training
        self._link = link
        self._saver = saver
        self._max_steps = max_steps
        weights, gradients = ReplicaMemory(generation.plan), ReplicaMemory(generation.plan)
        arrays, variables = gradients.variables, generation.plan.variables
        self.weights: dict[str, Array] = weights.variables
        self.gradients: dict[str, Array] = {spec.name: arrays[spec.name] for spec in variables if spec.trainable}
        self.updates: dict[str, Array] = {spec.name: arrays[spec.name] for spec in variables if not spec.trainable}
        self.rank = strategy.rank
        self.replicas = strategy.num_replicas
        self.batches_per_step = strategy.num_replicas_in_sync
        self._staleness = StalenessHistogram()
        machine = Replica(
            generation.plan.servers,
            generation.number,
            link.incarnation,
            generation.plan.hash,
            training.updates == "sync",
            strategy.trains,
            training.nan_policy,
            sequence=strategy.pushes_sent,
        )
        self._driver = ReplicaDriver(
            machine, weights, gradients, strategy.connect, strategy.reporter, connect_s=CONNECT_S, patience_s=PATIENCE_S
        )
        link.on_failure = self._driver.abort
        self._reporter.status.stale_gradients = 0
        if not strategy.trains:
            self._reporter.running()  # what follows is the whole training
        self._driver.start()
        for name, update in self.updates.items():
            update[...] = self.weights[name]
        self._reporter.status.max_steps = machine.max_steps
        self._reporter.progress(self.global_step)
        self._reporter.running()
        self.entered_step = self.global_step if entered_step is None else entered_step
        self._cpu_mark_s = time.thread_time()

    @property
    def global_step(self) -> int:
        """As ps:0 counts."""
        return self._driver.machine.global_step

    @property
    def first_step(self) -> int:
        """Where the `fit` before this one ended."""
        return self._driver.machine.max_steps - self._max_steps

    @property
    def batch(self) -> int:
        """See `Session.batch`."""
        return self._driver.machine.batch

    @property
    def finished(self) -> bool:
        """Whether the last step is done."""
        return self._driver.machine.phase is Phase.FINISHED

    def step(self, loss: float, examples: int) -> StepResult:
        """See `Session.step`.

        Raises:
            PeerLostError: a server is gone for good.
            TrainingError: the rules of the spec end training.
        """
        self._reporter.slow_down(time.thread_time() - self._cpu_mark_s)
        try:
            outcome = self._driver.push()
        except DtrainError as error:
            raise self._link.failure or error from None
        self._reporter.progress(self.global_step, loss, examples)
        status = self._reporter.status
        status.bytes_sent, status.bytes_received = self._driver.bytes_moved
        status.stale_gradients = (status.stale_gradients or 0) + outcome.stale
        if outcome.verdict is Verdict.ACCEPTED and self._training.updates == "async":
            self._staleness.add(outcome.staleness)
            status.staleness_mean, status.staleness_counts = self._staleness.mean, self._staleness.counts
        if outcome.verdict is Verdict.REFUSED and self._training.nan_policy == "refuse":
            self._reporter.warn(f"step {self.global_step}: {outcome.reason}; it was not applied")
        self._cpu_mark_s = time.thread_time()
        return StepResult(outcome.verdict, self.global_step)

    def close(self, error: BaseException | None = None) -> None:
        """See `Session.close`; the leader writes the final checkpoint, also when it was ordered to stop."""
        self._driver.close()
        self._strategy.pushes_sent = self._driver.machine.sequence
        self._link.on_failure = lambda reason: None
        if self._saver is None:
            return
        if error is None or isinstance(error, SystemExit | KeyboardInterrupt):
            self._saver.finish()
        else:
            self._saver.stop()
