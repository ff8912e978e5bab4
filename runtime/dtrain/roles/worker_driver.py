"""Runs a `Replica`: one connection to each server, in the training loop's own thread. It decides nothing.

A connection that breaks is opened again and what was unanswered is said again, until the server has been away for too long.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterable

from dtrain.cluster import Role, TaskId
from dtrain.errors import PeerLostError, WaitTimeoutError
from dtrain.messages import AnyMessage, Push, Reply, Values
from dtrain.protocol.replica_memory import ReplicaMemory
from dtrain.reporting import Reporter
from dtrain.roles.store import any_non_finite
from dtrain.roles.worker import Outcome, Outgoing, Phase, Replica
from dtrain.wire.channel import Channel

RECONNECT_PAUSE_S = 0.05
STEADY_S = 1.0
"""A connection that has lasted so long was a good one."""

Connect = Callable[[int, float], Channel]
"""Opens a data connection to the server of an index, waiting at most the given seconds."""


class ReplicaDriver:
    """Moves a replica from one version to the next."""

    def __init__(
        self,
        machine: Replica,
        weights: ReplicaMemory,
        gradients: ReplicaMemory,
        connect: Connect,
        reporter: Reporter,
        *,
        connect_s: float,
        patience_s: float,
    ) -> None:
        """Connect to every server.

        Args:
            machine: decides.
            weights: received into.
            gradients: sent from; the new values of variables that are not trained as well.
            connect: opens connections.
            reporter: told whom we wait for.
            connect_s: how long a server may take to be there at first.
            patience_s: how long one may be away later.

        Raises:
            WaitTimeoutError: a server is not there in time.
        """
        self.machine = machine
        self._weights = weights
        self._gradients = gradients
        self._connect = connect
        self._reporter = reporter
        self._patience_s = patience_s
        self._aborted: str | None = None
        self._channels: list[Channel] = []
        for server in range(machine.servers):
            reporter.waiting(str(TaskId(Role.PS, server)))
            self._channels.append(connect(server, connect_s))
        reporter.waiting(None)

    def start(self) -> None:
        """Get the first values, and permission to compute."""
        self._exchange(self.machine.start())

    def push(self) -> Outcome:
        """Send the gradients in memory; returns when the next values are there and computing may go on."""
        self._gradients.split()
        self._exchange(self.machine.push(finite=not any_non_finite(list(self._gradients.buffers.values()))))
        if self.machine.outcome is None:
            raise AssertionError("a push that was answered everywhere has an outcome")
        return self.machine.outcome

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Bytes sent and received on the connections that are open now."""
        return sum(c.bytes_sent for c in self._channels), sum(c.bytes_received for c in self._channels)

    def abort(self, reason: str) -> None:
        """From another thread: give up whatever is being waited for."""
        self._aborted = reason
        for channel in self._channels:
            channel.abort(reason)

    def close(self) -> None:
        """Close every connection."""
        for channel in self._channels:
            channel.close()

    def _exchange(self, outgoing: Iterable[Outgoing]) -> None:
        for server, message in outgoing:
            self._send(server, message)
        while self.machine.unanswered:
            server = next(iter(self.machine.unanswered))
            message = self._receive(server)
            if isinstance(message, Values | Reply):
                self._reporter.waiting(None)
            for next_server, answer in self.machine.receive(server, message):
                self._send(next_server, answer)
        self._weights.join()
        if self.machine.phase is Phase.PULLING:
            raise AssertionError("a replica that pulls waits for an answer")

    def _send(self, server: int, message: AnyMessage) -> None:
        self._channels[server].send(message, self._gradients.blocks[server] if isinstance(message, Push) else ())

    def _receive(self, server: int) -> AnyMessage:
        self._reporter.waiting(str(TaskId(Role.PS, server)))
        opened_s, deadline = -math.inf, 0.0
        while True:
            try:
                frame = self._channels[server].receive(self._weights.blocks[server])
                if frame.blocks:
                    self._weights.read_at(server, frame.blocks)
                return frame.message
            except PeerLostError as error:
                # Breaking again and again without an answer, it has no more time than if it were away.
                if time.monotonic() - opened_s >= STEADY_S:
                    deadline = time.monotonic() + self._patience_s
                self._reconnect(server, error, deadline)
                opened_s = time.monotonic()

    def _reconnect(self, server: int, lost: PeerLostError, deadline: float) -> None:
        self._channels[server].close()
        while not self._aborted:
            if time.monotonic() >= deadline:
                raise PeerLostError(f"{lost}; it did not come back within {self._patience_s:g} s")
            time.sleep(RECONNECT_PAUSE_S)
            with contextlib.suppress(WaitTimeoutError):
                self._channels[server] = self._connect(server, min(1.0, max(0.0, deadline - time.monotonic())))
                break
        if self._aborted:
            raise PeerLostError(self._aborted)
        self._send(server, self.machine.unanswered[server])
