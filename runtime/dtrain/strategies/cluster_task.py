"""One task of a cluster, whatever the strategy, and the control plane where it leads without servers.

It has its place, its account of itself, the leader's account of all tasks, the evaluator's way through
checkpoints, and the end.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dtrain.checkpoints import EvaluatedCheckpoint, Pace
from dtrain.cluster import AddressBook, Role, TaskId
from dtrain.config import ClusterTraining, MultiWorkerMirroredSection
from dtrain.config.choices import Transport, Validation
from dtrain.control.interface import Action, Steps
from dtrain.control.machine import ControlPlane
from dtrain.errors import LeftBehindError, RunError, RunInUseError
from dtrain.messages import HeartbeatReply, Lineage, Refusal
from dtrain.messages.membership import TaskPhase
from dtrain.process.assignment import TaskAssignment
from dtrain.process.clock import SYSTEM
from dtrain.protocol.membership import LEASE_S, MemberState
from dtrain.roles.chief.start import pipelines_of, replicas_in_sync, saved_rows
from dtrain.roles.control_host import ControlHandler
from dtrain.roles.evaluator.driver import FollowedRun, follow_fit
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.runs import failure
from dtrain.runs.files import RunFiles, RunRecord, read_record
from dtrain.runs.joined import JoinedFromElsewhere
from dtrain.runs.journal import MetricsLog
from dtrain.runs.reporting import Reporter
from dtrain.runs.standalone import HandRun
from dtrain.runs.states import ENDED, TaskState
from dtrain.runs.task_states import STOPPED
from dtrain.strategies.context import TaskContext
from dtrain.strategies.in_process.fit_holder import FitHolder
from dtrain.strategies.interface import Strategy, Training
from dtrain.wire.channel import Handler
from dtrain.wire.connecting import Connector
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.service import HostService, TaskService

TOLD_EVALUATIONS = 20
"""How many of its last evaluations an evaluator tells of with every heartbeat, so that the leader misses
none.
"""
LEAVING_S = 5.0
"""The longest wait for a leader that has died to let go of the run's directory."""
RETRY_S = 0.05


