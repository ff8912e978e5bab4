"""The leader's thread: it saves on schedule, restores servers that lost their memory, saves the last step."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dtrain import checkpoints
from dtrain.config import CheckpointSection, ServerSection, SyncSection
from dtrain.messages.status import TaskPhase, TaskStatus
from dtrain.parameters.placement import Plan
from dtrain.process.clock import SYSTEM, Clock
from dtrain.roles.chief.driver import Leader
from dtrain.roles.chief.keeper.machine import Action, BeginTerm, Conclude, Keeping, Request, Restore
from dtrain.roles.chief.keeper.thread import KeeperThread
from dtrain.roles.chief.machine import CheckpointSchedule
from dtrain.roles.chief.recovery import TermWatch
from dtrain.roles.chief.saver import Saver
from dtrain.roles.chief.start import Start, restored
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.runs.files import RunFiles
from dtrain.runs.reporting import Reporter
from dtrain.state.fit_state import FitState


@dataclass(frozen=True)
class KeeperParts:
    """Where a leader works: its ways to the servers, and what it keeps.

    Attributes:
        training: the rules, which the servers are told.
        server_s: how long it waits for a server that is lost.
    """

    leader: Leader
    links: Sequence[HeartbeatLink]
    reporter: Reporter
    run_dir: Path
    training: ServerSection
    section: CheckpointSection
    server_s: float
    clock: Clock = SYSTEM

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return RunFiles(self.run_dir).checkpoints


class Keeper(KeeperThread):
    """Keeps one generation on the servers and on the disk.

    Attributes:
        asked: the call of `fit` as the program asks for it.
        plan: where its variables lie.
        busy: a term is being begun: servers may be slow to answer.
        own_step: the term and step of the leader's own replica, which knows sooner than a heartbeat says.
    """

    def __init__(self, place: KeeperParts, plan: Plan, asked: FitState) -> None:
        self._place = place
        self.plan = plan
        self.asked = asked
        self._sync = sync = isinstance(place.training, SyncSection)
        clock = place.clock
        reporter = place.reporter
        schedule = CheckpointSchedule(place.section, clock.now(), -1)
        watch = TermWatch(asked.generation, place.leader.term, 0.0, host=place.leader.host)
        machine = Keeping(schedule, 0, place.server_s, watch)
        saver = Saver(
            place.leader,
            plan,
            asked,
            place.section,
            place.checkpoints,
            self._newest_step,
            reporter.warn,
            sync=sync,
            host=place.leader.host,
            tried=reporter.tried_to_save,
            clock=clock,
        )
        super().__init__(machine, saver, reporter.warn, reporter.trace, clock)
        self.busy = False
        self.own_step: Callable[[], tuple[int, int]] = lambda: (0, 0)

    @property
    def first_version(self) -> int:
        """Return the version at which the present term began, or was found."""
        return self._machine.first_version

    @property
    def saved_step(self) -> int:
        """Return the step of the newest checkpoint that this process has written."""
        return self._saver.saved_step

    # In the program's own thread

    def begin(self, start: Start, *, save: bool) -> None:
        """Begin with this, and keep it up to the last step that it has; see `KeeperThread.begin`."""
        self._machine.max_steps = start.state.max_steps
        super().begin(start, save=save)

    def attach(self) -> None:
        """Go on in the background with what the servers train already."""
        self._hear()
        lineage = self._place.links[self._place.leader.host].reply.lineage
        last = lineage.first_step + self.asked.max_steps
        self._saver.state = self.asked.but(lineage=lineage, max_steps=last)
        self._machine.max_steps = last
        # A leader that was started by hand has begun another directory.
        empty = not checkpoints.list_checkpoints(self._place.checkpoints)
        found = self._machine.attach(lineage.rolled_back_steps, nothing_saved=empty, now=self._clock.now())
        self._carry_out(found)
        self._report_lineage()
        self._go_on()

    def ordered(self, until: int | None, end: int | None) -> None:
        """Note an order that the servers have: make no version beyond `until` for now, or end at `end`."""
        self._saver.until = until
        if end is not None:
            self._saver.state = self._saver.state.but(max_steps=end)
            self._machine.max_steps = end

    def give_back(self) -> None:
        """Give every server the newest checkpoint again: what an earlier process of the leader assigned has
        reached some only.

        Raises:
            DtrainError: the keeper has given up.
        """
        self._ask(Request.GIVE_BACK)

    # In the background

    def _hear(self) -> None:
        self._machine.answers = [link.answer for link in self._place.links]
        self._machine.own_step = self.own_step()
        self._machine.notices = {
            notice for link in self._place.links for said in link.reply.statuses for notice in _notices(said)
        }

    def _newest_step(self) -> int:
        self._hear()
        return self._machine.step

    def _away(self) -> Sequence[int]:
        return [server for server, link in enumerate(self._place.links) if link.away]

    def _look(self) -> Sequence[Action]:
        for link in self._place.links:
            if link.failure is not None:
                return self._machine.failed(None, link.failure, self._clock.now())
        return super()._look()

    def _do(self, action: Action) -> Sequence[Action]:
        match action:
            case Restore():
                return self._restore()
            case BeginTerm():
                return self._begin_term(action)
            case Conclude():
                self._place.leader.conclude(self.asked.generation, self._saver.rows)
                return self._machine.concluded()
        return super()._do(action)

    def _restore(self) -> Sequence[Action]:
        begun, asked = self._saver.state, self.asked
        start = restored(self._place.checkpoints, self.plan, asked, by_server=not self._sync)
        steps = begun.max_steps - begun.lineage.first_step
        start = start.going_on(asked.dealt.cut, steps, sync=self._sync)
        if start.warning:
            self._place.reporter.warn(start.warning)
        self._start = start
        return self._machine.restored(start.state.version, start.state.lineage.rolled_back_steps)

    def _begin_term(self, action: BeginTerm) -> Sequence[Action]:
        """Begin a term on every server; no version is made before the leader's order."""
        start = self._start
        leader = self._place.leader
        assert start is not None
        if action.again:
            leader.reconnect()
        lineage = msgspec.structs.replace(start.state.lineage, rolled_back_steps=action.rolled_back_steps)
        told = start.but(lineage=lineage)
        directory = str(self._place.run_dir)
        self.busy = True
        try:
            given_up = leader.initialise(
                told, self._place.training, action.term, directory, action.until, action.heard_of
            )
        finally:
            self.busy = False
        following = self._machine.begun(given_up, self._clock.now())
        self._start = None
        self._saver.state = start.state
        self._report_lineage()
        return following

    def _report_lineage(self) -> None:
        lost = self._machine.rolled_back_steps
        state = self._saver.state
        lineage = msgspec.structs.replace(state.lineage, rolled_back_steps=lost)
        self._saver.state = state.but(lineage=lineage)
        self._place.reporter.status.rolled_back_steps = lost


def _notices(said: TaskStatus) -> Iterator[Hashable]:
    """Yield what a task has told: that it was told to stop and needs a checkpoint first, and notices."""
    process = said.task, said.attempt, said.pid
    if said.phase is TaskPhase.LEAVING:
        yield process
    if said.notices:
        yield process, said.notices
