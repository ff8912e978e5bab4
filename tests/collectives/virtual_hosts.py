"""Several hosts on a virtual network, from one seed: the shipped agents, schedules and sums, on links that delay, are
cut, are cut in one direction only, and heal, and hosts that die at any moment.
"""

import heapq
from collections import defaultdict, deque
from functools import partial
from itertools import count
from random import Random

import numpy as np

from dtrain.collectives.between_hosts.agent import BEAT_S, Agent
from dtrain.collectives.between_hosts.carrying_out import Send, carry_out
from dtrain.collectives.between_hosts.following import Apply, Begin, Compute
from dtrain.collectives.between_hosts.ordered_chain import ordered_chain
from dtrain.collectives.between_hosts.segments import Span
from dtrain.collectives.between_hosts.terms import Terms
from dtrain.messages.between_hosts import PartFacts, Seat

ELEMENTS, LENGTH = 7, 2
LEASE_S, SILENT_S = 2.0, 0.6
"""A lease, which is more beats than links blink in a scene, and how long a sum waits for bytes."""


def gradient(weights, part, step):
    """Of one part of one step: any function of the weights that no two parts share."""
    return weights * np.float32(0.1 * (part + 1)) + np.float32(1 / (1 + part + 7 * step))


def trajectory(parts, steps):
    """The weights before each step, as one process makes them."""
    weights = [np.linspace(-1, 1, ELEMENTS, dtype=np.float32)]
    for step in range(steps):
        total = gradient(weights[-1], 0, step)
        for part in range(1, parts):
            total = total + gradient(weights[-1], part, step)
        weights.append(weights[-1] - np.float32(0.1) * (total / np.float32(parts)))
    return weights


class Node:
    """One host: an agent, its variables, and the sum that is under way."""

    def __init__(self, net, number, seats, weights=None, step=0, hosts=(), version=0, **joined):
        self.net, self.number, self.version = net, number, version
        self.weights = (net.expected[0] if weights is None else weights).copy()
        self.seats = seats
        hosts = hosts or range(len(net.ranks))
        about = number, hosts, seats, net.parts, LEASE_S, net.now, step
        self.agent = Agent(*about, needed=net.needed, **joined)
        self.dead = False
        self.first, self.applied = step, []
        self.gradients = {}
        self.sum = None

    def wake(self):
        """Carry out what follows from the last event."""
        if self.dead:
            return
        self.agent.arrive(self.agent.step)
        messages, actions = self.agent.take(self.net.now)
        if self.agent.leads_in:
            self.net.begins(self.agent._leading.direction)
        for other, message in messages:
            self.net.send(self.number, other, message)
        for action in actions:
            match action:
                case Compute(parts):
                    for part in parts:
                        if part not in self.gradients:
                            self.net.later(
                                self.net.random.uniform(0.001, 0.05), self.computed, self.agent.step, part
                            )
                case Begin():
                    self.sum = Exchange(self, action)
                case Apply(step, parts, void):
                    assert [facts.part for facts in parts] == ([] if void else list(range(self.net.parts)))
                    self.apply(step, void)
        if actions:
            self.wake()
        else:
            self.welcome(self.agent.step)

    def computed(self, step, part):
        if self.dead or step != self.agent.step or self.version >= self.net.steps:
            return
        self.gradients[part] = gradient(self.weights, part, self.version)
        self.agent.complete(PartFacts(part=part, examples=1, finite=True, rank=self.seats[0].rank))
        self.wake()

    def apply(self, step, void):
        assert self.applied == list(range(self.first, step)), "every step once, in order"
        assert self.sum.complete, "nothing is applied but a whole mean"
        self.applied.append(step)
        group = frozenset(self.sum.begin.hosts)
        for other in self.net.groups[step]:
            assert group <= other or other <= group, f"{group} and {other} went on without each other"
        self.net.groups[step].add(group)
        self.gradients = {}
        mean, self.sum = self.sum.mean, None
        if void:
            return
        self.weights = self.weights - np.float32(0.1) * mean
        self.version += 1
        expected = self.net.expected[self.version]
        if self.net.schedule is ordered_chain:
            assert self.weights.tobytes() == expected.tobytes(), f"bits of step {step}"
        assert np.allclose(self.weights, expected, atol=1e-4), f"every part of step {step} once"

    def welcome(self, step):
        """Send hosts that take part newly the weights, as the leader does."""
        for number, seats in self.agent.seats.items():
            if number in self.agent.welcome and number not in self.net.numbers:
                self.net.numbers.add(number)
                about = {"term": self.agent.leads_in, "membership": self.agent.membership}
                now = self.weights.copy(), step, tuple(self.agent.hosts), self.version
                node = partial(Node, self.net, number, list(seats), *now)
                self.net.later(self.net.delay(), self.net.come_back, self, node, about)

    def tick(self):
        if not self.dead and not self.agent.left_behind:
            self.wake()
            self.net.later(BEAT_S, self.tick)