class ClusterTask:
    """One process's task.

    Attributes:
        run_dir: None in a task that was started by hand and does not lead.
        was_left: whether the others went on without the process before this one.
        evaluations: leader: the evaluator's metrics so far, by global step.
        begun_with: N of the synchronous run that saved in the run directory; 0 if there is none.
    """

    def __init__(self, assignment: TaskAssignment, training: ClusterTraining) -> None:
        """Set up the task; a leader that no launcher has started makes the run's directory.

        Where another task may lead, the directory may be in use: that task keeps it, if it leads. Raises a
        `SpecError` for a certificate, a `RunError` for the directory that cannot be used.
        """
        self.assignment = assignment
        task, cluster = assignment.task, assignment.cluster
        rank = cluster.rank(task, training.chief_trains)
        is_leader = task == cluster.leader
        has_evaluator = assignment.spec.cluster.count(Role.EVALUATOR) > 0
        may_lead = isinstance(training, MultiWorkerMirroredSection) and rank is not None
        self._hand_run: HandRun | None = None
        self.was_left = self.left_behind is not None and self.left_behind.exists()
        if is_leader and not assignment.launched:
            with contextlib.suppress(*(RunInUseError,) if may_lead else ()):
                self._hand_run = HandRun(assignment, goes_on=self.was_left)
        in_use = is_leader and not assignment.launched and self._hand_run is None
        given = None if in_use else assignment.run_dir
        self.run_dir = run_dir = self._hand_run.files.directory if self._hand_run else given
        self.reporter = Reporter(replace(assignment, run_dir=run_dir))
        saved = run_dir or assignment.run_dir
        folder = RunFiles(saved).checkpoints if saved is not None else None
        self.begun_with = replicas_in_sync(folder) if folder is not None else 0
        self.context = TaskContext(
            task=task,
            rank=-1 if rank is None else rank,
            num_replicas=len(cluster.replicas(training.chief_trains)),
            pipelines=pipelines_of(assignment, folder),
            is_leader=is_leader,
            may_lead=may_lead,
            evaluates=task.role is Role.EVALUATOR,
            has_evaluator=has_evaluator,
            validates=training.validation == Validation.LEADER or not has_evaluator,
            directory=run_dir if assignment.launched else None,
            run_id=assignment.run_id,
            seed=training.seed,
            activity=self.reporter.activity,
            trace=self.reporter.trace,
        )
        self.evaluations: dict[int, Mapping[str, float]] = {}
        self.credentials = Credentials.of(assignment, self.reporter.warn)
        self.reporter.certificate = self.credentials.certificate_life
        self.reporter.introduce()
        if self._hand_run is not None and not may_lead:
            self.reporter.announce(f"leads the run; its files are in {run_dir}")
        self._metrics: MetricsLog | None = None
        self._joined: JoinedFromElsewhere | None = None
        if is_leader:
            self._keep_accounts()

    def _keep_accounts(self) -> None:
        """Leader: write down what the tasks of the run report."""
        if self.run_dir is None:
            return
        self._metrics = MetricsLog(RunFiles(self.run_dir).metrics, time.monotonic)
        if self.assignment.launched:
            self._joined = JoinedFromElsewhere(RunFiles(self.run_dir), self.assignment.cluster)

    def lead(self, directory: str = "") -> None:
        """Be the leader from now on, where another task led before and has died.

        `directory` is that of a run by hand. Where it is not on this machine, or the former leader lives and
        keeps it, another one is made. Raises a `RunError` if that fails, or the run has succeeded meanwhile.
        """
        by_hand = not self.assignment.launched
        if by_hand and self._hand_run is not None:
            self.reporter.announce(f"leads the run; its files are in {self.run_dir}")
        elif by_hand or not self.context.is_leader:
            self.context = replace(self.context, is_leader=True)
            if by_hand:
                kept = Path(directory) if directory else self.assignment.run_dir
                self._take_over(kept if kept is not None and kept.is_dir() else None, former=bool(directory))
            self._keep_accounts()
        self.reporter.leads()

    @property
    def left_behind(self) -> Path | None:
        """The file that marks that the others went on without this task; only in a run by hand."""
        own = self.assignment
        return None if own.launched or own.run_dir is None else own.run_dir / "left_behind.txt"

    def follow_another(self) -> None:
        """Be no leader, where another task leads already and keeps the run's directory."""
        self.context = replace(self.context, is_leader=False)
        self._metrics = self._joined = None
        if self._hand_run is not None:
            self.reporter.keep_in(None)
            self._hand_run.give_up()
            self._hand_run = self.run_dir = None

    def _take_over(self, directory: Path | None, *, former: bool) -> None:
        """Lock the directory of a run by hand; its former process may still be ending, or live."""
        until_s = time.monotonic() + LEAVING_S
        while self._hand_run is None:
            try:
                self._hand_run = HandRun(replace(self.assignment, run_dir=directory), goes_on=former)
            except RunInUseError:
                if time.monotonic() >= until_s:
                    if not former:
                        raise
                    self.reporter.announce(f"the leader before, which is silent, keeps {directory}")
                    directory, former = None, False
                time.sleep(RETRY_S)
        self.run_dir = self._hand_run.files.directory
        self.reporter.keep_in(self.run_dir)
        self.reporter.announce(f"leads the run from now on; its files are in {self.run_dir}")

    def connector(self, transport: Transport, book: AddressBook) -> Connector:
        return Connector(self.assignment, self.credentials, self.reporter.unreached, transport, book)

    def write_down(self, reply: HeartbeatReply) -> None:
        """Leader: log the status of every task in the control host's reply, and keep the evaluations."""
        if self._metrics is not None:
            self._metrics.update(reply)
        for evaluation in (each for status in reply.statuses for each in status.evaluations):
            numbers = dict(evaluation)
            self.evaluations[int(numbers.pop("global_step"))] = numbers
        if self._joined is not None:
            self._joined.update(reply)
        for text in self._hand_run.update(reply) if self._hand_run is not None else ():
            self.reporter.announce(text)

    def tasks_in(self, *states: TaskState) -> set[str]:
        """Return the tasks that are in one of these states in the run's record, where a launcher keeps one.

        A record of an earlier launch does not count: it lacks this attempt of this task.
        """
        own, run_dir = self.assignment, self.run_dir
        if not own.launched or run_dir is None:
            return set()
        try:
            record = read_record(RunFiles(run_dir).run, RunRecord)
        except (RunError, OSError):
            return set()
        found = {each.task: each for each in record.tasks} if record is not None else {}
        mine = found.get(str(own.task))
        if mine is None or mine.attempt != own.attempt:
            return set()
        return {task for task, each in found.items() if each.state in states}

    # The evaluator

    def follow(
        self, link: HeartbeatLink, pace: Pace, fit: int, follower: Strategy
    ) -> Iterator[EvaluatedCheckpoint]:
        """Yield checkpoints of a call of `fit` to `follower`, which gets its rows at the end."""
        self.reporter.running()
        run = FollowedRun(
            self.assignment.spec.checkpoint,
            lambda: self.run_dir or link.reply.directory,
            self.reporter.warn,
        )
        for weights in follow_fit(link, run, self.reporter, pace, fit):
            begun_s = self.reporter.begins()
            yield weights
            self.reporter.slow_down(begun_s)
        directory = run(True)
        follower.followed_rows = saved_rows(RunFiles(Path(directory)).checkpoints, fit) if directory else {}

    def evaluated(self, global_step: int, metrics: Mapping[str, float]) -> None:
        evaluation = {"global_step": global_step, **metrics}
        status = self.reporter.status
        status.evaluation = evaluation
        status.evaluations = [*status.evaluations, evaluation][-TOLD_EVALUATIONS:]
        self.reporter.progress(global_step)
        self.reporter.write()

    # The end

    def close(
        self,
        error: BaseException | None,
        links: Sequence[HeartbeatLink],
        take_leave: Callable[[bool], None],
    ) -> None:
        """End: send a farewell on `links`, write the last account, and name the end of a run by hand.

        `take_leave` ends what the leader leads; its argument is whether it will not be started again.
        """
        status = self.reporter.status
        status.phase = TaskPhase.FINISHED
        status.exit_code = failure.exit_code(error) if error else 0
        if error is not None and status.exit_code:
            status.message = failure.describe(error, self.assignment).message
        for link in links:
            link.close(patient=not link.reply.ended)
        if self._metrics is not None:
            self._metrics.flush()
        if isinstance(error, LeftBehindError) and self.left_behind is not None:
            with contextlib.suppress(OSError):
                self.left_behind.write_text(f"{error}\n")
        # A leader that failed may be started again, by the launcher or by hand: the others wait for it.
        stopped = self._hand_run is not None and status.exit_code in STOPPED
        # From the farewell on servers leave, so a launcher must know that this task need not start again.
        self.reporter.write()
        take_leave(status.exit_code == 0 or stopped)
        self.reporter.close()
        if self._hand_run is not None:
            self.reporter.announce(self._hand_run.close(error, status.step))


