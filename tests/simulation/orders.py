"""The simulated leader's orders: the machine of `order`, driven as the real driver drives it, by events."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simulation.network import Wire

from dtrain.learning import optimizers
from dtrain.messages import AnyMessage, Control, NotReady, Record, Recorded
from dtrain.roles.chief.order import Order

RECONNECT_S = 0.05
OFTEN = 0.15


class Commander:
    """Changes the learning rate now and then, and lets training go on to a few versions further each time."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._wires: dict[int, Wire | None] = {}
        self._count = 0
        self._optimizer: optimizers.Optimizer = optimizers.SGD()
        self._until: int | None = None
        self._generation = 0
        self._order: Order | None = None
        self._record: Record | None = None
        self._then: Callable[[], None] = lambda: None

    def is_due(self) -> bool:
        """Whether the leader has to give an order, or likes to, before it computes."""
        process, machine = self._process, self._process.machine
        first = self._generation != process.generation
        # A push that reaches some servers only makes them count differently: then there is no version in common.
        together = process.judge.sync or (process.judge.scenario.harmless and process.judge.scenario.training.max_staleness is None)
        reached = self._until is not None and machine.global_step >= self._until
        return together and (first or machine.held or reached or process.network.random.random() < OFTEN)

    def give(self, then: Callable[[], None]) -> None:
        process, random = self._process, self._process.network.random
        self._generation, self._then, self._count = process.generation, then, self._count + 1
        self._optimizer = replace(process.judge.model.optimizer, learning_rate=random.choice((0.1, 0.2, 0.4)))
        self._until = process.machine.global_step + random.randint(1, 4) if random.random() < 0.5 else None
        rule = optimizers.serialize(self._optimizer)
        control = Control(process.generation, (0, 0), 0, 0, rule, until=self._until)
        self._order = Order(len(process.servers), process.generation, (process.incarnation, self._count), control)
        self._begin(self._order)

    def record(self, record: Record, then: Callable[[], None]) -> None:
        """Tell ps:0 of epochs that have ended, or ask it."""
        self._record, self._then = record, then
        self._say(0, record)

    def _begin(self, order: Order) -> None:
        if not self._process.not_now(self._begin, order):
            self._say_all(order.start())

    def _say_all(self, outgoing: Any) -> None:
        for server, message in outgoing:
            self._say(server, message)

    def _say(self, server: int, message: AnyMessage) -> None:
        if isinstance(message, Control):
            self._process.judge.ordered(message.term, message.version, self._optimizer)
        if self._wires.get(server) is None:
            self._wires[server] = self._process.connect("orders", server)
        wire = self._wires[server]
        if wire is None:
            self._process.network.clock.later(RECONNECT_S, self._say_again, server, message)
        else:
            wire.send(message)

    def _say_again(self, server: int, message: AnyMessage) -> None:
        waiting = self._record is message or (self._order is not None and self._order.unanswered.get(server) == message)
        if not self._process.not_now(self._say_again, server, message) and waiting:
            self._say(server, message)

    def answered(self, wire: Wire, message: AnyMessage) -> None:
        server, order = self._process.servers.index(wire.server), self._order
        if self._record is not None:
            self._recorded(message)
            return
        if order is None or server not in order.unanswered:
            return
        self._say_all(order.receive(server, message))
        if order.done:
            self._order = None
            rate = self._optimizer.learning_rate
            self._process.network.say(f"{self._process.task} has ordered {rate} from version {order.seen.version}")
            self._then()
        elif not order.unanswered:
            self._process.network.clock.later(RECONNECT_S, self._begin, order)

    def _recorded(self, message: AnyMessage) -> None:
        record = self._record
        if isinstance(message, Recorded):
            self._record = None
            self._then() if self._process.epochs.told(message) else self._process.train_on()
        else:
            assert isinstance(message, NotReady), message
            self._process.network.clock.later(RECONNECT_S, self._say_again, 0, record)

    def broken(self, wire: Wire) -> None:
        server = self._process.servers.index(wire.server)
        self._wires[server] = None
        if self._record is not None and server == 0:
            self._process.network.clock.later(RECONNECT_S, self._say_again, 0, self._record)
        if self._order is not None and server in self._order.unanswered:
            self._process.network.clock.later(RECONNECT_S, self._say_again, server, self._order.unanswered[server])

    def hang_up(self) -> None:
        for wire in self._wires.values():
            if wire is not None:
                wire.cut()
        self._wires.clear()
