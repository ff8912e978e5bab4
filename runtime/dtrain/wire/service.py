"""The service of a task: one handler, for tasks of its host on a Unix socket, and for all by gRPC.

No task listens by itself. Parameter servers do, and others where their strategy opens a `TaskService` or a
`one_host.service.HostService`.
"""

import threading
from collections.abc import Callable, Collection

from dtrain.cluster.hosts import is_loopback
from dtrain.config.choices import Transport
from dtrain.errors import DtrainError, SpecError
from dtrain.messages import AnyMessage, Hello
from dtrain.process.assignment import TaskAssignment
from dtrain.wire.addresses import place_to_listen
from dtrain.wire.channel import Answer, Caller, Handler
from dtrain.wire.frames import Frame, Limits
from dtrain.wire.one_host.local import LocalService, socket_name
from dtrain.wire.security.credentials import Credentials


class TaskService:
    """Serves one handler at the task's address (`listening`) until `stop`."""

    def __init__(
        self, handler: Handler, assignment: TaskAssignment, credentials: Credentials, transport: Transport
    ) -> None:
        """Start; raise a `SpecError` if the task cannot or may not listen at its address."""
        from dtrain.wire.grpc_service import GrpcService  # 5 MB, for who opens a port

        self.listening = place_to_listen(assignment)
        _refuse_strangers(assignment, self.listening.address)
        name = socket_name(str(assignment.task), credentials)
        self._local = None if transport == Transport.GRPC else LocalService(handler, credentials, name)
        try:
            self._grpc = GrpcService(
                handler,
                self.listening.address,
                credentials,
                connections=_connections(assignment),
                share_port=assignment.launched and assignment.spec.hold_ports,
                local_name=self._local.name if self._local else str,
            )
        except BaseException:
            if self._local is not None:
                self._local.stop()
            raise

    def stop(self) -> None:
        self._grpc.stop()
        if self._local is not None:
            self._local.stop()


class SideBySide:
    """Two handlers on one service: `control` gets the messages of some types, `data` all others."""

    def __init__(self, control: Handler, data: Handler, controls: Collection[type[AnyMessage]]) -> None:
        self._control = control
        self._data = data
        self._controls = frozenset(controls)

    def limits(self, hello: Hello) -> Limits:
        return Limits(*map(max, self._control.limits(hello), self._data.limits(hello)))

    @property
    def answers_at_once(self) -> bool:
        return self._data.answers_at_once

    def refuse(self, hello: Hello) -> str | None:
        return self._control.refuse(hello) or self._data.refuse(hello)

    def received(self, caller: Caller, frame: Frame) -> Answer:
        handler = self._control if type(frame.message) in self._controls else self._data
        return handler.received(caller, frame)

    def disconnected(self, caller: Caller) -> None:
        self._data.disconnected(caller)
        self._control.disconnected(caller)


def _refuse_strangers(assignment: TaskAssignment, address: str) -> None:
    """Raise unless connections are authenticated, if other hosts can connect."""
    trusted = assignment.secret is not None or assignment.spec.security.insecure
    if not (trusted or is_loopback(address)):
        raise SpecError(
            f"{assignment.task} cannot serve at {address}, which other hosts can reach, in a run without a "
            "secret: give every task the same secret, or this one a loopback address, 127.0.0.1:PORT"
        )


def _connections(assignment: TaskAssignment) -> int:
    tasks = sum(1 for _ in assignment.cluster.tasks()) + 2
    return 4 * tasks + 64


OPENS_AFTER_S = 2.0
"""By then the first step of a training on this host is made."""


class HostService:
    """Serves one handler to the tasks of this host, which know its socket's name, until `stop`."""

    def __init__(self, handler: Handler, assignment: TaskAssignment, credentials: Credentials) -> None:
        self._handler = handler
        self._assignment = assignment
        self._credentials = credentials
        self._local = LocalService(handler, credentials, socket_name(str(assignment.task), credentials))
        self._opening: threading.Thread | None = None
        self._stop_port: Callable[[], None] = lambda: None
        self._stopped = threading.Event()

    def open_port(self, failed: Callable[[str], None]) -> None:
        self._opening = threading.Thread(target=self._open_port, args=[failed], name="port", daemon=True)
        self._opening.start()

    def _open_port(self, failed: Callable[[str], None]) -> None:
        if self._stopped.wait(OPENS_AFTER_S):
            return

        try:
            service = TaskService(self._handler, self._assignment, self._credentials, Transport.GRPC)
        except DtrainError as error:
            failed(f"no worker can join at the address of this task: {error}")
        else:
            self._stop_port = service.stop

    def stop(self) -> None:
        self._stopped.set()
        if self._opening is not None:
            self._opening.join()
        self._stop_port()
        self._local.stop()