class Exchange:
    """One attempt at one sum at one host."""

    def __init__(self, node, begin):
        self.node, self.begin, self.complete = node, begin, False
        net = node.net
        if begin.void:
            self.mean, self.running, self.waiting = None, {}, {}
            self.finish()
            return
        own = begin.parts_of[node.number]
        assert [facts.part for facts in begin.parts] == list(range(net.parts)), "all parts, in order"
        self.mean = np.full(ELEMENTS, np.nan, np.float32)
        terms = Terms({part: node.gradients[part] for part in own}, net.parts)
        flows = net.schedule(begin.hosts, node.number, begin.parts_of, Span(0, ELEMENTS), LENGTH)
        self.running = {at: carry_out(flow, terms, self.mean) for at, flow in enumerate(flows)}
        self.waiting = {}
        for at in list(self.running):
            self.go_on(at)
        self.finish()

    @property
    def current(self):
        return self.node.sum is self or self.node.sum is None

    def go_on(self, at):
        for step in self.running[at]:
            if isinstance(step, Send):
                self.node.net.stream(self, step.way, step.block.tolist())
                continue
            self.waiting[at] = step
            if not self.took(at):
                deadline = self.node.net.random.uniform(0.5, 1.0) * SILENT_S
                self.node.net.later(deadline, self.silent, at, step)
                return
        del self.running[at]

    def took(self, at):
        step = self.waiting[at]
        come = self.node.net.come[self.node.number, self.begin.attempt, step.way]
        if len(come) < step.block.size:
            return False
        step.block[...] = [come.popleft() for _ in step.block]
        del self.waiting[at]
        return True

    def heard(self):
        for at in list(self.waiting):
            if self.took(at):
                self.go_on(at)
        self.finish()

    def finish(self):
        if not self.running and not self.complete:
            self.complete = True
            self.node.agent.has_mean(self.begin.attempt)

    def silent(self, at, step):
        if self.waiting.get(at) is step and self.node.sum is self:
            self.fail(step.way.source)

    def fail(self, blamed):
        if not self.node.dead and self.node.sum is self and not self.complete:
            self.node.agent.failed(self.begin.attempt, blamed)
            self.node.wake()


class Net:
    """The hosts, the links between each two in each direction, and what happens when."""

    def __init__(self, seed, ranks, steps, schedule, needed=0):
        self.random = Random(seed)
        self.needed, self.begun = needed, set()
        self.ranks, self.steps, self.schedule = ranks, steps, schedule
        self.parts = sum(map(len, ranks))
        self.expected = trajectory(self.parts, steps)
        self.now, self._order, self._events = 0.0, count(), []
        self.cut = set()
        self.groups = defaultdict(set)
        self.come = defaultdict(deque)
        self._sent_until = defaultdict(float)
        seats = [[Seat(rank=rank, task=f"worker:{rank}", address="") for rank in own] for own in ranks]
        self.nodes = {number: Node(self, number, own) for number, own in enumerate(seats)}
        self.numbers = set(self.nodes)
        for node in self.nodes.values():
            self.later(self.random.uniform(0, 0.05), node.tick)

    def begins(self, told):
        """A leader lets a step begin: with as many replicas as are needed, unless it had begun before."""
        if told.step < 0 or told.held >= 0 or told.void or told.step in self.begun:
            return
        self.begun.add(told.step)
        live = {seat.rank for seats in told.seats.values() for seat in seats}
        assert len(live) >= self.needed, f"step {told.step} begins with {len(live)} of {self.needed}"

    def later(self, delay_s, run, *words):
        heapq.heappush(self._events, (self.now + delay_s, next(self._order), partial(run, *words)))

    def run(self, until_s, done):
        while self._events and self._events[0][0] <= until_s and not done():
            self.now, _, event = heapq.heappop(self._events)
            event()

    def delay(self):
        return self.random.choice((0.001, 0.004, 0.02, 0.08))

    def send(self, source, target, message):
        if (source, target) not in self.cut and target in self.nodes:
            self.later(self.delay(), self.deliver, source, target, message)

    def deliver(self, source, target, message):
        node = self.nodes[target]
        if not node.dead and (source, target) not in self.cut:
            node.agent.received(source, message, self.now)
            node.wake()

    def stream(self, exchange, way, elements):
        """Bytes keep their order; on a link that is cut they are lost, and no end need hear of it."""
        key = way.source, way.target, exchange.begin.attempt, way.label
        at = max(self._sent_until[key], self.now + self.delay() / 4)
        self._sent_until[key] = at
        self.later(at - self.now, self.arrive, exchange.begin, way, elements)

    def arrive(self, begin, way, elements):
        if (way.source, way.target) in self.cut or (
            self.nodes[way.source].dead and self.random.random() < 0.5
        ):
            return
        node = self.nodes.get(way.target)  # one that comes may not be there yet
        self.come[way.target, begin.attempt, way].extend(elements)
        if (
            node is not None
            and not node.dead
            and node.sum is not None
            and node.sum.begin.attempt == begin.attempt
        ):
            node.sum.heard()
            node.wake()

    def kill(self, number):
        node = self.nodes[number]
        node.dead = True
        for other in self.nodes.values():
            if not other.dead and not {(number, other.number), (other.number, number)} & self.cut:
                self.later(self.random.uniform(0.002, 0.04), self.ended, other, number)

    def ended(self, node, number):
        """The kernel of a dead host's processes closes their connections, if the link lets it through."""
        if node.dead or (number, node.number) in self.cut:
            return
        node.agent.gone(number)
        if node.sum is not None:
            node.sum.fail(number)
        node.wake()

    def start_again(self, rank, address):
        """A replica of a host that is dead asks the leader to let it in, until it takes part or is told not to."""
        there = [node for node in self.nodes.values() if not (node.dead or node.agent.left_behind)]
        if any(seat.rank == rank and seat.address == address for node in there for seat in node.seats):
            return
        for node in there:
            if node.agent.leads_in:
                node.agent.admit([Seat(rank=rank, task=f"worker:{rank}", address=address)])
        self.later(0.3, self.start_again, rank, address)

    def come_back(self, leader, node, about):
        """The weights arrive, if the leader has lived long enough."""
        if not leader.dead:
            made = node(**about)
            self.nodes[made.number] = made
            made.tick()

    def sever(self, links, heal_s):
        """Cut links, for a while."""
        self.cut |= links
        if heal_s is not None:
            self.later(heal_s, self.cut.difference_update, links)
