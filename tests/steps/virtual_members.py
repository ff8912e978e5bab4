"""Members of several hosts on a virtual network, from one seed: the shipped machines of docs/design/steps.md.

A process may end between any two messages, or in the midst of what follows from one; it may stand still, and live.
Links between hosts delay, are cut, are cut in one direction only, and heal. Memory of a host outlives its processes, and
what one had begun to write there stays half written. As on real links, what one process says to another comes in its
order; a member that was dropped is heard if it lives; whoever finds that a process has ended has heard all that it has
said; and processes leave when they have finished.

The judge knows the gradients, and the rule that makes values of them; it shares no rule of the product.
"""

import heapq
from collections import defaultdict, deque
from functools import partial
from itertools import count
from random import Random

import numpy as np

from dtrain.collectives.all_reduce import (
    SendBlock,
    Terms,
    carry_out,
    ordered_chain,
    slices,
)
from dtrain.messages.rounds import CompletePart, Known, MemberSeat, RoundMade
from dtrain.state.batch_cut import Dealt
from dtrain.steps.follower import (
    AbandonAttempt,
    CommitRound,
    ComputeDeals,
    HoldRound,
    LeaveRun,
    Reduce,
    SkipRounds,
    leader_of,
)
from dtrain.steps.member import BEAT_S, HostMemory, RoundMember
from dtrain.steps.round_parts import RoundRules

ELEMENTS, LENGTH = 7, 2
LEASE_S, SILENT_S = 2.0, 0.6
"""A lease, which is more beats than links blink in a scene, and how long a sum waits for bytes."""
FIRST = np.linspace(-1, 1, ELEMENTS, dtype=np.float32)


def gradient(values, part):
    """Of one part: any function of the values that no two parts share."""
    return values * np.float32(0.01 * (1 + part % 7)) + np.float32(1 / (1 + part))


def after(values, parts):
    """The values that one process makes of these parts, in this order."""
    total = gradient(values, parts[0])
    for part in parts[1:]:
        total = total + gradient(values, part)
    return values - np.float32(0.1) * (total / np.float32(len(parts)))


def moved(table, parts):
    """The rows of a table after these parts: what is done twice shows."""
    for part in parts:
        table = table * np.float32(1 + 0.01 * (part % 5)) + np.float32(1 / (1 + part))
    return table


class Memory:
    """What the processes of one host share: two sides of values, complete gradients by their places; a table that is there
    once, new rows beside it, the means over hosts, and the note of what makes a round.
    """

    def __init__(self, name, side, values, table=FIRST):
        self.name, self.newest = name, side
        self.table, self.rows = table.copy(), np.full(ELEMENTS, np.nan, np.float32)
        self.means, self.note = np.full(ELEMENTS, np.nan, np.float32), (-1, None)
        self.sides = {side % 2: values.copy(), (side + 1) % 2: np.full(ELEMENTS, np.nan, np.float32)}
        self.gradients, self.writers = {}, {}
        self.leader = self.standing = self.writer = None

    def at(self, side):
        return self.sides[side % 2]

    def take_lead(self, process):
        """Of the processes that live one leads, even if it stands still."""
        if self.leader is None or self.leader.dead:
            self.leader = process
        return self.leader is process

    def write(self, process, standing):
        assert self.leader is process, "one leads"
        self.standing, self.writer = standing, process

    def begins_to_write(self, place, process):
        """A place of a gradient is written by one live process at a time."""
        before = self.writers.get(place)
        assert (
            before in (None, process) or before.dead or before.busy is None or before.busy.place != place
        ), place
        self.writers[place] = process

    def gradient_of(self, done):
        """What a lane adds up; one of an attempt that was given up long ago finds anything, and must not count."""
        part, found = self.gradients[done.place]
        return found if part == done.part else np.full(ELEMENTS, np.nan, np.float32)

    def beside(self, side):
        """The side that is written from `side` on; for whoever is not up to date it may hold anything."""
        self.newest = max(self.newest, side + 1)
        return self.sides[(side + 1) % 2]


