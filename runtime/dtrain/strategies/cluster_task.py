"""One task of a cluster, whatever the strategy, and the control plane where it leads without servers.

It has its place, its account of itself, the leader's account of all tasks, the evaluator's way through
checkpoints, and the end.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from dtrain.checkpoints import EvaluatedCheckpoint, Pace
from dtrain.cluster import AddressBook, Role
from dtrain.config import ClusterTraining, MultiWorkerMirroredSection, local_steps_of
from dtrain.config.choices import Transport, Validation
from dtrain.errors import LeftBehindError, RunError, RunInUseError
from dtrain.messages import HeartbeatReply
from dtrain.messages.membership import TaskPhase
from dtrain.process.assignment import TaskAssignment
from dtrain.roles.chief.start import pipelines_of, replicas_in_sync, saved_rows
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.runs import failure
from dtrain.runs.files import RunFiles, RunRecord, read_record
from dtrain.runs.joined import JoinedFromElsewhere
from dtrain.runs.journal import MetricsLog
from dtrain.runs.reporting import Reporter
from dtrain.runs.standalone import HandRun
from dtrain.runs.states import TaskState
from dtrain.runs.task_states import STOPPED
from dtrain.strategies.context import TaskContext
from dtrain.strategies.interface import Ended
from dtrain.wire.connecting import Connector
from dtrain.wire.security.credentials import Credentials

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
        rank = cluster.rank(task, training.chief_has_rank)
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
            weighs_examples=training.weighs_examples,
            validates=training.validation == Validation.LEADER or not has_evaluator,
            directory=run_dir if assignment.launched else None,
            run_id=assignment.run_id,
            seed=training.seed,
            local_steps=local_steps_of(training),
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
        self, join: Callable[[], HeartbeatLink], pace: Pace, fit: int, ended: Ended
    ) -> Iterator[EvaluatedCheckpoint]:
        """Yield checkpoints of a call of `fit`, and give its rows to `ended` at the end, after `join`."""
        from dtrain.roles.evaluator.driver import FollowedRun, follow_fit

        link = join()
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
        ended(saved_rows(RunFiles(Path(directory)).checkpoints, fit) if directory else {})

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
