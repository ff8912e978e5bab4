"""The virtual host with backups: processes that are stopped, slow, killed and started again at every word, bell, lock
and block. What they make must be what one process makes of the same parts in the same order.
"""

import random
from copy import copy
from dataclasses import dataclass, field

import msgspec
import numpy as np
from collectives.scene import TINY, WITH_TABLES, Scene, tear
from collectives.served import Served
from collectives.virtual_host import (
    NEVER,
    POINTS,
    RULES,
    Killed,
    Life,
    VirtualClock,
    VirtualDoorbells,
    VirtualHost,
    train,
)
from whole_mean import mean

from dtrain.collectives.backups import BackupFit, BackupRules
from dtrain.config.choices import Weighting
from dtrain.learning import optimizers
from dtrain.roles.collective.arena import ArenaShape
from dtrain.roles.collective.backup_driver import BackupDriver
from dtrain.roles.collective.rules import LOOK_S, Rules, Waits
from dtrain.roles.collective.shared_records import FitRecord

ENOUGH = 300_000
SPARE = 1


@dataclass
class BackupScene(Scene):
    """Replicas of which some are backups.

    Attributes:
        retry: whether late parts are computed again.
        stopped: by rank, the point at which it stands still until all others have ended.
        values_at: the version at which the replica `giver` assigns values; 0: it does not.
    """

    retry: bool = False
    stopped: dict = field(default_factory=dict)
    values_at: int = 0

    @property
    def shape(self):
        return ArenaShape(
            self.plan,
            optimizers.serialize(self.optimizer),
            self.replicas + SPARE,
            self.replicas,
            sums_nbytes=256,
            block_elements=self.block_elements,
            backups=True,
        )


class VirtualLocks:
    """One process's locks; those of a dead one are free."""

    def __init__(self, life):
        self.life = life
        self.held = life.host.held

    def acquire(self, number):
        self.life.passes("lock")
        if not self.is_free(number) or self.held.get(number) is self.life:
            return False
        self.held[number] = self.life
        return True

    def release(self, number):
        self.life.passes("lock")
        self.held.pop(number, None)

    def is_free(self, number):
        holder = self.held.get(number)
        return holder is None or not holder.alive or holder is self.life

    def close(self):
        for number in [number for number, holder in self.held.items() if holder is self.life]:
            del self.held[number]


class BackupDoorbells(VirtualDoorbells):
    """Bells with waits that end soon by themselves."""

    def wait(self, timeout_s):
        if timeout_s < LOOK_S:
            self.life.passes("wait")
            for other in [other for other in self.ends.values() if self.queues[other]]:
                if self.queues[other].pop(0) == "end":
                    self.dead.add(other.rank)
            self.life.host.switch(self.life)
            return True
        return super().wait(timeout_s)


class Told:
    """The order of the leader, as one process finds it."""

    def __init__(self, life, store):
        self.life, self.store = life, store

    def heed(self, version):
        pass

    def carry_out(self):
        self.store.layout.views(self.store.values)["kernel"][...] = 0.25
        self.life.passes("word")

    @property
    def unwritten(self):
        known = self.life.host.view().record.read()
        return int(self.life.host.ordered is not None and self.life.host.ordered == known.version)


class Account:
    """Sums, of which each step's are the parts that it was made of, and variables at the version of the fit."""

    def __init__(self, store):
        self.store = store

    def count(self, sums, version, given):
        return sums + msgspec.msgpack.encode([float(np.frombuffer(each.totals)[1]) for each in given])

    def adopt(self, fit):
        self.store.stand_at(fit.version)