class Process:
    """One process: its member, what it computes, and the lanes that it reduces."""

    def __init__(self, net, seat, memory, known, **begin):
        self.net, self.seat, self.number, self.memory = net, seat, seat.number, memory
        self.dead = self.doomed = self.ending = False
        self.left_behind = False
        self.stopped_until = 0.0
        self.work, self.busy, self.started = deque(), None, set()
        self.side = known.side
        self.history = net.start
        self.lanes = None
        self.version, self.live = known.version, -1
        self.ordered = None
        self.member = RoundMember(seat.number, known, net.rules, net.lease_s, net.now, **begin)
        self.member.carrying = lambda round_: memory.note[1] if memory.note[0] == round_ else None
        if net.rules.passes_silent:
            about = partial(memory.take_lead, self), lambda: memory.standing, partial(memory.write, self)
            self.member.share(HostMemory(*about))
        self.first = self.member.round

    @property
    def finished(self):
        return self.version >= self.net.steps

    def host_of(self, number):
        return self.member.members[number].host

    def wake(self):
        """Carry out what follows from the last event; a process that is doomed ends in the midst of it."""
        while not (self.dead or self.left_behind):
            self.member.arrive(self.member.round, ordered=self.ordered)
            sent, actions = self.member.drain(self.net.now)
            work = [partial(self.net.send, self, number, message) for number, message in sent]
            work += [partial(self.carry_out, action) for action in actions]
            for each in work:
                if self.net.dies_now(self):
                    return
                each()
            for welcomed in self.member.welcome:
                self.net.welcome(self, *welcomed)
            self.compute()
            if not actions:
                break
        if self.net.ends and not self.ending and (self.finished or self.left_behind):
            self.ending = True
            self.net.later(self.net.random.uniform(0.01, 0.4), self.net.leave, self)

    def carry_out(self, action):
        match action:
            case ComputeDeals(deals):
                self.net.begins(self)
                self.work = deque(deal for deal in deals if deal not in self.started)
            case Reduce(round_, attempt):
                assert round_ == self.member.round
                self.lanes = Lanes(self, round_, attempt)
                self.lanes.begin()
            case AbandonAttempt():
                self.lanes = None
            case CommitRound(round_, made):
                self.commit(round_, made)
            case SkipRounds(round_, version, side):
                self.lanes, self.ordered, self.version, self.side = None, None, version, side
                teller = self.net.processes[leader_of(self.member.term)]
                if teller is self:  # it leads, by what others of the host or of its members have told
                    others = [
                        each for each in self.net.processes.values() if each.history.round >= round_ - 1
                    ]
                    newest = max(others, key=lambda each: each.member.term, default=self)
                    teller = self.memory.writer or newest
                self.history = teller.history.until(round_)
                if self.history.round < round_ - 1:  # it has ended before it went on itself
                    self.history = self.net.after(self.history, round_ - 1, self.member.known.made)
            case HoldRound(_, live):
                self.live = live
            case LeaveRun():
                self.left_behind, self.lanes = True, None

    # Gradients

    def compute(self):
        """Begin the next part, if none is under way; a slow process takes longer."""
        if self.busy is not None or not self.work or self.finished:
            return
        self.busy = self.work.popleft()
        self.started.add(self.busy)
        self.member.begins(self.busy)
        self.memory.begins_to_write(self.busy.place, self)
        self.net.later(self.net.compute_s(self), self.computed, self.busy, self.member.round)

    def computed(self, deal, round_):
        if self.net.waits(self, self.computed, deal, round_) or self.dead:
            return
        self.busy = None
        if round_ == self.member.round:
            self.memory.gradients[deal.place] = deal.part, gradient(self.memory.at(self.side), deal.part)
        examples = 0 if deal.part in self.net.without_examples else 1
        finite = deal.part not in self.net.infinite
        part = CompletePart(
            part=deal.part, examples=examples, finite=finite, holder=self.number, place=deal.place
        )
        self.member.complete(deal, part, round_)
        self.wake()

    # Rounds

    def commit(self, round_, made):
        self.lanes = self.ordered = None
        self.version += not made.void
        self.side += bool(made.parts or made.values)
        self.net.judge(self, round_, made)
        if made.void:
            self.work.clear()

    def fail(self, attempt, blamed):
        if not self.dead and self.lanes is not None and self.lanes.attempt.number == attempt:
            self.member.failed(attempt, blamed)
            self.wake()

    def tick(self):
        if self.net.waits(self, self.tick) or self.dead or self.left_behind:
            return
        self.wake()
        self.net.later(BEAT_S, self.tick)


