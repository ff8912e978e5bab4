"""The simulated leader's orders: the machine of `order`, driven as the real driver drives it, by events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from simulation.model import MARK, RATES
from simulation.network import Blocks, Wire

from dtrain.learning import optimizers
from dtrain.learning.optimizers.schedules import ExponentialDecay
from dtrain.messages import AnyMessage, Control, NotReady, Record, Recorded
from dtrain.roles.chief.order import Order

RECONNECT_S = 0.05
OFTEN = 0.15


def with_rate(optimizer: optimizers.Optimizer, rate: float) -> optimizers.Optimizer:
    """The same rule with another learning rate; a schedule stays one."""
    if isinstance(optimizer.learning_rate, ExponentialDecay):
        return replace(optimizer, learning_rate=replace(optimizer.learning_rate, initial_learning_rate=rate))
    return replace(optimizer, learning_rate=rate)


@dataclass(frozen=True)
class InForce:
    """The last order: as in the real driver."""

    control: Control
    values: Sequence[Blocks]
    mark: float | None
    since: int
    epochs: frozenset[int]


class Commander:
    """Changes the learning rate now and then, holds training at the ends of epochs, and assigns values there.

    Attributes:
        waits: the servers had begun another term: the last order is given again there.
    """

    def __init__(self, process: Any) -> None:
        self._process = process
        self._wires: dict[int, Wire | None] = {}
        self._count = 0
        self._until: int | None = None
        self._generation = 0
        self._term = 0
        self.waits = False
        self._in_force: InForce | None = None
        self._order: Order | None = None
        self._values: Sequence[Blocks] = ()
        self._record: Record | None = None
        self._given: Callable[[Order], None] = lambda order: None
        self._then: Callable[[], None] = lambda: None

    def is_due(self) -> bool:
        """Whether the leader has to give an order, or likes to, before it computes."""
        process, machine = self._process, self._process.machine
        first = self._generation != process.generation
        return first or machine.held or self._reached() or process.network.random.random() < OFTEN

    def _next_until(self) -> int | None:
        """As the real leader: the end of the epoch that the next step belongs to, if anything is done
        there.
        """
        scenario, machine = self._process.setup.scenario, self._process.machine
        if not (scenario.assigns or scenario.seed % 2):
            return None
        epoch = (machine.global_step - machine.first_step) // scenario.steps_per_epoch
        return int(machine.first_step + (epoch + 1) * scenario.steps_per_epoch)

    def _reached(self) -> bool:
        return self._until is not None and self._process.machine.global_step >= self._until

    # First of all

    def _look(self, then: Callable[[], None]) -> None:
        """See what is in force; nothing goes on before the next order."""
        self._then, self._values = then, ()
        self._begin(None, self._looked, term=0, since=0)

    def _looked(self, order: Order) -> None:
        trainee, keeper = self._process.trainee, self._process.keeper
        if order.torn:
            keeper.give_back(trainee.train_on)
            return
        self._generation, self._term, self._in_force = self._process.generation, order.seen.term, None
        self.give(self._then)

    # An order

    def give(self, then: Callable[[], None]) -> None:
        """Order other numbers; where training waits for it, perhaps other values too: those at hand, with
        another mark.
        """
        process, random = self._process, self._process.network.random
        scenario, machine = process.setup.scenario, process.machine
        if self._generation != process.generation:
            self._until = None
            self._look(then)
            return
        rule = optimizers.serialize(with_rate(process.setup.model.optimizer, random.choice(RATES)))
        # In async the other servers' values may have aged, unless they were pulled because training waits.
        waits = self._reached() and (process.setup.sync or machine.held)
        assigns = scenario.assigns and waits and random.random() < 0.7
        self._until, self._then = self._next_until(), then
        mark = float(random.randint(1, 1 << 30)) if assigns else None
        self._values = self._assigned(mark) if mark is not None else ()
        control = Control(
            generation=process.generation,
            number=(0, 0),
            term=0,
            version=0,
            optimizer=rule,
            until=self._until,
        )
        self._begin(control, partial(self._has_given, mark, machine.global_step), term=self._term, since=0)

    def _assigned(self, mark: float) -> list[Blocks]:
        model, values = (
            self._process.setup.model,
            [[block.copy() for block in blocks] for blocks in self._process.trainee.weights],
        )
        for server, blocks in enumerate(values):
            for counter in model.counters(server, blocks):
                counter[MARK] = mark
            blocks.extend(np.zeros(0, np.float32) for _ in model.plan.layout(server).tables)
        return values

    def _has_given(self, mark: float | None, reached: int, order: Order) -> None:
        assert order.control is not None
        since, last, values = (
            reached if order.void else max(order.seen.version, order.since),
            self._in_force,
            self._values,
        )
        if last is not None and last.since == since and not values:
            values, mark = last.values, last.mark
        epochs = frozenset(self._process.trainee.epochs.rows)
        self._in_force = InForce(order.control, values, mark, since, epochs)
        self.waits = order.void
        if not order.void:
            self._term = order.seen.term
        self._say_what_is_in_force()
        self._then()

    def _say_what_is_in_force(self) -> None:
        assert self._in_force is not None
        process, control = self._process, self._in_force.control
        process.network.say(f"{process.task} has ordered {control} from version {self._in_force.since}")
        process.network.judge.leader_ordered(
            control.generation, control.optimizer, self._in_force.since, self._in_force.mark
        )

    # The same order in a new term

    def has_to_repeat(self) -> bool:
        """Whether the servers have begun another term since the last order was given."""
        known = self._in_force is not None and self._generation == self._process.generation
        return known and self._process.machine.term > self._term

    def repeat(self, then: Callable[[], None]) -> None:
        """Give the last order again."""
        last = self._in_force
        assert last is not None
        self._then, self._values = then, last.values
        self._begin(last.control, self._has_repeated, term=self._process.machine.term, since=last.since)
        assert self._order is not None
        self._order.again = True
        self._order.comes_back = not last.epochs <= self._process.trainee.epochs.rows.keys()

    def _has_repeated(self, order: Order) -> None:
        if order.comes_back:
            self._until = order.seen.version  # an epoch begins anew, and with it the order of its beginning
        self.waits = order.void
        if not order.void:
            self._term = order.seen.term
        self._then()

    # What is said

    def _begin(
        self, control: Control | None, given: Callable[[Order], None], *, term: int, since: int
    ) -> None:
        process, self._given, self._count = self._process, given, self._count + 1
        number = process.incarnation, self._count
        self._order = Order(
            len(process.servers), process.generation, number, control, term, since, bool(self._values)
        )
        self._start(self._order)

    def record(self, record: Record, then: Callable[[], None]) -> None:
        """Tell ps:0 of epochs that have ended, or ask it."""
        self._record, self._then = record, then
        self._say(0, record)

    def _start(self, order: Order) -> None:
        if not self._process.not_now(self._start, order):
            self._say_all(order.start())

    def _say_all(self, outgoing: Any) -> None:
        for server, message in outgoing:
            self._say(server, message)

    def _say(self, server: int, message: AnyMessage) -> None:
        if self._wires.get(server) is None:
            self._wires[server] = self._process.connect("orders", server)
        wire = self._wires[server]
        if wire is None:
            self._process.network.clock.later(RECONNECT_S, self._say_again, server, message)
        else:
            brings = isinstance(message, Control) and self._order is not None and self._order.brings_values
            blocks = self._values[server] if brings else ()
            wire.send(message, [block.copy() for block in blocks])

    def _say_again(self, server: int, message: AnyMessage) -> None:
        waiting = self._record is message or (
            self._order is not None and self._order.unanswered.get(server) == message
        )
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
            self._given(order)
        elif not order.unanswered:
            self._process.network.clock.later(RECONNECT_S, self._start, order)

    def _recorded(self, message: AnyMessage) -> None:
        record = self._record
        if isinstance(message, Recorded):
            self._record = None
            self._then() if self._process.trainee.epochs.told(message) else self._process.trainee.train_on()
        else:
            assert isinstance(message, NotReady), message
            self._process.network.clock.later(RECONNECT_S, self._say_again, 0, record)

    def broken(self, wire: Wire) -> None:
        server = self._process.servers.index(wire.server)
        self._wires[server] = None
        if self._record is not None and server == 0:
            self._process.network.clock.later(RECONNECT_S, self._say_again, 0, self._record)
        if self._order is not None and server in self._order.unanswered:
            self._process.network.clock.later(
                RECONNECT_S, self._say_again, server, self._order.unanswered[server]
            )

    def hang_up(self) -> None:
        for wire in self._wires.values():
            if wire is not None:
                wire.cut()
        self._wires.clear()