LEAVE_S = 1.5
"""The longest time that the leader serves after its farewell, for tasks that have not heard it."""
LOOK_S = 0.02


@dataclass
class TrainingStanding:
    """How a call of `fit` stands, for the control plane; `max_steps` may be lowered by the leader."""

    generation: int
    lineage: Lineage
    directory: str
    step: Callable[[], int]
    max_steps: int
    term: int = 1
    held_back: bool = False
    failed: Refusal | None = None
    steps: Steps | None = field(default=None, init=False)

    @property
    def version(self) -> int:
        return self.step()

    @property
    def finished(self) -> bool:
        return self.step() >= self.max_steps


class ControlHosting:
    """The control plane of one task that trains, used where it leads, and the service for the others."""

    def __init__(self, task: ClusterTask, section: ClusterTraining) -> None:
        assignment = task.assignment
        count = assignment.spec.cluster.count(Role.EVALUATOR)
        plane = ControlPlane(
            assignment.task, assignment.cluster, section, SYSTEM.now(), count, assignment.spec.wait
        )
        plane.roster.watched = assignment.watched
        self.control = ControlHandler(plane, task.credentials.hello, decide=_nothing)
        self.control.leads = False
        self.on_this_host = assignment.on_one_host
        self._task = task
        self._evaluators = [str(TaskId(Role.EVALUATOR, index)) for index in range(count)]
        self._service: HostService | TaskService | None = None

    def serve(self, handler: Handler) -> None:
        """Serve at the task's address, or raise a `SpecError`; with all on this host, at its socket first."""
        assignment, credentials = self._task.assignment, self._task.credentials
        self._service = (
            HostService(handler, assignment, credentials)
            if self.on_this_host
            else TaskService(handler, assignment, credentials, Transport.AUTO)
        )

    def lead(self) -> None:
        """Let time pass for the control plane."""
        plane = self.control.control
        plane.take_over()
        for task in self._evaluators:  # they followed the leader before
            plane.roster.membership.expect(task, SYSTEM.now() + LEASE_S)
        self.control.leads = True
        self.control.start()

    def begin(self, state: FitHolder, directory: str, section: ClusterTraining) -> None:
        """Publish to all tasks how a training stands from now on, whose checkpoints are in `directory`."""
        standing = TrainingStanding(
            state.begun.generation,
            state.begun.lineage,
            directory,
            lambda: state.global_step,
            state.store.max_steps or 0,
        )
        self.control.ask(lambda control, now: control.begin(standing, section, now))

    def conclude(self, generation: int, training: Training) -> None:
        """Publish to all tasks that the last step of a call of `fit` is saved."""
        rows = dict(training.recorded)
        self.control.ask(lambda control, now: control.conclude(generation, rows))

    def stop(self, *, farewell: bool) -> None:
        """Stop serving; with `farewell` tell the others first that no task will train any more."""
        if self.control.leads and farewell:
            self.control.ask(lambda control, now: control.say_farewell())
            self._wait_until_it_is_heard()
        self.control.ended.set()
        self.ends()
        if self._service is not None:
            self._service.stop()

    def ends(self) -> None:
        """Give up open requests of other tasks, as this one ends."""

    def _wait_until_it_is_heard(self) -> None:
        """Wait for the next heartbeat of every live task and evaluator, which the farewell answers."""
        membership = self.control.control.roster.membership
        said_s = SYSTEM.now()
        while SYSTEM.now() < said_s + LEAVE_S and not self.control.ended.wait(LOOK_S):
            live = membership.tasks(MemberState.LIVE)
            others = [membership.members[task] for task in live if task != str(self._task.assignment.task)]
            heard = all(each.deadline_s > said_s + membership.lease_s for each in others)
            if heard and not self.may_come():
                return

    def may_come(self) -> list[str]:
        """Return the evaluators that have sent nothing yet, unless a launcher here says that they ended."""
        membership = self.control.control.roster.membership
        expected = [task for task in self._evaluators if membership.state(task) is MemberState.EXPECTED]
        ended = self._task.tasks_in(*ENDED) if expected else set()
        return [task for task in expected if task not in ended]


def _nothing(decision: object) -> list[Action]:
    raise AssertionError(f"replicas decide themselves, not by {decision}")