class BackupLife(Life):
    """One process."""

    def __init__(self, host, rank, dies, joins=False):
        super().__init__(host, rank, dies, joins)
        self.doorbells = BackupDoorbells(self)
        self.frozen = False

    def live(self):
        scene, arena = self.host.scene, self.host.view()
        if self.joins:
            self.hand_out()
        store = arena.store(optimizers.serialize(scene.optimizer), max_steps=scene.steps)
        driver = BackupDriver(
            arena,
            self.doorbells,
            VirtualLocks(self),
            self.rank,
            store,
            scene.backups,
            scene.rules,
            Account(store),
            Told(self, store),
            linked=[] if self.joins else list(self.doorbells.ends),
            joins=self.joins,
            waits=Waits(clock=VirtualClock()),
        )
        tear(store, self.passes)
        self.driver = driver
        return train(scene, self, self.passes)

    def hand_out(self):
        for other in [each for each in self.host.lives if each.alive and each is not self]:
            self.doorbells.connect(other, offered=True)
            self.passes("word")
            other.doorbells.connect(self, offered=True)

    # What `train` needs of a driver

    def __getattr__(self, name):
        return getattr(self.__dict__["driver"], name)

    def next_part(self):
        host = self.host
        if (
            self.rank == host.scene.giver
            and self.driver.version >= host.scene.values_at > 0
            and host.ordered is None
        ):
            with self.driver.at_rest():
                if not self.driver.finished:
                    host.ordered = self.driver.version
        return self.driver.next_part()

    def gradients(self, part):
        self.part = part
        return self.driver.gradients(part)

    def sums_of_last_step(self):
        return []

    def close(self):
        self.driver.close()

    def passes(self, point, torn=None):
        at = self.driver and self.driver.round + 1, point
        has_none = self not in self.host.held_by_lives()
        if at == self.host.scene.stopped.get(self.rank) and has_none and not self.host.thawed:
            self.frozen = True
            self.host.switch(self)
        try:
            super().passes(point, torn)
        except Killed:
            self.alive = False  # what follows on the way out is no act of a process that was killed
            raise


class BackupHost(VirtualHost):
    """The processes of one scene with backups."""

    life = BackupLife

    def __init__(self, scene, seed):
        self.held, self.ordered, self.thawed, self.switches = {}, None, False, 0
        super().__init__(scene, seed)
        self.decisions = {}
        self.lives = [BackupLife(self, rank, scene.deaths.get(rank, NEVER)) for rank in range(scene.replicas)]
        for life in self.lives:
            for other in self.lives:
                if other is not life:
                    life.doorbells.connect(other)
        fit = BackupFit([None] * scene.shape.parts, leader=0)
        for rank in range(scene.replicas):
            fit.enter(rank)
        self.quiet(lambda: self.arena.record.write(fit))

    def view(self):
        """Return the arena as one process maps it, which reads and writes the record by itself."""
        arena = copy(self.arena)
        arena.record = record = FitRecord(arena.board.record, arena.record.places)
        write = record.write

        def remember(now):
            if now.counted is not None:
                self.decisions[now.version] = [now.places[place].part for place in now.counted]
            write(now)

        record.write = remember
        return arena

    def quiet(self, act):
        """Write as nobody does."""
        self.running = type("Nobody", (), {"passes": lambda self, point: None, "alive": False})()
        act()

    def held_by_lives(self):
        return {life for number, life in self.held.items() if number < 1000}

    def ready(self):
        found = [life for life in super().ready() if not life.frozen]
        if not found and any(life.frozen and life.alive for life in self.lives):
            self.thaw()
            return self.ready()
        return found

    def thaw(self):
        """Let those go on that stood still; all others have ended, unless the scene says otherwise."""
        others = [life for life in self.lives if life.alive and not life.frozen]
        if others:
            self.fail("a replica that is stopped holds others up")
        self.thawed = True
        for life in self.lives:
            life.frozen = False

    def switch(self, life):
        self.switches += 1
        if self.switches > ENOUGH:
            self.fail("they do not come to an end")
        super().switch(life)

    def ended(self, life):
        if life.rank in self.restarts and life.seen is None and self.over is None:
            self.restarts.remove(life.rank)
            successor = BackupLife(self, life.rank, NEVER, joins=True)
            self.say(f"{life.rank} is started again")
            self.lives.append(successor)
            successor.thread.start()
        super().ended(life)

    def check_values(self, driver):
        """Late replicas may see values change."""


