"""A run of one task that trains and an evaluator that follows its checkpoints, as either of them sees it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from dtrain.checkpoints import EvaluatedCheckpoint, Pace
from dtrain.cluster import AddressBook
from dtrain.config import CentralStorageSection, MirroredSection
from dtrain.config.choices import Transport
from dtrain.data.distribution.once import share_over_hosts
from dtrain.messages import Row
from dtrain.process.assignment import TaskAssignment
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.strategies.in_cluster.cluster_task import ClusterTask
from dtrain.strategies.in_cluster.hosting import ControlHosting
from dtrain.strategies.in_cluster.learned import LeaderLearns, spreads_over_hosts
from dtrain.strategies.in_process.training import LocalTraining
from dtrain.wire.channel import Channel


class BesideEvaluator:
    """One of the two tasks. The one that trains hosts the control plane, and each has a lease there.

    Attributes:
        task: which one.
        context: the same, as its strategy tells it.
    """

    def __init__(self, assignment: TaskAssignment, training: MirroredSection | CentralStorageSection) -> None:
        """Take the place; no connection is made before `join`.

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
            share_over_hosts(self._learning())

    def _learning(self) -> LeaderLearns:
        return LeaderLearns(
            self.task.reporter,
            self.join,
            self._connect,
            leads=lambda: self.context.is_leader,
            fits=lambda: self._fits,
            patience_s=self.task.assignment.spec.wait.leader_s,
        )

    def _connect(self, timeout_s: float) -> Channel:
        return self._connector.connect_heart(self._leader, timeout_s)

    def join(self) -> HeartbeatLink:
        """Serve, in the task that trains, and take a lease there, once."""
        if self._link is not None:
            return self._link
        assignment, reporter = self.task.assignment, self.task.reporter
        if self.context.is_leader:
            self._hosting = ControlHosting(self.task, self._training)
            self._hosting.lead()
            self._hosting.serve(self._hosting.control)
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

    def begin(self, training: LocalTraining) -> None:
        """Tell the evaluator of a call of `fit`, which this task trains."""
        self._fits = training.state.begun.generation
        assert self._hosting is not None, "the task that trains has joined"
        assert self.task.run_dir is not None, "and saves"
        self._hosting.begin(training.state, str(self.task.run_dir), self._training)

    def follow(
        self, pace: Pace, fit: int, took: Callable[[Mapping[int, Row]], None]
    ) -> Iterator[EvaluatedCheckpoint]:
        """Yield the checkpoints of a call of `fit`; see `ClusterTask.follow`."""
        self._fits = fit
        yield from self.task.follow(self.join(), pace, fit, took)

    def close(self, error: BaseException | None) -> None:
        """End; see `ClusterTask.close`."""
        share_over_hosts(None)
        links = [self._link] if self._link is not None else []
        self.task.close(error, links, self._take_leave)
        self._link = None

    def _take_leave(self, farewell: bool) -> None:
        if self._hosting is not None:
            self._hosting.stop(farewell=farewell)
            self._hosting = None
