"""A host whose shared memory and sockets are a test's own: processes that run by turns, and die anywhere.

Every process runs the shipped driver and machine, in a thread that stops at each access to a word, each bell and
in the midst of each block. There a seed decides which process goes on, and whether this one is dead. A process
that waits is woken by a bell or a death alone; time stands still, so that a bell that was forgotten shows.
"""

import random
import threading
from collections import Counter

import numpy as np

from dtrain.learning import optimizers
from dtrain.messages import Verdict
from dtrain.protocol.part_dealer import NO_PART
from dtrain.roles.collective.arena import Arena

POINTS = {
    "word": 80,
    "update": 3,
    "carry": 2,
    "before gradient": 2,
    "in gradient": 2,
    "doorbell": 9,
    "wait": 5,
}
"""By the points at which a process may die, about how many of it a round has."""

RULES = (
    optimizers.SGD(0.1),
    optimizers.SGD(0.05, momentum=0.9, clipnorm=0.01),
    optimizers.Adam(0.01, use_ema=True),
    optimizers.Adam(0.01, global_clipnorm=0.02),
    optimizers.Adagrad(0.05, clipvalue=0.05),
    optimizers.SGD(0.1, global_clipnorm=0.02),
)

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

    @property
    def is_waiting(self):
        """Whether this process would be a member and is none yet."""
        return self.joins and self.driver is None

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


def train(scene, driver, passes, count=lambda version, sums: None):
    """Train to the end of a scene; return what was seen, by step: (version, sums, verdict, members).

    `passes` is called at each point where a process may be killed, with the memory that may be half written
    then. `count` is called with the sums of every step.
    """
    seen = []
    orders = dict(scene.orders)
    while not driver.finished:
        if driver.rank == scene.giver and driver.version in orders:
            order = orders.pop(driver.version)
            driver._orders.told.update(order)
            if set(order) - {"optimizer"}:
                driver.void()
                continue
        part = driver.next_part()
        told = (0, None, True)
        if part != NO_PART:
            passes("before gradient", {})
            number, place = divmod(part, scene.parts)
            gradients = driver.gradients(part).variables
            rows = {}
            told = scene.compute(number, place, driver.store.variables, gradients, rows)
            passes("in gradient", gradients)
            driver.give_rows(part, rows)
            if rows:
                passes("in gradient", dict(enumerate(driver.given(part))))
        before, members = driver.version, driver.members
        outcome = driver.contribute(part, *told)
        if outcome.verdict is not Verdict.PENDING:
            sums = driver.sums_of_last_step() if driver.version > before else []
            count(before, sums)
            seen.append((driver.version, sums, outcome.verdict, members))
    driver.close()
    return seen


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
