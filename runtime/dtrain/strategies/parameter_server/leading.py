"""The leader's part of every call of `fit` of one process: how it begins on the servers, and what is kept of
it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dtrain.checkpoints import OptimizerState
from dtrain.config import CheckpointSection, ServerSection, SynchronousSection
from dtrain.messages import Row
from dtrain.parameters.placement import Plan
from dtrain.process.clock import SYSTEM, Clock
from dtrain.roles.chief.driver import Leader
from dtrain.roles.chief.keeper.driver import Keeper, KeeperParts
from dtrain.roles.chief.recovery import Beginning, beginning
from dtrain.roles.chief.start import fetch_newest, restored, saved_generation
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.runs.files import RunFiles
from dtrain.runs.reporting import Reporter
from dtrain.state.batch_cut import BatchCut
from dtrain.state.feed import UNKNOWN
from dtrain.strategies.beginnings import Beginnings, told_of
from dtrain.strategies.problem import Problem
from dtrain.wire.connector import ConnectTask


class Leading:
    """The leader of one process, for all of its calls of `fit`.

    Attributes:
        keeper: of the newest call of `fit`; None before the first that trains.
        recorded: by call of `fit`, the numbers of its epochs, for the farewell.
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
        """Make no connection yet.

        Args:
            links: the lease at each server.
            host: the server that hosts the control plane.
            connect: opens a connection to a task.
            reporter: told of everything.
            run_dir: the run directory.
            training: the rules.
            section: when to save, and where.
            patience_s: how long a server may be away.
            clock: the time, and how to wait.
        """
        self._links = links
        self._host = host
        self._connect = connect
        self._reporter = reporter
        self._run_dir = run_dir
        self._training = training
        self._section = section
        self._patience_s = patience_s
        self._clock = clock
        self._leader: Leader | None = None
        self._calls = Beginnings(section, RunFiles(run_dir).checkpoints, reporter)
        self.keeper: Keeper | None = None
        self.recorded: dict[int, Mapping[int, Row]] = {}

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return RunFiles(self._run_dir).checkpoints

    def begin(self, number: int, plan: Plan, problem: Problem, cut: BatchCut, connect_s: float) -> bool:
        """See to it that the servers have the variables, and keep them from now on.

        Args:
            number: of the call of `fit`.
            plan: where variables lie.
            problem: what is trained.
            cut: how every batch is cut into parts.
            connect_s: how long a server may take to be there.

        Returns:
            False if the call had ended before this process was started: there is nothing to do.

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
        if self._leader is None:
            self._leader = Leader(len(self._links), self._connect, connect_s, self._clock, self._host)
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
            self._leader,
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

    @property
    def busy(self) -> bool:
        """Whether a term is being begun: servers may be slow to answer."""
        return self.keeper is not None and self.keeper.busy

    def break_with(self, server: int, reason: str) -> None:
        """From another thread: ask again, on a new connection, what a silent server was asked."""
        if self._leader is not None and not self.busy:
            self._leader.break_with(server, reason)

    def optimizer_state(self, owner: object) -> OptimizerState | None:
        """See `Strategy.optimizer_state`: as of a checkpoint that is written now, if training is under
        way.
        """
        if self.keeper is None or not self._calls.is_of(owner):
            return None
        self.keeper.save_now()
        asked = self.keeper.asked.but(feed=UNKNOWN)
        return restored(self.checkpoints, self.keeper.plan, asked).optimizer_state

    def close(self, *, farewell: bool) -> None:
        """Close the connections to the servers; with `farewell` tell them first that no task will train any
        more.
        """
        if self._leader is not None:
            if farewell:
                self._leader.farewell(self.recorded)
            self._leader.close()
            self._leader = None
