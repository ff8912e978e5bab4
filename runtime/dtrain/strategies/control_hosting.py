"""The control plane of one task that trains, in a cluster without parameter servers."""

from collections.abc import Callable
from dataclasses import dataclass, field

from dtrain.cluster import Role, TaskId
from dtrain.config import ClusterTraining
from dtrain.config.choices import Transport
from dtrain.control.interface import Action
from dtrain.control.machine import ControlPlane
from dtrain.control.roster import Steps
from dtrain.messages import Lineage, Refusal
from dtrain.process.clock import SYSTEM
from dtrain.protocol.membership import LEASE_S, MemberState
from dtrain.roles.control_host import ControlHandler
from dtrain.runs.states import ENDED
from dtrain.strategies.cluster_task import ClusterTask
from dtrain.strategies.in_process.fit_holder import FitHolder
from dtrain.strategies.interface import Training
from dtrain.wire.channel import Handler
from dtrain.wire.service import HostService, TaskService

LEAVE_S = 1.5
"""The longest time that the leader serves after its farewell, for tasks that have not heard it."""
LOOK_S = 0.02


@dataclass
class FitProgress:
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
        progress = FitProgress(
            state.begun.generation,
            state.begun.lineage,
            directory,
            lambda: state.global_step,
            state.store.max_steps or 0,
        )
        self.control.ask(lambda control, now: control.begin(progress, section, now))

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
