"""The beginning of a call of `fit` on parameter servers: what the leader puts there, and each task's parts.

The parts of one call are put together from the lowest to the highest.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from dtrain.checkpoints import OptimizerState
from dtrain.config import AsyncSection, CheckpointSection, ServerSection, SynchronousSection, SyncSection
from dtrain.config.choices import Transport
from dtrain.messages import Row
from dtrain.parameters.compression import CompressedPacking, Compression
from dtrain.parameters.placement import Plan
from dtrain.parameters.replica_memory import Packing, ReplicaMemory
from dtrain.process.clock import SYSTEM, Clock
from dtrain.roles.chief.driver import Keeper, KeeperParts, LeaderDriver
from dtrain.roles.chief.machine import Beginning, beginning
from dtrain.roles.chief.start import fetch_newest, restored, saved_generation
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.roles.worker.driver import ReplicaDriver
from dtrain.roles.worker.machine import ReplicaMachine
from dtrain.runs.files import RunFiles
from dtrain.runs.reporting import Reporter
from dtrain.state.batch_cut import BatchCut
from dtrain.state.feed import UNKNOWN
from dtrain.strategies.beginnings import Beginnings, told_of
from dtrain.strategies.interface import Problem
from dtrain.strategies.parameter_server.training import LeaderTraining, ServerTraining, TrainingParts
from dtrain.wire.connecting import ConnectTask, arrays_to_send


class LeadingTask:
    """The leader of one process, for all of its calls of `fit`.

    `keeper` is of the newest one; `recorded` has the numbers of epochs by call, for the farewell.
    """

    def __init__(
        self,
        links: Sequence[HeartbeatLink],
        host: int,
        connect: ConnectTask,
        reporter: Reporter,
        run_dir: Path,
        training: ServerSection,
        section: CheckpointSection,
        patience_s: float,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make no connection yet; `links` are the leases, at each server; `host` has the control plane."""
        self._links = links
        self._host = host
        self._connect = connect
        self._reporter = reporter
        self._run_dir = run_dir
        self._training = training
        self._section = section
        self._patience_s = patience_s
        self._clock = clock
        self._leader: LeaderDriver | None = None
        self._calls = Beginnings(section, RunFiles(run_dir).checkpoints, reporter)
        self.keeper: Keeper | None = None
        self.recorded: dict[int, Mapping[int, Row]] = {}

    @property
    def checkpoints(self) -> Path:
        return RunFiles(self._run_dir).checkpoints

    def begin(self, number: int, plan: Plan, problem: Problem, cut: BatchCut, connect_s: float) -> bool:
        """Give the servers the variables, and save them from now on; a server may take `connect_s` to come.

        Returns False if the call had ended before this process was started: there is nothing to do.

        Raises:
            CheckpointError: the newest checkpoint does not fit, or the first one cannot be written.
            PeerError: a server is gone for good, or refuses its variables.
        """
        fetch_newest(self._section, self.checkpoints, self._reporter.warn)
        replies = [link.reply for link in self._links]
        found = beginning(number, replies, saved_generation(self.checkpoints))
        if found is Beginning.PASS_OVER:
            self._calls.follow(problem)
            return False
        leader = self.connect(connect_s)
        sync = isinstance(self._training, SynchronousSection)
        asked = problem.asked(number, plan, cut, sync=sync)
        self._calls.number = number
        start = None
        if found is not Beginning.ATTACH:
            resumes = found is Beginning.RESTORE
            start = self._calls.start(asked, plan, problem, resumes=resumes, by_server=not sync)
            start = start.going_on(cut, problem.max_steps, sync=sync)
        self._calls.follow(problem)
        reporter = self._reporter
        place = KeeperParts(
            leader,
            self._links,
            reporter,
            self._run_dir,
            self._training,
            self._section,
            self._patience_s,
            self._clock,
        )
        keeper = Keeper(place, plan, asked)
        if start is None:
            keeper.attach()
        else:
            for text in told_of(start, resumes=found is Beginning.RESTORE):
                reporter.warn(text)
            keeper.begin(start, save=found is Beginning.START)
        self.keeper = keeper
        return True

    def connect(self, connect_s: float) -> LeaderDriver:
        """Return connections to all servers, made now if there are none."""
        if self._leader is None:
            self._leader = LeaderDriver(len(self._links), self._connect, connect_s, self._clock, self._host)
        return self._leader

    @property
    def busy(self) -> bool:
        """Whether a term is being begun: servers may be slow to answer."""
        return self.keeper is not None and self.keeper.busy

    def break_with(self, server: int, reason: str) -> None:
        """From another thread: ask again, on a new connection, what a silent server was asked."""
        if self._leader is not None and not self.busy:
            self._leader.break_with(server, reason)

    def optimizer_state(self, owner: object) -> OptimizerState | None:
        """Return the state as of a checkpoint that is written now, if training is under way."""
        if self.keeper is None or not self._calls.is_of(owner):
            return None
        self.keeper.save_now()
        asked = self.keeper.asked.but(feed=UNKNOWN)
        return restored(self.checkpoints, self.keeper.plan, asked).optimizer_state

    def close(self, *, farewell: bool) -> None:
        """Close the connections; with `farewell` tell the servers first that no task will train any more."""
        if self._leader is not None:
            if farewell:
                self._leader.farewell(self.recorded)
            self._leader.close()
            self._leader = None


def open_training(parts: TrainingParts) -> ServerTraining:
    """Connect to the servers, get the first values, and, as the leader, learn what is in force.

    Raises:
        PeerError: a server is gone for good, or will not have this task.
    """
    driver, gradients = _driver(parts)
    training = ServerTraining(parts, driver) if parts.keeper is None else LeaderTraining(parts, driver)
    training.begin(gradients)
    return training


def _driver(parts: TrainingParts) -> tuple[ReplicaDriver, ReplicaMemory]:
    """Return what exchanges gradients for values, connected, and the gradients."""
    section = parts.section
    plan = parts.plan
    trains = parts.context.rank >= 0
    room = partial(arrays_to_send, section.transport if trains else Transport.GRPC)
    compression = Compression.of(section.compression)
    weights = ReplicaMemory(plan)
    gradients = ReplicaMemory(plan, None if compression else room)
    machine = ReplicaMachine(
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
