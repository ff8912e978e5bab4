"""Several hosts on a virtual network, from one seed: the shipped agents, schedules and sums, on links that delay, are
cut, are cut in one direction only, and heal, and hosts that die at any moment, stand still, or leave at their end.

As on real links, a host that was dropped from the membership is heard if it lives, and whoever finds that all
processes of a host have ended has heard all that they have said.
"""

import heapq
from collections import defaultdict, deque
from functools import partial
from itertools import count
from random import Random

import numpy as np

from dtrain.collectives.between_hosts.agent import BEAT_S, Agent
from dtrain.collectives.between_hosts.all_reduce import (
    ElementRange,
    SendBlock,
    Terms,
    carry_out,
    ordered_chain,
)
from dtrain.collectives.between_hosts.follower import Apply, BeginAttempt, ComputeParts, Vote
from dtrain.messages.replicas import PartFacts, Seat

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
    """One host: the memory that its replicas share, and the agent and the sum of the one that speaks for it."""

    def __init__(self, net, number, seats, weights=None, step=0, version=0, **told):
        self.net, self.number, self.version = net, number, version
        self.weights = (net.expected[0] if weights is None else weights).copy()
        self.live = list(seats[number])
        self.first, self.applied = step, []
        self.gradients = {}
        self.mean, self.whole, self.group = None, False, None
        self.dead, self.doomed, self.stopped_until = False, False, 0.0
        self.ending = False
        self.vote = Vote.first(number, seats, step, **told)
        self.speaks()

    @property
    def at(self):
        """The step that the memory makes."""
        return self.first + len(self.applied)

    def speaks(self):
        """The next heir goes on from what is in memory; without one that lives the host has ended."""
        successor = next((seat for seat in self.vote.successors if seat in self.live), None)
        if successor is None:
            self.net.kill(self.number)
            return
        self.proxy = successor
        self.known = {number: set(seats) for number, seats in self.vote.seats.items()}
        self.heard_seats = None
        self.live.sort(key=lambda seat: seat != successor)
        self.sum = self.ways = None
        about = self.vote.spoken_by(successor.rank), self.net.parts, LEASE_S, self.net.now
        self.agent = Agent(*about, needed=self.net.needed, commits=self.at < self.vote.step)
        self.agent.seated(self.live)
        for part in self.gradients:
            self.net.later(self.net.random.choice((0.0, 0.03)), self.tell, part)

    def tell(self, part):
        """What has been computed before is found in memory, a little later."""
        if self.agent is not None and part in self.gradients:
            self.complete(part)
            self.wake()

    def wake(self):
        """Carry out what follows from the last event; a replica that is doomed dies in the midst of it."""
        if self.dead or self.agent is None:
            return
        self.agent.arrive(self.agent.step)
        messages, actions = self.agent.drain(self.net.now)
        self.vote = self.agent.vote
        if self.agent.seats is not self.heard_seats:  # each direction brings other ones
            self.heard_seats = self.agent.seats
            for number, seats in self.heard_seats.items():
                self.known.setdefault(number, set()).update(seats)
        if self.agent.leads_in:
            self.net.begins(self.agent._leading.direction)
        work = [partial(self.net.send, self.number, other, message) for other, message in messages]
        work += [partial(self.carry_out, action) for action in actions]
        dies = self.doomed and bool(work)
        for each in work[: self.net.random.randrange(len(work) + 1) if dies else None]:
            each()
        if dies:
            self.doomed = False
            self.net.end(self.number, self.proxy)
        elif actions:
            self.wake()
        else:
            self.welcome(self.agent.step)
        if self.net.ends and not self.ending and (self.version >= self.net.steps or self.vote.left_behind):
            self.ending = True
            self.net.later(self.net.random.uniform(0.01, 0.4), self.net.leave, self)

    def carry_out(self, action):
        match action:
            case ComputeParts(parts):
                for part in parts:
                    if part not in self.gradients:
                        later = self.net.random.uniform(0.001, 0.05)
                        self.net.later(later, self.computed, self.agent.step, part)
            case BeginAttempt():
                assert action.seats[self.number][0] == self.proxy, "a sum of the replica that speaks"
                self.sum = Exchange(self, action)
            case Apply(step, parts, void):
                assert [facts.part for facts in parts] == ([] if void else list(range(self.net.parts)))
                self.apply(step, void)

    def computed(self, step, part):
        if self.net.waits(self, self.computed, step, part):
            return
        if self.dead or step != self.at or self.version >= self.net.steps:
            return
        self.gradients[part] = gradient(self.weights, part, self.version)
        if self.agent is not None and self.agent.step == step:
            self.complete(part)
            self.wake()

    def complete(self, part):
        if self.agent.step == self.at:
            self.agent.complete(PartFacts(part=part, examples=1, finite=True, rank=self.vote.host))

    def apply(self, step, void):
        assert self.applied == list(range(self.first, step)), "every step once, in order"
        assert self.whole, "nothing is applied but a whole mean"
        self.applied.append(step)
        for other in self.net.groups[step]:
            assert self.group <= other or other <= self.group, f"{self.group} and {other} went on"
        self.net.groups[step].add(self.group)
        self.gradients = {}
        mean, self.mean, self.whole, self.sum = self.mean, None, False, None
        if void:
            return
        self.weights = self.weights - np.float32(0.1) * mean
        self.version += 1
        expected = self.net.expected[self.version]
        if self.net.schedule is ordered_chain:
            assert self.weights.tobytes() == expected.tobytes(), f"bits of step {step}"
        assert np.abs(self.weights - expected).max() < 1e-4, f"every part of step {step} once"

    def welcome(self, step):
        """Send hosts that take part newly the weights, as the leader does."""
        welcome = self.agent.welcome
        for number in self.agent.seats if welcome else ():
            if number in welcome and number not in self.net.numbers:
                self.net.numbers.add(number)
                about = {"term": self.agent.leads_in, "membership": self.agent.membership}
                now = self.weights.copy(), step, self.version
                node = partial(Node, self.net, number, dict(self.agent.seats), *now)
                self.net.later(self.net.delay(), self.net.come_back, self, node, about)

    def stream(self, way):
        """A stream between two replicas, as this host knows them by the attempt for which it was opened."""
        attempt, proxies = self.ways
        return way, attempt, proxies[way.source], proxies[way.target]

    def tick(self):
        if self.net.waits(self, self.tick):
            return
        if not self.dead and not (self.agent is not None and self.agent.left_behind):
            self.wake()
            self.net.later(BEAT_S, self.tick)


