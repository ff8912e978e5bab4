"""The service of one task: the place where replicas meet and, in the leader, the control plane."""

from dtrain.cluster import TaskId
from dtrain.config import MultiWorkerMirroredSection
from dtrain.control.machine import TAKEN
from dtrain.errors import PeerLostError
from dtrain.messages import Enter, Hello, Join
from dtrain.roles.collective.meeting import Meeting
from dtrain.roles.joining import admission_by
from dtrain.strategies.cluster_task import ClusterTask
from dtrain.strategies.control_hosting import ControlHosting
from dtrain.strategies.multi_worker_mirrored.custom_loops import LOOPS
from dtrain.strategies.multi_worker_mirrored.hosts import HostWays
from dtrain.strategies.multi_worker_mirrored.rendezvous import task_of
from dtrain.wire.channel import Answer, Caller, Channel, PassesOn
from dtrain.wire.frames import Frame, Limits
from dtrain.wire.service import HostService, SideBySide


class Hosting(ControlHosting):
    """The service of one task: replicas meet at `meeting` for `fit`, at `loops` for the program's loops."""

    def __init__(self, task: ClusterTask, section: MultiWorkerMirroredSection) -> None:
        """Serve at the task's address, or raise a `SpecError`; with all on this host, at its socket first."""
        super().__init__(task, section)
        assignment, cluster = task.assignment, task.assignment.cluster
        self.control.control.admission = admission_by(assignment)
        self.meeting = Meeting(lambda sender: cluster.rank(sender))
        self.loops = Meeting(lambda sender: cluster.rank(sender))
        self.hosts: HostWays | None = None
        self.serve(SideBySide(self.control, Meetings(self.meeting, self.loops), [*TAKEN, Join]))
        if not self.on_this_host:

            def name_of(rank: int) -> str:
                return str(task_of(cluster, rank))

            self.hosts = HostWays(assignment, task.credentials, name_of, task.reporter.warn)
            task.reporter.bytes_moved = self.hosts.bytes_moved

    def lead(self) -> None:
        """Let time pass for the control plane, and let workers join."""
        super().lead()
        self.meeting.gathers = self.loops.gathers = True
        if isinstance(self._service, HostService):
            self._service.open_port(self._task.reporter.warn)

    def sharing(self, channel: Channel, task: TaskId) -> Channel:
        """Return a connection that shares memory on one host, or raise a `PeerLostError`: the task starts."""
        slow = self._task.assignment.spec.simulate.network
        if self.on_this_host and not slow and not isinstance(channel, PassesOn):
            channel.close()
            raise PeerLostError(f"{task} does not serve at its socket, where memory can be shared")
        return channel

    def gone(self) -> set[int]:
        """Return the ranks of tasks that were there, and are lost or have left."""
        roster = self.control.control.roster
        heard = {task for task in roster.membership.gone if roster.membership.incarnation(task)}
        return {roster.ranks[task] for task in heard if task in roster.ranks}

    def stop(self, *, farewell: bool) -> None:
        super().stop(farewell=farewell)
        if self.hosts is not None:
            self.hosts.stop()

    def ends(self) -> None:
        self.meeting.forget()
        self.loops.forget()


class Meetings:
    """The handler of both meetings of a task, told apart by the number of the call of `fit`."""

    answers_at_once = True

    def __init__(self, fits: Meeting, loops: Meeting) -> None:
        self._fits = fits
        self._loops = loops

    def limits(self, hello: Hello) -> Limits:
        return self._fits.limits(hello)

    def refuse(self, hello: Hello) -> str | None:
        return self._fits.refuse(hello)

    def received(self, caller: Caller, frame: Frame) -> Answer:
        of_loops = isinstance(frame.message, Enter) and frame.message.generation == LOOPS
        return (self._loops if of_loops else self._fits).received(caller, frame)

    def disconnected(self, caller: Caller) -> None:
        self._fits.disconnected(caller)
        self._loops.disconnected(caller)
