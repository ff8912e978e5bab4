"""The one way by which a task reaches any other task of its run: `Connector.connect`."""

import contextlib
from collections.abc import Callable
from functools import partial

from dtrain.cluster import AddressBook, TaskId
from dtrain.config import address_problem
from dtrain.config.choices import On, Transport
from dtrain.errors import RunError
from dtrain.process.assignment import TaskAssignment
from dtrain.runs.files import RunFiles, read_record
from dtrain.wire.channel import Channel
from dtrain.wire.connecting import connect, heartbeat_transport
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.slow_link import through_link

ConnectTask = Callable[[TaskId, float], Channel]
"""Opens a connection to a task, waiting at most the given seconds."""
Unreached = Callable[[str, str, str | None], None]
"""Told the name and the address of a task, and why it is not reached; None once it is."""


class Connector:
    """Opens connections of one task.

    Attributes:
        book: where the others serve; each attempt looks there, but what the launcher says decides.
    """

    def __init__(
        self,
        assignment: TaskAssignment,
        credentials: Credentials,
        unreached: Unreached,
        transport: Transport,
        book: AddressBook,
    ) -> None:
        """Prepare without a connection; `transport` as in `wire.connecting`."""
        self.book = book
        self._assignment = assignment
        self._credentials = credentials
        self._unreached = unreached
        self._transport = transport

    def connect(self, task: TaskId, timeout_s: float) -> Channel:
        """Open a connection for tensors to a task.

        Raises:
            SpecError: no address of the task is known.
            WaitTimeoutError: no process answers there within `timeout_s`.
            PeerRefusedError: the task does not let this one in.
        """
        return self._open(task, timeout_s, self._transport)

    def connect_heart(self, task: TaskId, timeout_s: float) -> Channel:
        """Open a connection for heartbeats; the rest is as for `connect`."""
        return self._open(task, timeout_s, heartbeat_transport(self._transport, self._address(task)))

    def _address(self, task: TaskId) -> str:
        """Return where a task serves: on other hosts the launcher knows, also of the control host itself."""
        own = self._assignment
        if own.launched and own.run_dir is not None and own.spec.on is not On.LOCAL:
            with contextlib.suppress(RunError, OSError):
                told = read_record(RunFiles(own.run_dir).moved, dict[str, str]) or {}
                if (address := told.get(str(task))) is not None and address_problem(address) is None:
                    return address
        return self.book.address(task)

    def _open(self, task: TaskId, timeout_s: float, transport: Transport) -> Channel:
        name = str(task)
        address = self._address(task)
        tell = partial(self._unreached, name, address)
        own = self._assignment
        channel = connect(name, address, self._credentials, timeout_s, transport, tell)
        return through_link(channel, own.spec.simulate, str(own.task))
