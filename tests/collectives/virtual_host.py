"""A host whose shared memory and sockets are a test's own: processes that run by turns, and die anywhere.

Every process runs the shipped driver and machine, in a thread that stops at each access to a word, each bell and
in the midst of each block. There a seed decides which process goes on, and whether this one is dead. A process
that waits is woken by a bell or a death alone; time stands still, so that a bell that was forgotten shows.
"""

import random
import threading
from collections import Counter

import numpy as np
from collectives.drawn_scenes import drawn
from collectives.scene import Orders, judge, tear, train

from dtrain.collectives.board import ranks_in
from dtrain.learning import optimizers
from dtrain.protocol.part_dealer import PartDealer
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.driver import CollectiveDriver
from dtrain.roles.collective.rules import Waits
from dtrain.state.batch_cut import Dealt

NEVER = (0, "", 0)


class Killed(BaseException):
    """The end of a process, as its thread sees it."""


class VirtualClock:
    """A time that stands still."""

    def now(self):
        return 0.0


class VirtualDoorbells:
    """One process's ends; see `Doorbells`. What comes waits in a queue for each socket, that is, for each process."""

    def __init__(self, life):
        self.life = life
        self.dead = set()
        self.ends = {}  # by rank, the process at the other end
        self.waiting = {}  # the same, of those that are offered
        self.queues = {}

    @property
    def offered(self):
        return set(self.waiting)

    def connect(self, other, offered=False):
        """Hold an end of a socket to another process."""
        (self.waiting if offered else self.ends)[other.rank] = other
        self.queues[other] = []

    def take_up(self, rank):
        self.ends[rank] = self.waiting.pop(rank)
        self.dead.discard(rank)

    def ring(self):
        for rank, other in list(self.ends.items()):
            if rank not in self.dead:
                self.life.passes("doorbell")
                other.hear(self.life, "doorbell")

    def wait(self, timeout_s):
        self.life.passes("wait")
        while not (ready := [other for other in self.ends.values() if self.queues[other]]):
            self.life.sleep()
        for other in ready:
            if self.queues[other].pop(0) == "end":
                self.dead.add(other.rank)
        return True

    def close(self):
        pass


class Words:
    """The words of all, each access to which is a point where a process may stop."""

    def __init__(self, host, count):
        self.host = host
        self.numbers = [0] * count
        self.writers = {}

    def __getitem__(self, place):
        if isinstance(place, slice):  # a copy of several words is no single access
            return [self[each] for each in range(*place.indices(len(self.numbers)))]
        self.host.running.passes("word")
        return self.numbers[place]

    def __setitem__(self, place, number):
        life = self.host.running
        life.passes("word")
        self.host.idle = 0
        writer = self.writers.get(place)
        again = number == self.numbers[place] and writer is not life
        if place in self.host.growing:
            assert number >= self.numbers[place], "a word does not shrink"
            assert not (again and writer is not None and writer.alive), "a word has two writers"
        self.numbers[place] = int(number)
        self.writers[place] = life
        life.passes("word")


class Life:
    """One process."""

    def __init__(self, host, rank, dies, joins=False):
        self.host = host
        self.rank = rank
        self.dies = dies
        self.joins = joins
        self.alive = True
        self.asleep = False
        self.passed = Counter()
        self.round = 0
        self.driver = None
        self.seen = None
        self.tally = None
        self.doorbells = VirtualDoorbells(self)
        self.turn = threading.Semaphore(0)
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        self.turn.acquire()
        try:
            if not self.host.over:
                self.seen = self.live()
        except Killed:
            pass
        except BaseException as error:
            self.host.fail(f"rank {self.rank}: {type(error).__name__}: {error}")
        self.alive = False
        self.host.ended(self)

    def live(self):
        scene, arena = self.host.scene, self.host.arena
        store = arena.store(optimizers.serialize(scene.optimizer), max_steps=scene.steps)
        dealer = PartDealer.of(Dealt(scene.parts), whole=True)
        orders = Orders(self.host.told, store)
        from_round = self.admitted() if self.joins else 1
        orders.tally = orders.tally.holding(arena.tally(from_round))
        self.driver = CollectiveDriver(
            arena,
            self.doorbells,
            self.rank,
            store,
            dealer,
            scene.rules,
            orders=orders,
            from_round=from_round,
            waits=Waits(clock=VirtualClock()),
        )
        tear(store, self.passes)
        seen = train(scene, self.driver, self.passes, orders.count)
        self.tally = orders.tally.open()
        return seen

    @property
    def is_waiting(self):
        """Whether this process would be a member and is none yet."""
        return self.joins and self.driver is None

    def admitted(self):
        """Wait to become a member, as the strategy does; return the first round of it."""
        board = self.host.arena.board
        before = board.admitted[self.rank]
        while True:
            self.hand_out()
            number = board.admitted[self.rank]
            of_round = ranks_in(board.members[(number - 1) % 2])
            if number > before and all(board.fin[each] >= number - 1 for each in range(len(of_round))):
                members = ranks_in(board.members[number % 2])
                if self.rank in members:
                    for rank in set(self.doorbells.ends) - set(members):
                        del self.doorbells.ends[rank]
                    return number
                before = number
            if not any(other.alive and not other.is_waiting for other in self.host.lives):
                raise Killed  # training has ended
            self.host.idle += 1
            if self.host.idle > 1000:  # looks, since a word was written
                self.host.fail("members wait for each other, and one who would be a member for them")
            self.host.switch(self)

    def hand_out(self):
        """Give every member that has none yet a socket to this process."""
        board = self.host.arena.board
        members = {*ranks_in(board.members[0]), *ranks_in(board.members[1])}
        for other in [each for each in self.host.lives if each.alive and each is not self]:
            if other.rank in members and other.rank not in self.doorbells.ends:
                self.doorbells.connect(other)
                self.passes("word")
                other.doorbells.connect(self, offered=True)

    def passes(self, point, torn=None):
        """Let others go on, or be dead from here on, with this memory half written."""
        if self.host.over or not self.alive:
            raise Killed
        if point in ("before gradient", "in gradient"):
            self.host.check_values(self.driver)
        number = 0 if self.driver is None else self.driver.round + 1
        if number != self.round:
            self.round = number
            self.passed.clear()
        self.passed[point] += 1
        if (number, point, self.passed[point]) == self.dies:
            for array in (torn or {}).values():
                array.flat[::2] = 3
            self.host.say(f"{self.rank} dies in round {number}: {point} {self.passed[point]}")
            raise Killed
        if self.host.chance.random() < self.host.unrest:
            self.host.switch(self)

    def sleep(self):
        self.asleep = True
        self.host.switch(self)

    def hear(self, other, what):
        if other in self.doorbells.queues:
            self.doorbells.queues[other].append(what)
            self.asleep = False