class Lanes:
    """One attempt at the lanes of one process, phase by phase."""

    def __init__(self, process, round_, attempt):
        self.process, self.round, self.attempt = process, round_, attempt
        self.left = self.phase = 0

    def begin(self):
        process, net, attempt = self.process, self.process.net, self.attempt
        if attempt.made.values:
            beside = process.memory.beside(process.side)
            for lane in attempt.lanes[process.number]:
                span = slices(ELEMENTS, attempt.count)[lane]
                self.left += 1
                assigned = net.assigned[self.round][span.start : span.stop]
                net.later(0.001, self.write, lane, span, [(beside, assigned)])
            self.phase = attempt.last
            return
        self.begin_phase(attempt.first)

    def begin_phase(self, number):
        """Take all lanes through a phase. On one host there is none that makes means."""
        process, attempt = self.process, self.attempt
        self.phase = number
        memory, made = process.memory, attempt.made
        beside, now = memory.beside(process.side), memory.at(process.side)
        hosts = sorted({process.host_of(each) for each in attempt.lanes})
        phase = process.net.phases[number]
        lanes = attempt.lanes[process.number]
        self.left = len(lanes)
        for lane in lanes:
            span = slices(ELEMENTS, attempt.count)[lane]
            own = slice(span.start, span.stop)
            if phase == "means" or (phase == "all" and len(hosts) > 1):
                Exchange(self, lane, span, hosts).go_on_all()
            elif phase == "rows":
                self.torn(lane, span, [(memory.rows, moved(memory.table[own], [d.part for d in made.parts]))])
            elif phase == "note":
                if lane == 0:
                    memory.note = self.round, made
                process.net.later(0.0, self.through, lane)
            else:
                mean = memory.means[own] if "means" in process.net.phases else self.mean_of(made, span)
                writes = [(beside, now[own] - np.float32(0.1) * mean)]
                if phase == "update":
                    writes.append((memory.table, memory.rows[own].copy()))
                self.torn(lane, span, writes)

    def through(self, lane):
        process = self.process
        if process.net.waits(process, self.through, lane) or process.dead or process.lanes is not self:
            return
        self.left -= 1
        if self.left:
            return
        if self.phase < self.attempt.last:
            self.begin_phase(self.phase + 1)
            return
        process.member.reduced(self.attempt.number, self.attempt.last + 1)
        process.wake()

    def mean_of(self, made, span):
        held = [self.process.memory.gradient_of(done) for done in made.parts]
        total = held[0][span.start : span.stop]
        for each in held[1:]:
            total = total + each[span.start : span.stop]
        return total / np.float32(made.divisor)

    def torn(self, lane, span, writes):
        """Write half of a lane, and the other half later: the process may end in between."""
        half = (span.stop - span.start) // 2
        for array, values in writes:
            array[span.start : span.start + half] = values[:half]
        later = self.process.net.random.choice((0.0, 0.002, 0.02))
        self.process.net.later(later, self.write, lane, span, writes)

    def write(self, lane, span, writes):
        process = self.process
        if process.net.waits(process, self.write, lane, span, writes):
            return
        if process.dead or process.lanes is not self:
            return
        for array, values in writes:
            array[span.start : span.stop] = values
        self.through(lane)


