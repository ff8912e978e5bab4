"""Replicas in forked processes over one arena, of which some kill themselves with SIGKILL at a chosen point."""

import os
import pickle
import random
import signal
import traceback
from dataclasses import dataclass

from collectives.scene import Scene, judge, tear, train

from dtrain.learning import optimizers
from dtrain.protocol.part_dealer import PartDealer
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.driver import CollectiveDriver
from dtrain.roles.collective.rules import Waits
from dtrain.state.batch_cut import Dealt
from dtrain.wire.one_host.synchronization import Doorbells, pairs

POINTS = ("before gradient", "in gradient", "update", "word")


@dataclass(frozen=True)
class Death:
    """A rank kills itself in a round: at a point, after passing it `after` times in that round."""

    round: int
    point: str
    after: int = 0


class KillingWords:
    """Words of which a write may be the end of this process: before it, or after it."""

    def __init__(self, words, may_die):
        self.words = words
        self.may_die = may_die

    def __getitem__(self, place):
        return self.words[place]

    def __setitem__(self, place, number):
        self.may_die("word")
        self.words[place] = number
        self.may_die("word")


def run(scene):
    """Run a scene; return the arena at the end, and by rank what the survivors have seen."""
    arena = Arena.make(scene.shape)
    scene.fill(arena)
    arena.begin(range(scene.replicas))
    ends = pairs(range(scene.replicas))
    children = {}
    for rank in range(scene.replicas):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            live(scene, arena, ends, rank, writing)
        os.close(writing)
        children[rank] = child, reading
    for sockets in ends.values():
        for each in sockets.values():
            each.close()
    seen = {}
    for rank, (child, reading) in children.items():
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()
        os.waitpid(child, 0)
        if told:
            seen[rank] = pickle.loads(told)
    spared = set(range(scene.replicas)) - set(scene.deaths)
    assert spared <= set(seen), "a replica that was not to die is gone"
    assert not scene.certain or spared == set(seen), "a replica did not come to the point of its death"
    return arena, seen


def live(scene, arena, ends, rank, writing):
    try:
        for other, sockets in ends.items():
            if other != rank:
                for each in sockets.values():
                    each.close()
        told = pickle.dumps(take_part(scene, arena, Doorbells(ends[rank]), rank))
    except BaseException:
        told = pickle.dumps(traceback.format_exc())
    os.write(writing, told)
    os._exit(0)


def take_part(scene, arena, doorbells, rank):
    """Train as one rank; return what it saw."""
    death = scene.deaths.get(rank)
    passed = 0
    driver = None

    def may_die(point, torn=None):
        nonlocal passed
        if death is None or driver is None or driver.round + 1 != death.round or point != death.point:
            return
        passed += 1
        if passed > death.after:
            for array in (torn or {}).values():
                array.flat[::2] = 3
            os.kill(os.getpid(), signal.SIGKILL)

    if death is not None:
        words = KillingWords(arena.board.ready._words, may_die)
        arena.board.__init__(words, scene.replicas, scene.parts)
    store = arena.store(optimizers.serialize(scene.optimizer), max_steps=scene.steps)
    dealer = PartDealer.of(Dealt(scene.parts), whole=True)
    driver = CollectiveDriver(arena, doorbells, rank, store, dealer, scene.rules, waits=Waits(patience_s=20))
    tear(store, may_die)
    return train(scene, driver, may_die)


def check(scene):
    """Run a scene, and hold it against its twin."""
    arena, seen = run(scene)
    judge(scene, arena, seen)
    return seen


def drawn(seed):
    """Return a scene with one to all but one deaths, drawn."""
    chance = random.Random(seed)
    replicas = chance.choice((2, 3, 4))
    number = chance.randint(1, 4)
    together = chance.random() < 0.5
    deaths = {}
    for rank in chance.sample(range(replicas), chance.randint(1, replicas - 1)):
        at = number if together else chance.randint(1, 4)
        point = chance.choice(POINTS)
        deaths[rank] = Death(at, point, chance.randint(0, {"word": 24, "before gradient": 0}.get(point, 1)))
    rules = chance.choice((optimizers.SGD(0.05, momentum=0.9), optimizers.Adam(0.01), optimizers.SGD(0.1)))
    return Scene(rules, replicas, chance.choice((replicas, replicas + 1, 2)), 5, deaths=deaths, certain=False)