class VirtualHost:
    """The processes of one scene, of which one runs at a time."""

    def __init__(self, scene, seed):
        self.scene = scene
        self.chance = random.Random(seed)
        self.unrest = self.chance.choice((0.02, 0.1, 0.3))
        self.over = None
        self.story = []
        self.running = None
        self.ends = []  # of sockets, that are on their way: a process that ends closes them one by one
        self.done = threading.Semaphore(0)
        self.idle = 0
        self.told = {}
        self.values_in = {}  # by round, as its gradients are computed from them
        nbytes = scene.shape.starts()[-1]
        words = Words(self, 10_000)
        self.arena = Arena(scene.shape, np.zeros(nbytes, np.uint8), words)
        board = self.arena.board
        columns = (board.ready, scene.parts), (board.arrived, scene.replicas), (board.made, scene.replicas)
        columns += ((board.fin, scene.replicas),)
        self.growing = {(column._first + each) * 8 for column, count in columns for each in range(count)}
        scene.fill(self.arena)
        self.arena.put_tally(1, ())
        words.numbers[(board.members._first + 1) * 8] = (1 << scene.replicas) - 1
        self.lives = [Life(self, rank, scene.deaths.get(rank, NEVER)) for rank in range(scene.replicas)]
        self.restarts = [rank for rank in scene.deaths if self.chance.random() < 0.5]
        for life in self.lives:
            for other in self.lives:
                if other is not life:
                    life.doorbells.connect(other)

    def run(self):
        """Run all to their end; return what the survivors have seen, by rank."""
        for life in self.lives:
            life.thread.start()
        self.hand_to(self.chance.choice(self.lives))
        self.done.acquire()
        for life in self.lives:
            life.turn.release()
        for life in self.lives:
            life.thread.join()
        assert self.over == "", "\n".join([*self.story, self.over])
        return {life.rank: life.seen for life in self.lives if life.seen is not None and not life.joins}

    @property
    def tallies(self):
        """The sums of the epoch of every process that has come to the end, newcomers too."""
        return [life.tally for life in self.lives if life.tally is not None]

    def say(self, text):
        self.story.append(text)

    def fail(self, reason):
        self.over = self.over or reason

    def hand_to(self, life):
        self.running = life
        life.turn.release()

    def next(self):
        """Return the process that goes on; None if none can."""
        while self.ends and (self.chance.random() < 0.3 or not self.ready()):
            listener, dead = self.ends.pop(self.chance.randrange(len(self.ends)))
            if listener.alive:
                listener.hear(dead, "end")
        return self.chance.choice(self.ready()) if self.ready() else None

    def ready(self):
        return [life for life in self.lives if life.alive and not life.asleep]

    def switch(self, life):
        """Let a process go on, in the place of this one."""
        chosen = self.next()
        if chosen is None:
            self.fail("all wait, and nobody will ring")
            raise Killed
        if chosen is not life:
            self.hand_to(chosen)
            life.turn.acquire()
            if self.over is not None:
                raise Killed
            self.running = life

    def ended(self, life):
        """Let the others hear of an end, one after the other, and go on."""
        self.ends += [(other, life) for other in self.lives if other.alive]
        if life.rank in self.restarts and life.seen is None and self.over is None:
            self.restarts.remove(life.rank)
            successor = Life(self, life.rank, NEVER, joins=True)
            self.say(f"{life.rank} is started again")
            self.lives.append(successor)
            successor.thread.start()
        chosen = None if self.over is not None else self.next()
        if chosen is not None:
            self.hand_to(chosen)
            return
        if self.over is None:
            self.over = "all wait, and nobody will ring" if any(each.alive for each in self.lives) else ""
        self.done.release()

    def check_values(self, driver):
        """Find a write to the variables while a gradient is computed from them."""
        now = [block.tobytes() for block in driver.store.values]
        known = self.values_in.setdefault(driver.round, now)
        assert known == now, "variables change while gradients are computed from them"


def broken_rule(seed, draw=drawn):
    """Run the scene of a seed; return what went wrong, or None."""
    host = VirtualHost(draw(seed), seed)
    try:
        judge(host.scene, host.arena, host.run(), host.tallies)
    except AssertionError as error:
        return f"seed {seed}: {error}\n" + "\n".join(host.story)
    return None
