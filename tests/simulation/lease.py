"""A simulated task's heartbeats: it stays a member of the run, and learns how the run stands."""

from typing import Any

from simulation.network import Wire

from dtrain.messages import AnyMessage, Heartbeat, HeartbeatReply

BEAT_S = 1.0
LEASE_S = 5.0
RECONNECT_S = 0.05


class Lease:
    """Heartbeats to ps:0, and those of the leader to every server.

    Attributes:
        answers: what each server said last, and when it was asked.
        incarnation: larger than that of every process before it, as in the real one.
    """

    def __init__(self, process: Any, servers: int) -> None:
        self._process = process
        self._clock = process.network.clock
        self._name = (0, self._clock.now)
        self._asked_s: dict[int, float] = {}
        self._servers = servers
        self.answers: dict[int, tuple[float, HeartbeatReply]] = {}
        self.incarnation = int(self._clock.now * 1000) + 1

    def begin(self) -> None:
        for server in range(self._servers):
            self.beat(server)

    def beat(self, server: int) -> None:
        process = self._process
        if process.not_now(self.beat, server):
            return
        wire = process.wire("heartbeat", server)
        if wire is not None:
            self._asked_s[server] = self._clock.now
            self._clock.later(LEASE_S, self._is_silent, wire, server, self._clock.now)
            wire.send(Heartbeat(process=self._name, incarnation=self.incarnation))
        elif process.servers[server].ended:
            process.stop(None if process.finished else f"ps:{server} is gone")
        else:
            self._clock.later(RECONNECT_S, self.beat, server)

    def _is_silent(self, wire: Wire, server: int, asked_s: float) -> None:
        """A server that does not answer is asked again on a new connection; the chief has it killed."""
        process = self._process
        if (
            process.not_now(self._is_silent, wire, server, asked_s)
            or not wire.open
            or self._asked_s[server] != asked_s
        ):
            return
        if self.answers.get(server, (-1.0,))[0] < asked_s:
            process.tell_silent(server)
            wire.breaks()

    def answered(self, server: int, message: AnyMessage) -> None:
        process = self._process
        if not isinstance(message, HeartbeatReply):
            process.stop(f"heartbeat: {message}")
            return
        first = len(self.answers) < self._servers
        self.answers[server] = self._asked_s[server], message
        self._clock.later(BEAT_S, self.beat, server)
        if server == 0:
            self.incarnation = message.incarnation
        if message.failed:
            process.stop(message.failed.reason)
        elif first and len(self.answers) == self._servers:
            process.begin_fit()

    def leave(self, wire: Wire) -> None:
        """Say goodbye."""
        wire.send(Heartbeat(process=self._name, incarnation=self.incarnation, leaving=True))
