"""A coordinator without a cluster: one worker is a thread of this process, and the variables lie here.

Messages, queue and rules are those of a cluster, so a program that works here works there.
"""

import threading
from collections.abc import Sequence
from functools import partial

from dtrain.cluster import ClusterSpec
from dtrain.messages import Attended, Closure, Failure, Hello
from dtrain.parameters import placement
from dtrain.process.clock import SYSTEM
from dtrain.roles.coordinator.access import Access, Answer, Question
from dtrain.roles.coordinator.attendant import Attendant
from dtrain.roles.coordinator.service import ClosureService
from dtrain.roles.parameter_server.shared.answers import SharedAnswers
from dtrain.runs.account import Account
from dtrain.strategies.coordinator.coordination import Coordination
from dtrain.strategies.coordinator.execution import Execution
from dtrain.strategies.coordinator.functions import ProgramNames
from dtrain.strategies.coordinator.values import ProgramValues
from dtrain.wire.memory import MemoryChannel

CLUSTER = ClusterSpec.from_lists(chief=["here"], worker=["here"], ps=["here"])
PATIENCE_S = 60.0


class LocalCoordination(Coordination):
    """The coordinator of a program that runs alone; see `Coordination`."""

    def __init__(self, names: ProgramNames, values: ProgramValues) -> None:
        """Begin, with one worker."""
        self.names = names
        self._held = SharedAnswers(0, 1)
        self._lock = threading.Lock()
        plan = placement.plan(values.specs, 1)
        access = Access(self._ask, plan, 1)
        access.share(values.first_values())
        self.service = ClosureService(
            _hello("chief:0"), CLUSTER, 1, plan, Account(), start_s=PATIENCE_S, patience_s=PATIENCE_S
        )
        self._workers = Access(self._ask, plan, 1)
        self._execution = Execution(names, self._workers)
        self._worker = SYSTEM.start(self._serve, "worker")
        thread = self._worker
        own, service = self._workers, self.service
        values.use(
            lambda: own if threading.current_thread() is thread else access,
            lambda: own.as_of() if threading.current_thread() is thread else service.as_of(),
        )

    def _ask(self, questions: Sequence[Question]) -> list[Answer]:
        """Answer as a server does; see `roles.coordinator.access.Ask`."""
        answers: list[Answer] = []
        with self._lock:
            for _, message, blocks in questions:
                answer, values = self._held.answer(message, blocks)
                answers.append((answer, [value.copy() for value in values]))
        return answers

    def _serve(self) -> None:
        connect = partial(MemoryChannel, "chief:0", self.service, _hello("worker:0"))
        attendant = Attendant(
            "chief:0",
            lambda timeout_s: connect(),
            Account(),
            begin=self._begin,
            run=self._run,
            connect_s=PATIENCE_S,
            patience_s=PATIENCE_S,
        )
        attendant.serve()

    def _begin(self, attended: Attended) -> None:
        """Begin the only session, which is there already."""
        assert attended.session == self._workers.session

    def _run(self, closure: Closure, arguments: bytes) -> bytes | Failure:
        return self._execution.run(closure, arguments)

    def end(self, *, farewell: bool) -> None:
        self.service.end()


def begin_alone() -> tuple[LocalCoordination, ProgramValues]:
    """Begin to coordinate a program that runs without a cluster."""
    names = ProgramNames()
    values = ProgramValues(names)
    return LocalCoordination(names, values), values


def _hello(task: str) -> Hello:
    return Hello(run_id="alone", cluster_hash="", task=task)