class Exchange:
    """One lane of an attempt between hosts."""

    def __init__(self, lanes, lane, span, hosts):
        self.lanes, self.lane, self.span = lanes, lane, span
        self.process = process = lanes.process
        net, attempt = process.net, lanes.attempt
        self.holder = {}
        for number, own in attempt.lanes.items():
            if lane in own:
                self.holder[process.host_of(number)] = number
        parts = dict.fromkeys(range(len(hosts)), ())
        for done in attempt.made.parts:
            at = hosts.index(net.host_of(done.holder))
            parts[at] = (*parts[at], done.part)
        self.hosts, own = hosts, hosts.index(process.seat.host)
        held = {
            done.part: process.memory.gradient_of(done)
            for done in attempt.made.parts
            if done.part in parts[own]
        }
        terms = Terms(held, attempt.made.divisor)
        flows = net.schedule(tuple(parts), own, parts, span, LENGTH)
        self.mean = np.full(ELEMENTS, np.nan, np.float32)
        self.running = {at: carry_out(flow, terms, self.mean) for at, flow in enumerate(flows)}
        self.waiting = {}
        net.exchanges[process.number].append(self)

    def go_on_all(self):
        for at in list(self.running):
            self.go_on(at)
        self.finish()

    def stream(self, way):
        source, target = self.holder[self.hosts[way.source]], self.holder[self.hosts[way.target]]
        return way.label, self.lane, self.lanes.round, self.lanes.attempt.number, source, target

    def go_on(self, at):
        net = self.process.net
        for step in self.running[at]:
            if isinstance(step, SendBlock):
                net.stream(self.stream(step.way), step.block.tolist())
                continue
            self.waiting[at] = step
            if not self.took(at):
                net.later(net.random.uniform(0.5, 1.0) * net.silent_s, self.silent, at, step)
                return
        del self.running[at]

    def took(self, at):
        step = self.waiting[at]
        come = self.process.net.come[self.stream(step.way)]
        if len(come) < step.block.size:
            return False
        step.block[...] = [come.popleft() for _ in step.block]
        del self.waiting[at]
        return True

    def heard(self):
        if self.process.lanes is not self.lanes:
            return
        for at in list(self.waiting):
            if self.took(at):
                self.go_on(at)
        self.finish()

    def finish(self):
        if self.running or self.process.lanes is not self.lanes:
            return
        memory, span = self.process.memory, self.span
        mean = self.mean[span.start : span.stop]
        self.running = {-1: None}  # once
        if self.process.net.rows:
            self.lanes.torn(self.lane, span, [(memory.means, mean)])
            return
        values = memory.at(self.process.side)[span.start : span.stop] - np.float32(0.1) * mean
        self.lanes.torn(self.lane, span, [(memory.beside(self.process.side), values)])

    def silent(self, at, step):
        if self.process.net.waits(self.process, self.silent, at, step):
            return
        if self.waiting.get(at) is step and self.process.lanes is self.lanes:
            self.process.fail(self.lanes.attempt.number, self.holder[self.hosts[step.way.source]])


