"""Training in one process with several replicas, each in a thread, that share one copy of every variable.

Compare `tf.distribute.MirroredStrategy`, whose replicas have a copy each and add up their gradients to keep
them equal. Under `dtrain launch --strategy mirrored` it saves and resumes as a cluster does, and an
evaluator may follow its checkpoints; under plain Python it keeps no files.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from dtrain.checkpoints import EvaluatedCheckpoint, Pace
from dtrain.cluster import AddressBook
from dtrain.config import CentralStorageSection, MirroredSection, PipelineSection
from dtrain.config.choices import Transport
from dtrain.data.distribution.once import share_over_hosts
from dtrain.process.assignment import TaskAssignment
from dtrain.roles.chief.start import replicas_in_sync
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.strategies.cluster_task import ClusterTask
from dtrain.strategies.control_hosting import ControlHosting
from dtrain.strategies.in_process.thread_replicas import SharedTraining, ThreadReplica, ThreadsTraining
from dtrain.strategies.in_process.training import LocalStrategy, LocalTraining
from dtrain.strategies.interface import Ended, Problem, Strategy, Training, TurnReplica, discard_rows
from dtrain.strategies.learned import LeaderLearns, spreads_over_hosts
from dtrain.strategies.replicas.loops import Loops
from dtrain.wire.channel import Channel

ThreadsSection = MirroredSection | CentralStorageSection


class FollowedStrategy(Strategy):
    """A strategy whose training an evaluator may follow from the place of its task."""

    _place: "BesideEvaluator | None" = None
    _followed = 0

    def checkpoints(self, pace: Pace, ended: Ended = discard_rows) -> Iterator[EvaluatedCheckpoint]:
        self._followed += 1
        if self._place is None:
            return iter(())
        return self._place.follow(pace, self._followed, ended)

    def evaluated(self, global_step: int, metrics: Mapping[str, float]) -> None:
        if self._place is not None:
            self._place.task.evaluated(global_step, metrics)


class ThreadsStrategy(FollowedStrategy, LocalStrategy):
    """One process whose replicas are threads, and which leads; or the evaluator beside it."""

    devices: Sequence[str] = ()
    one_copy = False
    kind = ThreadsTraining
    shares = True
    training: ThreadsSection

    def __init__(
        self,
        training: ThreadsSection,
        assignment: TaskAssignment | None = None,
        place: "BesideEvaluator | None" = None,
    ) -> None:
        """Train by `training`, or follow what trains; without an `assignment` this is no task of a launch."""
        self._place = place
        if place is None:
            super().__init__(training, assignment, replicas=training.replicas)
            folder = self._beginnings.folder
            self._begun_with = replicas_in_sync(folder) if folder is not None else 0
            return
        assert assignment is not None, "a task in a run with an evaluator has an assignment"
        super().__init__(training, replace(assignment, run_dir=place.task.run_dir), place.task.reporter)
        self.evaluations = place.task.evaluations
        self._begun_with = place.task.begun_with
        self.context = place.context

    @property
    def num_replicas_in_sync(self) -> int:
        """N, as it was when the run began."""
        return self._begun_with or self.training.replicas_needed(self.training.replicas)

    def open(self, problem: Problem) -> Training:
        if self._place is not None:
            self._place.join()
        training = super().open(problem)
        if self._place is not None and isinstance(training, LocalTraining):
            self._place.begin(training)
        return training

    @property
    def _even(self) -> bool:
        return self.training.has_backups(self.training.replicas)

    def make_replicas(self, training: LocalTraining) -> Sequence[TurnReplica]:
        """Make the replicas of a training, and let a failure of one end the others."""
        by_one = isinstance(self.training, CentralStorageSection)
        shared = SharedTraining(training, self.training, self.training.replicas, by_one=by_one)
        assert isinstance(training, ThreadsTraining), "as it was opened"
        training.abort, training.computing = shared.abort, shared.computing
        return [ThreadReplica(shared, rank) for rank in range(self.training.replicas)]

    def _make_loops(self) -> Loops:
        if self.evaluates:
            return Loops(self, ends="the evaluator ends: a loop of the program's own evaluates for itself")
        return Loops(self, self.num_replicas_in_sync, devices=self.devices, one_copy=self.one_copy)

    # The end

    def close(self, error: BaseException | None = None) -> None:
        if self._place is not None:
            self._place.close(error)
        else:
            super().close(error)


class MirroredThreads(ThreadsStrategy):
    """All threads take part in every update."""


class CentralStorage(ThreadsStrategy):
    """One thread makes every update."""

    one_copy = True


def threads_strategy(
    training: ThreadsSection,
    assignment: TaskAssignment | None = None,
    place: "BesideEvaluator | None" = None,
) -> ThreadsStrategy:
    kind = MirroredThreads if isinstance(training, MirroredSection) else CentralStorage
    return kind(training, assignment, place)


class BesideEvaluator:
    """One of the two tasks. The one that trains hosts the control plane, and each has a lease there."""

    def __init__(self, assignment: TaskAssignment, training: ThreadsSection | PipelineSection) -> None:
        """Set up the task; no connection is made before `join`.

        Raises:
            SpecError: the certificate cannot be used.
            RunError: the directory of the run cannot be made, or is in use.
        """
        leader = assignment.cluster.leader
        assert leader is not None, "a run has a task that trains"
        self.task = ClusterTask(assignment, training)
        self.context = replace(self.task.context, num_replicas=training.replicas, pipelines=0)
        self._training = training
        self._leader = leader
        self._connector = self.task.connector(Transport.AUTO, AddressBook(assignment.cluster))
        self._hosting: ControlHosting | None = None
        self._link: HeartbeatLink | None = None
        self._fits = 0
        if spreads_over_hosts(assignment):
            learning = LeaderLearns(
                self.task.reporter,
                self.join,
                self._connect,
                leads=lambda: self.context.is_leader,
                fits=lambda: self._fits,
                patience_s=assignment.spec.wait.leader_s,
            )
            share_over_hosts(learning)

    def _connect(self, timeout_s: float) -> Channel:
        return self._connector.connect_heart(self._leader, timeout_s)

    def join(self) -> HeartbeatLink:
        """Serve, in the task that trains, and take a lease there, once."""
        if self._link is not None:
            return self._link
        assignment, reporter = self.task.assignment, self.task.reporter
        self._hosting = self._host()
        reporter.waiting(str(self._leader))
        self._link = link = HeartbeatLink(
            str(self._leader),
            self._connect,
            reporter,
            connect_s=assignment.connect_s,
            patience_s=assignment.spec.wait.leader_s,
            book=self._connector.book,
            moved_to=assignment.moved_to,
        )
        if self.context.is_leader:
            link.on_reply = self.task.write_down
        reporter.waiting(None)
        return link

    def _host(self) -> ControlHosting | None:
        """Serve, in the task that trains."""
        if not self.context.is_leader:
            return None
        hosting = ControlHosting(self.task, self._training)
        hosting.lead()
        hosting.serve(hosting.control)
        return hosting

    def begin(self, training: LocalTraining) -> None:
        """Notify the evaluator of a call of `fit`, which this task trains."""
        self._fits = training.state.begun.generation
        assert self._hosting is not None, "the task that trains has joined"
        assert self.task.run_dir is not None, "and saves"
        self._hosting.begin(training.state, str(self.task.run_dir), self._training)

    def follow(self, pace: Pace, fit: int, ended: Ended) -> Iterator[EvaluatedCheckpoint]:
        self._fits = fit
        return self.task.follow(self.join, pace, fit, ended)

    def close(self, error: BaseException | None) -> None:
        share_over_hosts(None)
        links = [self._link] if self._link is not None else []
        self.task.close(error, links, self._take_leave)
        self._link = None

    def _take_leave(self, farewell: bool) -> None:
        if self._hosting is not None:
            self._hosting.stop(farewell=farewell)
            self._hosting = None
