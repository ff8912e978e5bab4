"""A simulated parameter server: the handler that ships, on a virtual clock and network."""

from functools import partial

from simulation.clock import Life
from simulation.network import Blocks, Network, VirtualChannel, Wire
from simulation.reporter import Reporter
from simulation.setup import Setup

from dtrain.errors import PeerRefusedError
from dtrain.messages import AnyMessage, Heartbeat, Hello, Refusal
from dtrain.parameters.shared_buffers import ReadBufferAllocator
from dtrain.roles.control_host import TICK_S
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.roles.parameter_server.driver import HEADER_BYTES, ServerHandler
from dtrain.roles.parameter_server.machine import ParameterServer
from dtrain.wire.channel import Caller
from dtrain.wire.frames import Frame, Limits, check, described

START_S = 60.0
SCALE = 4096
"""A simulated model has some kB where a real one has some MB: its gradients are longer than what a server lets
pass that holds nothing.
"""


class Server:
    """A parameter server; all but the first follow the first one's decisions.

    Attributes:
        ended: it is not there any more, for good.
        life: of now; between two lives it is `down`.
    """

    def __init__(self, index: int, setup: Setup, network: Network, first: "Server | None") -> None:
        self.name = f"ps:{index}"
        self.index = index
        self.ended = False
        self.down = False
        self._setup = setup
        self._network = network
        self._first = first
        self._last_life: Life | None = None
        self._starts_again = True
        self._begin()

    def _begin(self) -> None:
        life = self.life = Life(self._network.clock)
        self.down = False
        callers: set[Caller] = set()
        setup, allocator = self._setup, ReadBufferAllocator(callers)
        machine = ParameterServer(
            self.index, setup.cluster, setup.training, life.now(), setup.evaluators, allocator=allocator
        )
        hello = Hello(run_id="run", cluster_hash="cluster", task=self.name)
        to_host = partial(self._connect, life, "decisions") if self._first is not None else None
        self.handler = ServerHandler(
            machine, hello, Reporter(self.name, self._network), callers=callers, to_host=to_host, clock=life
        )
        life.start(partial(self._serve, life, self.handler))

    def _connect(self, life: Life, kind: str, timeout_s: float) -> VirtualChannel:
        return self._network.connect(self.name, kind, self._first, life, timeout_s, lambda: True)

    def _serve(self, life: Life, handler: ServerHandler) -> None:
        """As `serve`, without sockets."""
        if self._first is not None:
            heart = partial(self._connect, life, "heartbeat")
            handler.joined(
                HeartbeatLink(
                    "ps:0", heart, handler.reporter, connect_s=START_S, patience_s=float("inf"), clock=life
                )
            )
        self._network.clock.later(TICK_S, self._tick, life, handler)
        handler.ended.wait()
        handler.close()
        assert handler.failure is None or "is gone" in handler.failure, handler.failure
        self._network.say(f"{self.name} ends")
        self.end()

    def _tick(self, life: Life, handler: ServerHandler) -> None:
        """Let time pass for one life, as an event: a thread for it would cost more than what it does."""
        if not (handler.ended.is_set() or life.not_now(self._tick, life, handler)):
            handler.tick()
            self._network.clock.later(TICK_S, self._tick, life, handler)

    @property
    def machine(self) -> ParameterServer:
        return self.handler.machine

    def leader_has_ended(self, *, told: bool) -> None:
        """Be started no more; a life that was `told` ends too, unless it waits for a task that never came."""
        self._starts_again = False
        self._last_life = self.life if told and not self.down else None

    @property
    def has_to_end(self) -> bool:
        """Whether it is still there though all is over."""
        latecomers = self.machine.control.roster.latecomers(self.machine.held)
        return not (self.ended or self.down) and self.life is self._last_life and not latecomers

    def stall(self, for_s: float) -> None:
        """Stand still; what arrives meanwhile waits."""
        self._network.say(f"{self.name} stalls for {for_s:.3f} s")
        self.life.pause(for_s)

    def crash(self, restart_s: float) -> None:
        """Be gone with everything that it held, and started again later."""
        if not (self.down or self.ended):
            self._network.say(f"{self.name} crashes")
            self.down = True
            self._leave()
            self._network.clock.later(restart_s, self._start_again)

    def end(self) -> None:
        """Be gone for good."""
        self.ended = True
        self._network.clock.look()
        self._leave()

    def _leave(self) -> None:
        self.life.end()
        self._network.hang_up(self.life)
        for wire in sorted((wire for wire in self._network.wires if wire.server is self), key=repr):
            wire.breaks()

    def _start_again(self) -> None:
        if self._starts_again and not self.ended:
            self._network.say(f"{self.name} starts again")
            self._begin()

    def heard(self, wire: Wire, message: AnyMessage, blocks: Blocks) -> None:
        """A message has arrived; one that was meant for an earlier life is lost."""
        if wire.server_life is self.life and not self.life.not_now(self.heard, wire, message, blocks):
            if self._network.tells and not isinstance(message, Heartbeat):
                self._network.say(f"{wire} {message}")
            try:
                kept = not blocks or check(described(blocks), self._limits(wire))
            except PeerRefusedError as error:
                wire.answer(Refusal(reason=str(error)))
            else:
                self.handler.received(wire.caller, Frame(message, blocks if kept else ()))

    def _limits(self, wire: Wire) -> Limits:
        """What the handler lets pass, with its constant on the scale of the variables."""
        limits = self.handler.limits(wire.caller.hello)
        return limits._replace(payload=limits.payload - HEADER_BYTES + HEADER_BYTES // SCALE)

    def hung_up(self, wire: Wire) -> None:
        """A connection is gone."""
        if wire.server_life is self.life and not self.life.not_now(self.hung_up, wire):
            self.handler.disconnected(wire.caller)