class Net:
    """The processes, the links between each two in each direction, and what happens when."""

    def __init__(
        self,
        seed,
        hosts,
        steps,
        schedule=ordered_chain,
        *,
        backups=0,
        shares=True,
        needed=0,
        retry=False,
        trains=None,
        passes_silent=False,
        rows=False,
    ):
        self.random = Random(seed)
        self.schedule, self.steps, self.needed = schedule, steps, needed
        self.now, self._order, self._events = 0.0, count(), []
        ranks = [rank for own in hosts for rank in own]
        training = [rank for rank in ranks if trains is None or trains(rank)]
        self.parts, self.backups = len(training) - backups, backups
        self.lease_s = LEASE_S if len(hosts) > 1 or passes_silent else float("inf")
        self.silent_s, self.rows = SILENT_S, rows
        self.phases = ["rows", "note", "update"] if rows else ["all"]
        if rows and len(hosts) > 1:
            self.phases.insert(0, "means")
        self.rules = RoundRules(
            replicas=len(training),
            max_steps=steps,
            needed=needed,
            retry=retry,
            shares=shares,
            idle=frozenset(ranks) - frozenset(training),
            passes_silent=passes_silent,
            phases=len(self.phases),
            carries=rows,
        )
        self.cut, self.broken = set(), set()
        self.slow = {}
        self.begun = set()
        self.without_examples, self.infinite = set(), set()
        self.assigned = {}
        self.histories, self.start = {}, History(None, -1, None, None)
        self.ends = False
        self.killing = None
        self.said = 0
        self.come, self.exchanges = defaultdict(deque), defaultdict(list)
        self._sent_until, self._said_until = defaultdict(float), defaultdict(float)
        self.addresses, self.asked = count(), defaultdict(int)
        seats = [
            self.seat(rank, f"host {at}", number)
            for number, (rank, at) in enumerate(
                sorted((rank, at) for at, own in enumerate(hosts) for rank in own)
            )
        ]
        known = Known(members=tuple(seats), dealt=Dealt(self.parts, even=backups > 0))
        memories = {f"host {at}": Memory(f"host {at}", 0, FIRST) for at in range(len(hosts))}
        self.processes = {}
        self.seats = {seat.number: seat for seat in seats}
        for seat in seats:
            self.processes[seat.number] = Process(self, seat, memories[seat.host], known)
        for process in list(self.processes.values()):
            self.later(self.random.uniform(0, 0.05), process.tick)

    def seat(self, rank, host, number=-1):
        address = f"at {next(self.addresses)}"
        return MemberSeat(number=number, rank=rank, task=f"worker:{rank}", host=host, address=address)

    def host_of(self, number):
        if number not in self.seats:  # let in, and not welcomed yet
            return next(
                each.member.members[number].host
                for each in self.processes.values()
                if number in each.member.members
            )
        return self.seats[number].host

    # Time

    def later(self, delay_s, run, *words):
        heapq.heappush(self._events, (self.now + delay_s, next(self._order), partial(run, *words)))

    def run(self, until_s, done=lambda: False):
        while self._events and self._events[0][0] <= until_s and not done():
            self.now, _, event = heapq.heappop(self._events)
            event()

    def delay(self, source, target):
        if self.host_of(source) == self.host_of(target):
            return self.random.choice((0.0, 0.0005, 0.002))
        return self.random.choice((0.001, 0.004, 0.02, 0.08))

    def compute_s(self, process):
        return self.random.uniform(0.001, 0.05) * self.slow.get(process.seat.rank, 1)

    # The judge

    def begins(self, process):
        """A round begins with as many replicas as are needed; one that has begun is finished by those who are left."""
        if process.member.round not in self.begun:
            self.begun.add(process.member.round)
            live = sum(seat.rank not in self.rules.idle for seat in process.member.members.values())
            assert live >= self.needed, f"round {process.member.round} begins with {live}"

    def after(self, before, round_, made):
        """The history that goes on with a round; the same one for all who know the same."""
        key = before.key, round_, content(made)
        if key not in self.histories:
            self.histories[key] = History(before, round_, made, self.assigned.get(round_))
        return self.histories[key]

    def judge(self, process, round_, made):
        """A process goes on from a round: each part counts once in its history, and the values are those of it."""
        process.history = after_round = self.after(process.history, round_, made)
        if self.backups:
            assert made.void or len(made.parts) == self.parts
        elif made.parts:
            assert len({done.part // self.parts for done in made.parts}) == 1, "the parts of one batch"
        memory = process.memory
        if (made.void and not made.values) or memory.newest > process.side:
            return  # others of its host have gone on from there
        if self.rows:
            assert memory.table.tobytes() == after_round.table.tobytes(), (
                f"rows of round {round_}: {process.seat.task}"
            )
        found = memory.at(process.side)
        if self.schedule is ordered_chain or self.one_host:
            assert found.tobytes() == after_round.values.tobytes(), (
                f"bits of round {round_}: {process.seat.task}"
            )
        assert np.abs(found - after_round.values).max() < 1e-4, f"every part of round {round_} once"

    def conclude(self):
        """No two groups went on: the history of each process is that of those that have finished, but for the last
        round that it has made, which others make again if nobody has heard of it. Return the common one.
        """
        finished = [each for each in self.processes.values() if each.finished]
        if not finished:
            return None
        main = max(finished, key=lambda each: (each.member.term, not each.dead)).history
        rounds = main.by_round()
        for process in self.processes.values():
            own = process.history.by_round()
            other = [each for each in own if own[each] != rounds.get(each)]
            assert other in ([], [max(own, default=-1)]), (
                process.seat,
                {each: (own[each], rounds.get(each)) for each in other},
            )
        return main

    @property
    def one_host(self):
        return len({seat.host for seat in self.seats.values()}) == 1

    # Messages

    def dies_now(self, process):
        """Whether the process ends before it does what comes next."""
        self.said += 1
        if process.doomed or (self.killing is not None and self.killing(process)):
            process.doomed = False
            self.kill(process.number)
        return process.dead

    def send(self, process, target, message):
        source = process.number
        if target not in self.processes or self.is_cut(source, target):
            return
        at = max(self._said_until[source, target], self.now + self.delay(source, target))
        self._said_until[source, target] = at
        self.later(at - self.now, self.deliver, source, target, message)

    def is_cut(self, source, target):
        return (self.host_of(source), self.host_of(target)) in self.cut

    def deliver(self, source, target, message):
        process = self.processes[target]
        if self.waits(process, self.deliver, source, target, message):
            return
        if not (process.dead or process.left_behind) and not self.is_cut(source, target):
            process.member.received(source, message, self.now)
            process.wake()

    def stream(self, key, elements):
        """Bytes keep their order; on a link that is cut they are lost, and no end need hear of it."""
        *_, source, target = key
        at = max(self._sent_until[key], self.now + self.delay(source, target) / 4)
        self._sent_until[key] = at
        self.later(at - self.now, self.arrive, key, elements)

    def arrive(self, key, elements):
        *_, source, target = key
        process = self.processes.get(target)
        if process is None or self.waits(process, self.arrive, key, elements):
            return
        if self.is_cut(source, target) or (self.processes[source].dead and self.random.random() < 0.5):
            self.broken.add(key)
        if key in self.broken or process.dead:
            return
        self.come[key].extend(elements)
        for exchange in list(self.exchanges[target]):
            exchange.heard()

    # Ends, stops and newcomers

    def kill(self, number):
        """A process ends; every other one hears of it after all that it has said, if the link lets it through."""
        process = self.processes[number]
        if process.dead:
            return
        process.dead, process.lanes = True, None
        for other in list(self.processes.values()):
            self.tell_of_end(number, other)

    def tell_of_end(self, number, other):
        if not other.dead and not (self.is_cut(number, other.number) or self.is_cut(other.number, number)):
            heard = self._said_until[number, other.number] - self.now
            self.later(max(heard, self.random.uniform(0.001, 0.04)), self.ended, other, number)

    def ended(self, process, number):
        if process.dead or process.left_behind or self.is_cut(number, process.number):
            return
        if self.waits(process, self.ended, process, number):
            return
        process.member.gone(number)
        lanes = process.lanes
        if lanes is not None and number in lanes.attempt.lanes and self.host_of(number) != process.seat.host:
            process.member.failed(lanes.attempt.number, number)
        process.wake()

    def stop(self, number, for_s):
        """A process stands still, and lives; what comes meanwhile waits, in its order."""
        self.processes[number].stopped_until = self.now + for_s

    def stop_host(self, host, for_s):
        for process in list(self.processes.values()):
            if process.seat.host == host:
                self.stop(process.number, for_s)

    def waits(self, process, event, *words):
        if (waits := process.stopped_until > self.now) and not process.dead:
            self.later(process.stopped_until - self.now, event, *words)
        return waits

    def start_again(self, rank, host, address=None):
        """A process of a rank asks the leader to let it in, until it takes part."""
        address = address or f"at {next(self.addresses)}"
        there = [each for each in self.processes.values() if not (each.dead or each.left_behind)]
        if any(each.seat.address == address for each in there) or all(each.finished for each in there):
            return
        self.asked[address] += 1
        for process in there:
            if process.stopped_until <= self.now:
                seat = MemberSeat(number=-1, rank=rank, task=f"worker:{rank}", host=host, address=address)
                process.member.admit(seat)
                process.wake()
        self.later(0.3, self.start_again, rank, host, address)

    def welcome(self, leader, seat, told, host_members):
        """The leader lets a newcomer begin: with the memory of its host, if others have one, else with the values."""
        if seat.number in self.seats:
            return
        self.seats[seat.number] = seat
        made = (
            None
            if host_members
            else Memory(seat.host, told.side, leader.memory.at(leader.side).copy(), leader.memory.table)
        )
        told_s = self.delay(leader.number, seat.number)
        asked = self.asked[seat.address]
        self.later(told_s, self.come_in, leader, seat, told, made, host_members, leader.history, asked)

    def come_in(self, leader, seat, told, made, host_members, history, asked):
        here = [self.processes[each].memory for each in host_members if self.runs(each)]
        if leader.dead or not (here or made):
            return  # there is nobody any more from whom it would have them
        if self.asked[seat.address] != asked:
            return  # who has asked again heeds no earlier answer
        memory = made or here[0]
        known = Known(
            members=told.members, version=told.version, side=told.side, dealt=told.dealt, made=told.made
        )
        process = Process(
            self,
            seat,
            memory,
            known,
            round_=told.round,
            term=told.term,
            membership=told.membership,
        )
        process.history = history
        self.processes[seat.number] = process
        process.member.received(leader.number, told, self.now)
        for other in list(self.processes.values()):
            if other.dead:  # nobody listens at its address
                self.tell_of_end(other.number, process)
        process.tick()

    def runs(self, number):
        process = self.processes.get(number)
        return process is not None and not process.dead

    def sever(self, links, heal_s):
        """Cut links between hosts, for a while."""
        self.cut |= links
        if heal_s is not None:
            self.later(heal_s, self.heal, links)

    def heal(self, links):
        """Mend links; whoever has ended meanwhile is found to have."""
        self.cut -= links
        for process in list(self.processes.values()):
            if process.dead:
                for other in list(self.processes.values()):
                    self.tell_of_end(process.number, other)

    def leave(self, process):
        """A process ends, as it has finished or was left behind; in this case another one is started."""
        if self.waits(process, self.leave, process) or process.dead:
            return
        self.kill(process.number)
        if process.left_behind:
            later = self.random.uniform(0.05, 0.5)
            self.later(later, self.start_again, process.seat.rank, f"{process.seat.host} again")


class History:
    """What has made the values: the rounds, by what they were made of, and the parts that were counted."""

    def __init__(self, before, round_, made, assigned):
        self.before, self.round = before, round_
        self.key = (round_, id(self))
        self.made = content(made) if made is not None else None
        parts = [done.part for done in made.parts] if made is not None else []
        assert parts == sorted(set(parts)), "in their order, each once"
        self.counted = (before.counted if before else frozenset()) | set(parts)
        assert before is None or not before.counted & set(parts), (
            f"counted twice: {before.counted & set(parts)}"
        )
        self.values, self.table = (FIRST, FIRST) if before is None else (before.values, before.table)
        if parts:
            self.values, self.table = after(self.values, parts), moved(self.table, parts)
        elif made is not None and made.values:
            self.values = assigned

    def until(self, round_):
        """What was known as a round began, which may be long ago for whoever has stood still."""
        return self if self.before is None or self.round < round_ else self.before.until(round_)

    def by_round(self):
        each, found = self, {}
        while each.before is not None:
            found[each.round] = each.made
            each = each.before
        return found


def content(made):
    return tuple((done.part, done.holder) for done in made.parts), made.divisor, made.values


VOID = RoundMade()