class Exchange:
    """One attempt at one sum at one host."""

    def __init__(self, node, begin):
        self.node, self.begin, self.complete = node, begin, False
        net = node.net
        node.whole, node.group = False, frozenset(begin.hosts)
        if node.ways is None or node.ways[0] != begin.attempt:  # else the streams of the step before are used
            node.ways = begin.attempt, {host: seats[0] for host, seats in begin.seats.items()}
        if begin.void:
            self.running, self.waiting = {}, {}
            self.finish()
            return
        own = begin.parts_of[node.number]
        assert [facts.part for facts in begin.parts] == list(range(net.parts)), "all parts, in order"
        node.mean = mean = np.full(ELEMENTS, np.nan, np.float32)
        terms = Terms({part: node.gradients[part] for part in own}, net.parts)
        flows = net.schedule(begin.hosts, node.number, begin.parts_of, ElementRange(0, ELEMENTS), LENGTH)
        self.running = {at: carry_out(flow, terms, mean) for at, flow in enumerate(flows)}
        self.waiting = {}
        for at in list(self.running):
            self.go_on(at)
        self.finish()

    def go_on(self, at):
        for step in self.running[at]:
            if isinstance(step, SendBlock):
                self.node.net.stream(self, step.way, step.block.tolist())
                continue
            self.waiting[at] = step
            if not self.took(at):
                deadline = self.node.net.random.uniform(0.5, 1.0) * self.node.net.silent_s
                self.node.net.later(deadline, self.silent, at, step)
                return
        del self.running[at]

    def took(self, at):
        step = self.waiting[at]
        come = self.node.net.come[self.node.stream(step.way)]
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
            self.complete = self.node.whole = True
            self.node.agent.has_mean(self.begin.attempt)

    def silent(self, at, step):
        if self.node.net.waits(self.node, self.silent, at, step):
            return
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
        self.cut, self.silent_s = set(), SILENT_S
        self.groups = defaultdict(set)
        self.come = defaultdict(deque)
        self._sent_until, self._said_until = defaultdict(float), defaultdict(float)
        self.ends = (
            False  # whether hosts leave when they have finished, and those left behind are started again
        )
        self.broken, self.addresses = set(), count()
        seats = {number: tuple(map(self.seat, own)) for number, own in enumerate(ranks)}
        self.nodes = {}
        for number in seats:
            self.nodes[number] = Node(self, number, seats)
        self.numbers = set(self.nodes)
        for node in self.nodes.values():
            self.later(self.random.uniform(0, 0.05), node.tick)

    def seat(self, rank):
        """A process of a rank, at an address of its own."""
        return Seat(rank=rank, task=f"worker:{rank}", address=f"at {next(self.addresses)}")

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
            delay = self.delay()
            self._said_until[source, target] = max(self._said_until[source, target], self.now + delay)
            self.later(delay, self.deliver, source, target, message)

    def deliver(self, source, target, message):
        node = self.nodes[target]
        if self.waits(node, self.deliver, source, target, message):
            return
        if not node.dead and node.agent is not None and (source, target) not in self.cut:
            node.agent.received(source, message, self.now)
            node.wake()

    def stream(self, exchange, way, elements):
        """Bytes keep their order; on a link that is cut they are lost, and no end need hear of it."""
        key = exchange.node.stream(way)
        at = max(self._sent_until[key], self.now + self.delay() / 4)
        self._sent_until[key] = at
        self.later(at - self.now, self.arrive, key, elements)

    def arrive(self, stream, elements):
        way, _, source, _ = stream
        if way.target in self.nodes and self.waits(self.nodes[way.target], self.arrive, stream, elements):
            return
        ended = not self.lives(way.source, source)
        if (way.source, way.target) in self.cut or (ended and self.random.random() < 0.5):
            self.broken.add(stream)
        if stream in self.broken:
            return
        node = self.nodes.get(way.target)  # one that comes may not be there yet
        self.come[stream].extend(elements)
        if node is not None and not node.dead and node.sum is not None:
            node.sum.heard()
            node.wake()

    def lives(self, number, seat):
        return number in self.nodes and not self.nodes[number].dead and seat in self.nodes[number].live

    def kill(self, number):
        """All processes of a host end."""
        node = self.nodes[number]
        for seat in list(node.live):
            node.live.remove(seat)
            self.tell_of_end(number, seat)
        node.dead, node.agent, node.sum = True, None, None

    def doom(self, number):
        """The replica that speaks for a host dies in the midst of what it does next."""
        self.nodes[number].doomed = not self.nodes[number].dead

    def end(self, number, seat=None):
        """One replica of a host ends, by default the one that speaks; the next one hears of that."""
        node = self.nodes[number]
        seat = seat or node.proxy
        if node.dead or seat not in node.live:
            return
        node.live.remove(seat)
        self.tell_of_end(number, seat)
        if seat == node.proxy:
            node.agent, node.sum = None, None
            self.later(self.random.uniform(0.001, 0.1), self.take_over, node)
        elif node.agent is not None:
            node.agent.seated(node.live)

    def take_over(self, node):
        if node.dead:
            return
        node.speaks()
        node.wake()
        for number in node.known:
            if number != node.number:
                self.later(self.random.uniform(0.002, 0.04), self.ended, node, number, None)

    def enter(self, number, rank):
        """A replica is started at a host that takes part."""
        node = self.nodes[number]
        if not node.dead and node.agent is not None and all(seat.rank != rank for seat in node.live):
            node.live.append(self.seat(rank))
            node.agent.seated(node.live)

    def tell_of_end(self, number, seat):
        for other in list(self.nodes.values()):
            if not other.dead and not {(number, other.number), (other.number, number)} & self.cut:
                heard = self._said_until[number, other.number] - self.now
                self.later(max(heard, self.random.uniform(0.002, 0.04)), self.ended, other, number, seat)

    def ended(self, node, number, seat):
        """The kernel of a dead process closes its connections, if the link lets it through. Its host is gone if
        no replica that is known listens at its address.
        """
        if node.dead or node.agent is None or (number, node.number) in self.cut:
            return
        if self.waits(node, self.ended, node, number, seat):
            return
        if not any(self.lives(number, each) for each in node.known.get(number, ())):
            node.agent.gone(number)
        if node.sum is not None and node.sum.begin.seats.get(number, ())[:1] == (seat,):
            node.sum.fail(number)
        node.wake()

    def start_again(self, rank, address):
        """A replica of a host that is dead asks the leader to let it in, until it takes part or is told not to."""
        there = [node for node in self.nodes.values() if not (node.dead or node.vote.left_behind)]
        if any(seat.rank == rank and seat.address == address for node in there for seat in node.live):
            return
        for node in there:
            if node.agent is not None and node.agent.leads_in:
                node.agent.admit([Seat(rank=rank, task=f"worker:{rank}", address=address)])
        self.later(0.3, self.start_again, rank, address)

    def come_back(self, leader, node, about):
        """The weights arrive, if the leader has lived long enough."""
        if not leader.dead and leader.agent is not None:
            made = node(**about)
            self.nodes[made.number] = made
            made.tick()

    def sever(self, links, heal_s):
        """Cut links, for a while."""
        self.cut |= links
        if heal_s is not None:
            self.later(heal_s, self.heal, links)

    def heal(self, links):
        """Mend links; whoever has ended meanwhile is found to have."""
        self.cut -= links
        for node in list(self.nodes.values()):
            if node.dead:
                self.tell_of_end(node.number, node.proxy)

    def stop(self, number, for_s):
        """All processes of a host stand still; what comes meanwhile waits, in its order."""
        self.nodes[number].stopped_until = self.now + for_s

    def waits(self, node, event, *words):
        """Put an event off, if its host stands still."""
        if (waits := node.stopped_until > self.now) and not node.dead:
            self.later(node.stopped_until - self.now, event, *words)
        return waits

    def leave(self, node):
        """All processes of a host end, as it has finished or was left behind; in this case others are started."""
        if self.waits(node, self.leave, node) or node.dead:
            return
        ranks = [seat.rank for seat in node.live]
        self.kill(node.number)
        for rank in ranks if node.vote.left_behind else ():
            self.later(self.random.uniform(0.05, 0.5), self.start_again, rank, f"at {next(self.addresses)}")