def twin(scene, decisions, ordered):
    """Return the variables of one server that makes the same versions."""
    served = Served(scene)
    store = served.store
    for version in range(scene.steps):
        if ordered == version:
            served.values["kernel"][...] = 0.25
        given = [served.gradient(*divmod(part, scene.parts)) for part in decisions[version]]
        blocks, weights = [each[0] for each in given], [each[1] for each in given]
        weighs = scene.rules.weighting == Weighting.EXAMPLES and len(set(weights)) > 1
        trainable = [group.trainable for group in store.groups]
        store.apply(mean(blocks, trainable, len(blocks), weights if weighs else None, store.values), version)
    return served


def judge(host, seen):
    """Hold what came out against one process, and the accounts of parts against each other."""
    scene, decisions = host.scene, host.decisions
    assert sorted(decisions) == list(range(scene.steps))
    parts = [part for each in decisions.values() for part in each]
    assert len(parts) == len(set(parts)), f"a part counts twice: {decisions}"
    assert all(len(each) == scene.parts for each in decisions.values())
    host.quiet(lambda: None)
    fit = host.view().record.read()
    assert (fit.version, fit.counted) == (scene.steps, None)
    if scene.retry and not scene.poisoned:
        dealt = fit.dealt(scene.parts)
        empty = {
            number * scene.parts + place for (number, place), count in scene.examples.items() if not count
        }
        assert set(range(dealt.next)) <= {*parts, *dealt.due, *empty}, "a part is lost"
    twin(scene, decisions, host.ordered).hold_against(host.arena, scene.steps)
    assert seen


def drawn(seed):
    """Return a scene of a seed."""
    chance = random.Random(seed)
    replicas = chance.choice((2, 3, 3, 4, 5))
    backups = chance.randint(1, min(2, replicas - 1))
    parts, steps = replicas - backups, chance.randint(2, 5)
    deaths, stopped = {}, {}
    points = {**POINTS, "lock": 12}
    hit = chance.sample(range(replicas), chance.randint(0, replicas - 1))
    for rank in hit:
        point = chance.choice(("word", "carry", "update", "lock", chance.choice(list(points))))
        deaths[rank] = chance.randint(1, steps), point, chance.randint(1, points[point])
    retry = bool(hit) and chance.random() < 0.5  # the last steps wait for a late part: nobody is stopped
    if not hit:
        for rank in chance.sample(range(replicas), backups):
            stopped[rank] = (
                chance.randint(1, steps),
                chance.choice(("wait", "word", "in gradient", "doorbell", "lock")),
            )
    cells = [(number, part) for number in range(steps) for part in range(parts)]
    scene = BackupScene(
        chance.choice(RULES),
        replicas,
        parts,
        steps,
        chance.choice((TINY, WITH_TABLES)),
        deaths,
        Rules(chance.choice(list(Weighting))),
        {cell: chance.choice((0, 3, 8)) for cell in chance.sample(cells, min(2, len(cells)))},
        frozenset(chance.sample(cells, chance.choice((0, 0, 1)))),
        giver=min(set(range(replicas)) - set(deaths)),
        certain=False,
        block_elements=4,
        retry=retry,
        stopped=stopped,
    )
    scene.values_at = chance.choice((0, chance.randint(1, steps - 1))) if scene.giver not in stopped else 0
    scene.backups = BackupRules(parts, replicas, retry=scene.retry)
    return scene


def broken_rule(seed):
    """Run the scene of a seed; return what went wrong, or None."""
    host = BackupHost(drawn(seed), seed)
    try:
        judge(host, host.run())
    except AssertionError as error:
        return f"seed {seed}: {error}\n" + "\n".join(host.story)
    return None
