"""The place of one chief, worker or evaluator in a cluster without servers, for all of its calls of `fit`."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from dtrain.checkpoints import EvaluatedCheckpoint, OptimizerState, Pace
from dtrain.cluster import AddressBook, Role
from dtrain.config import MultiWorkerMirroredSection
from dtrain.config.choices import TooFew, Transport
from dtrain.data.distribution.once import share_over_hosts
from dtrain.errors import DtrainError, RunError, SpecError
from dtrain.messages import Entered
from dtrain.parameters import placement
from dtrain.parameters.placement import Plan
from dtrain.process.assignment import TaskAssignment
from dtrain.roles.chief.keeper_thread import KeeperThread
from dtrain.roles.chief.start import Start
from dtrain.roles.collective.rules import PATIENCE_S, Waits
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.runs.files import RunFiles
from dtrain.state.batch_cut import BatchCut
from dtrain.strategies.beginnings import Beginnings, told_of
from dtrain.strategies.cluster_task import ClusterTask
from dtrain.strategies.interface import Ended, Problem, Strategy, Training, discard_rows
from dtrain.strategies.learned import LeaderLearns, spreads_over_hosts
from dtrain.strategies.multi_worker_mirrored.custom_loops import make_loops, met
from dtrain.strategies.multi_worker_mirrored.hosting import Hosting
from dtrain.strategies.multi_worker_mirrored.member_training import make_member_training
from dtrain.strategies.multi_worker_mirrored.members import AllReplicas, MemberEntry, begin_as_first, enter
from dtrain.strategies.multi_worker_mirrored.membership import (
    Gathering,
    HasEndedError,
    HasToLeadError,
    LeaderElection,
    OtherReplicas,
    PeersState,
)
from dtrain.strategies.multi_worker_mirrored.orders import OrderBook
from dtrain.strategies.multi_worker_mirrored.rendezvous import Peers
from dtrain.strategies.multi_worker_mirrored.training import ReplicaTraining
from dtrain.strategies.passed_over import PassedOverTraining
from dtrain.strategies.replicas.calls import DEADLINE_S, CollectiveCalls
from dtrain.strategies.replicas.distributed_dataset import InputWorkers
from dtrain.strategies.replicas.loops import Loops
from dtrain.wire.connecting import LeaderFinder
from dtrain.wire.peer import Peer


class MultiWorkerMirrored(Strategy):
    """This task's part in a cluster without parameter servers."""

    def __init__(self, assignment: TaskAssignment, training: MultiWorkerMirroredSection) -> None:
        self.assignment = assignment
        self.training = training
        self._task = task = ClusterTask(assignment, training)
        self.context = task.context
        self.evaluations = task.evaluations
        self._reporter = task.reporter
        self._patience_s = assignment.spec.wait.server_s
        self._beginnings = Beginnings(assignment.spec.checkpoint, self._folder, task.reporter)
        self._directory = ""
        self._replica_patience_s = PATIENCE_S
        self._connector = task.connector(Transport.AUTO, AddressBook(assignment.cluster))
        self._finder = LeaderFinder(assignment.cluster.replicas(), self._connector.connect_heart)
        self._hosting: Hosting | None = None
        self._ended = 0  # calls of `fit`, where this process takes the place of another one of its task
        self._link: HeartbeatLink | None = None
        self._all_members = range(len(assignment.cluster.replicas()))
        self._members: set[int] = set(self._all_members)
        folder = self._folder if assignment.attempt > 0 else None
        self._others = OtherReplicas(task, self._connector)
        self._election = LeaderElection(
            self._others.connect,
            self._finder,
            task.context.rank,
            self._all_members,
            folder,
            self._others.ask,
            self._others.lost,
        )
        self._book: OrderBook | None = None
        if spreads_over_hosts(assignment):
            learning = LeaderLearns(
                self._reporter,
                self._join,
                lambda timeout_s: self._connector.connect_heart(self._finder.task, timeout_s),
                leads=lambda: self.is_leader,
                fits=lambda: self._beginnings.number,
                patience_s=self._patience_s,
            )
            share_over_hosts(learning)

    @property
    def num_replicas_in_sync(self) -> int:
        """N, as it was when the run began."""
        return self._task.begun_with or self.training.replicas_needed(self.context.num_replicas)

    def _make_input_workers(self) -> InputWorkers:
        """Return all tasks that train: each reads its share of a dataset, for its own replica."""
        workers = self.num_replicas_in_sync
        return InputWorkers(
            workers,
            max(0, self.context.rank - len(self._idle)) % workers,
            1,
            self.reduce,
            activity=self.context.activity,
        )

    def wait_at_most(self, timeout_s: float) -> None:
        self._replica_patience_s = timeout_s

    @property
    def _connect_s(self) -> float:
        return self.assignment.connect_s if self._beginnings.number <= 1 else self._patience_s

    def _join(self) -> HeartbeatLink:
        """Serve, as a replica, and take a lease at the task that leads."""
        if self._link is not None:
            return self._link
        if self.context.rank >= 0 and self._hosting is None:
            self._hosting = self._others.hosting = Hosting(self._task, self.training)
        if self.is_leader and self._hosting is not None and not self._hosting.control.leads:
            self._lead_unless_others_do(self._hosting)
        self._reporter.waiting(str(self._finder.task))
        self._link = link = HeartbeatLink(
            str(self._finder.task),
            self._election.heeded(self._finder.connect),
            self._reporter,
            connect_s=self._connect_s,
            patience_s=self._patience_s,
            book=self._connector.book,
            moved_to=self.assignment.moved_to,
            on_not_leading=self._election.not_leading,
        )
        if self.is_leader:
            link.on_reply = self._task.write_down
        self._election.heard = lambda: str(self._finder.reached) if link.heard else None
        if self._hosting is not None:
            self._hosting.control.leader = self._election.heard
        self._reporter.waiting(None)
        return link

    def _lead_unless_others_do(self, hosting: Hosting) -> None:
        """Lead from the beginning, unless this process replaces one whose run goes on without it."""
        may_be_late = self.assignment.attempt > 0 or not self.assignment.launched
        left, patience_s = self._task.was_left, self.assignment.spec.wait.leader_s
        found = self._others.ask_all(patience_s, waits=left) if may_be_late else PeersState()
        self._ended = found.ended
        if found.trains:
            self._task.follow_another()
            self.context = self._task.context
            self._reporter.warn("another task leads meanwhile: this one takes part as a member")
            return
        if left:
            raise RunError(
                f"the others went on without this host, as {self._task.left_behind} says, and nobody trains: "
                "go on from the files of the last of them to lead, or remove that file to go on from here"
            )
        self._task.lead()
        hosting.lead()

    # A call of fit

    def open(self, problem: Problem) -> Training:
        problem.check_unconstrained()
        self._reporter.fit_begins()
        self._beginnings.number += 1
        self._election.begin(self._beginnings.number, problem.max_steps)
        plan = placement.plan(problem.variables, servers=1)
        training = None
        try:
            self._join()
            training = self._begin(problem, plan) if self.is_leader else self._enter(problem, plan)
        except HasToLeadError as found:
            self._lead_next(found)
            training = self._begin(self._beginnings.taken_over(problem), plan)
        except HasEndedError:
            self._reporter.waiting(None)
        if training is None:
            self._reporter.warn(f"call {self._beginnings.number} of fit had ended: passed over")
            self._reporter.fit_ends()
            known = self._task.run_dir or (self._link.reply.directory if self._link else None)
            folder = RunFiles(Path(known or ".")).checkpoints
            leads = self.is_leader and not self._others.succeeded()  # else all callbacks were called
            return PassedOverTraining(problem, self._beginnings.number, folder, leads=leads)
        self._reporter.status.max_steps = training.state.store.max_steps
        self._reporter.progress(training.global_step)
        self._reporter.running()
        training.wait_for_order()
        return training

    def _begin(self, problem: Problem, plan: Plan) -> ReplicaTraining | None:
        """Begin it as the leader; None: it had ended before this program was started again."""
        beginnings, hosting = self._beginnings, self._hosting
        assert hosting is not None, "a leader serves"
        over = self._others.succeeded() and self._election.is_over()  # all was said and saved
        if over or beginnings.passed_over(problem) is not None:
            return None
        cut = BatchCut(self.num_replicas_in_sync, self.training.has_backups(self.context.num_replicas))
        resumes = beginnings.resumes
        start = beginnings.start(
            problem.asked(beginnings.number, plan, cut, sync=True), plan, problem, resumes=resumes
        )
        start = start.going_on(cut, problem.max_steps, sync=True)
        terms = Entered(
            state=start.state.but(plan=None, model=None),
            leader=self.context.rank,
            directory=str(self._task.run_dir),
        )
        rank = self.context.rank
        awaited = self._members - {rank} if beginnings.number > self._ended else set()
        others = self._gathering(awaited, self.training.too_few)
        about = hosting.meeting, start, terms, rank, self._all_replicas, others.suffice
        training = self._training(begin_as_first(*about, hosting.hosts), start)
        for text in told_of(start, resumes=resumes):
            self._reporter.warn(text)
        keeper = beginnings.keeper(training.state, self._reporter, self.assignment.spec.checkpoint)
        keeper.begin(start, save=True)
        self._publish(training, keeper)
        return training

    def _gathering(self, others: set[int], too_few: TooFew) -> Gathering:
        start_s = self.assignment.spec.wait.start_s
        return Gathering(others, self._others.name_of, self._others.gone, self._reporter, too_few, start_s)

    def _enter(self, problem: Problem, plan: Plan) -> ReplicaTraining | None:
        """Enter it; None: it has ended."""
        hosting, link = self._hosting, self._link
        assert hosting is not None, "a replica serves"
        assert link is not None, "it has a lease"
        number, rank = self._beginnings.number, self.context.rank
        peers = self._peers(link)
        entry = enter(
            hosting.meeting,
            peers,
            number,
            plan,
            problem.optimizer,
            rank,
            hosting.hosts,
            self._all_replicas,
        )
        link.on_failure = lambda reason: None
        if entry is None:
            return None
        terms = entry.shared.terms
        self._directory = terms.directory
        self._beginnings.follow(problem)
        model = None if problem.model is None else dict(problem.model)
        start = Start(terms.state.but(plan=plan.to_dict(), model=model), plan)
        return self._training(entry, start)

    def _peers(self, link: HeartbeatLink) -> Peers:
        peer = Peer(
            str(self._finder.task),
            self._election.heeded(lambda timeout_s: self._others.connect_task(self._finder.task, timeout_s)),
            patience_s=self._connect_s,
        )
        link.on_failure = peer.abort
        return Peers(
            peer,
            self._election.not_leading,
            self._others.connect,
            self._reporter.waiting,
            lambda: link.failure,
            self.assignment.spec.wait.leader_s,
            self._others.may_live,
        )

    def in_loop(self, updates: int) -> None:
        self._reporter.in_loop(updates)

    def _make_loops(self) -> Loops:
        if self._idle:
            raise SpecError(
                "training.chief_trains: in a loop of one's own every task computes; expected true, or fit"
            )
        return make_loops(self, self.context.rank, self.context.num_replicas, self._meet)

    def _meet(self) -> CollectiveCalls:
        self._reporter.loop_begins()
        link, rank, ranks, hosting = self._join(), self.context.rank, self.context.num_replicas, self._hosting
        assert hosting is not None, "a replica serves"
        others = self._gathering(set(range(ranks)) - {rank}, TooFew.FAIL)
        ways = hosting.loops, hosting.hosts, None if self.is_leader else self._peers(link)
        waits = Waits(self._others.name_of, self._reporter.waiting, DEADLINE_S)
        return met(*ways, rank, ranks, others.suffice, waits)

    @property
    def _all_replicas(self) -> AllReplicas:
        return AllReplicas(self.context.num_replicas, self._others.name_of, self._idle)

    @property
    def _idle(self) -> frozenset[int]:
        """The rank of a chief that leads and does not train."""
        chief = self.assignment.cluster.replicas()[0].role is Role.CHIEF
        return frozenset({0} if chief and not self.training.chief_trains else ())

    def _training(self, entry: MemberEntry, start: Start) -> ReplicaTraining:
        waits = Waits(self._others.name_of, self._reporter.waiting, self._replica_patience_s)
        training = make_member_training(
            entry,
            start,
            self.training,
            self._reporter,
            waits,
            failure=self._failure,
            lead=self._take_the_lead,
            on_close=self._closed,
        )
        self._beginnings.last = training.state
        return training

    def _failure(self) -> DtrainError | None:
        return self._link.failure if self._link is not None else None

    # The leader

    def _publish(self, training: ReplicaTraining, keeper: KeeperThread) -> None:
        """Publish this task's training to all tasks."""
        assert self._hosting is not None, "a leader serves"
        assert self._task.run_dir is not None, "a leader saves"
        self._hosting.begin(training.state, str(self._task.run_dir), self.training)
        conclude = partial(self._hosting.conclude, training.state.begun.generation, training)
        training.lead(keeper, RunFiles(self._task.run_dir).checkpoints, conclude)

    @property
    def _folder(self) -> Path | None:
        run_dir = self._task.run_dir
        return RunFiles(run_dir).checkpoints if run_dir is not None else None

    def _take_the_lead(self, training: ReplicaTraining) -> None:
        """Go on in the place of a leader that has died."""
        self._become_leader()
        training.book.carried_out()
        state = training.state
        start = Start(state.begun.but(version=state.global_step), state.plan)
        keeper = self._beginnings.keeper(state, self._reporter, self.assignment.spec.checkpoint)
        keeper.begin(start, save=False)
        self._publish(training, keeper)

    def _lead_next(self, found: HasToLeadError) -> None:
        """Lead the next call of `fit` in the place of a leader that has died, or has never come."""
        self._members -= set(found.gone)
        self._ended = max(self._ended, found.ended)
        if self._book is not None:  # it has taken part in the last one
            self._book.lead(self.context.rank, 0)  # for that leader, if it is started again and asks
        self._become_leader()
        self._reporter.warn(f"the leader has died; this task leads call {self._beginnings.number} of fit")
        self._join()

    def _become_leader(self) -> None:
        assert self._hosting is not None, "a replica serves"
        self._task.lead(self._directory)
        self.context = self._task.context
        self._finder.led_by(self.assignment.task)
        if self._link is not None:
            self._link.on_reply = self._task.write_down
        self._beginnings.folder = self._folder
        self._hosting.lead()

    def _closed(self, training: ReplicaTraining, error: BaseException | None) -> None:
        """Keep what a call of `fit` that ends leaves to the next one."""
        if self._beginnings.number > self._ended:
            self._members = set(training.driver.members) - training.driver.dead
        self._election.members, self._book = {*self._members, training.book.leader}, training.book

    def optimizer_state(self, owner: object) -> OptimizerState | None:
        return self._beginnings.optimizer_state(owner)

    # The evaluator

    def checkpoints(self, pace: Pace, ended: Ended = discard_rows) -> Iterator[EvaluatedCheckpoint]:
        self._beginnings.number += 1
        return self._task.follow(self._join, pace, self._beginnings.number, ended)

    def evaluated(self, global_step: int, metrics: Mapping[str, float]) -> None:
        self._task.evaluated(global_step, metrics)

    # The end

    def close(self, error: BaseException | None = None) -> None:
        share_over_hosts(None)
        links = [self._link] if self._link is not None else []
        self._task.close(error, links, self._take_leave)
        self._link = None

    def _take_leave(self, farewell: bool) -> None:
        if self._hosting is not None:
            self._hosting.stop(farewell=farewell)
            self._hosting = None
