"""The service of a task whose whole run is on one host: a Unix socket, and only later a port."""

import threading
from collections.abc import Callable

from dtrain.config.choices import Transport
from dtrain.errors import DtrainError
from dtrain.process.assignment import TaskAssignment
from dtrain.wire.channel import Handler
from dtrain.wire.one_host.local import LocalService, socket_name
from dtrain.wire.security.credentials import Credentials

OPENS_AFTER_S = 2.0
"""By then the first step of a training on this host is made."""


class HostService:
    """Serves one handler to the tasks of this host until `stop`.

    They know the socket's name. After `open_port` it serves at the task's address as well, for a worker that
    would like to join and does not. gRPC takes 5 MB and a tenth of a second, for which no step waits.
    """

    def __init__(self, handler: Handler, assignment: TaskAssignment, credentials: Credentials) -> None:
        """Start at the socket."""
        self._handler = handler
        self._assignment = assignment
        self._credentials = credentials
        self._local = LocalService(handler, credentials, socket_name(str(assignment.task), credentials))
        self._opening: threading.Thread | None = None
        self._stop_port: Callable[[], None] = lambda: None
        self._stopped = threading.Event()

    def open_port(self, failed: Callable[[str], None]) -> None:
        """Serve at the address after `OPENS_AFTER_S`; `failed` is told why that cannot be."""
        self._opening = threading.Thread(target=self._open_port, args=[failed], name="port", daemon=True)
        self._opening.start()

    def _open_port(self, failed: Callable[[str], None]) -> None:
        if self._stopped.wait(OPENS_AFTER_S):
            return
        from dtrain.wire.service import TaskService

        try:
            service = TaskService(self._handler, self._assignment, self._credentials, Transport.GRPC)
        except DtrainError as error:
            failed(f"no worker can join at the address of this task: {error}")
        else:
            self._stop_port = service.stop

    def stop(self) -> None:
        """Stop serving; open connections are closed."""
        self._stopped.set()
        if self._opening is not None:
            self._opening.join()
        self._stop_port()
        self._local.stop()
