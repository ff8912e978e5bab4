"""Members in forked processes, on one host or on several of one machine: an arena a host, streams between hosts, and
some that kill themselves with SIGKILL at a chosen point.
"""

import multiprocessing
import os
import pickle
import random
import signal
import traceback
from dataclasses import dataclass
from types import SimpleNamespace

import msgspec
from collectives.scene import STEPS_PER_EPOCH, Scene, judge, tear

from dtrain.config import MultiWorkerMirroredSection
from dtrain.learning import optimizers
from dtrain.messages import Hello, Verdict
from dtrain.messages.rounds import Known, MemberSeat
from dtrain.process.secret import new_secret
from dtrain.protocol.part_dealer import NO_PART
from dtrain.protocol.tally import Tally
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.calls import CallLog, CallMemory
from dtrain.roles.collective.rules import Waits
from dtrain.state.batch_cut import Dealt
from dtrain.steps.follower import next_term
from dtrain.strategies.multi_worker_mirrored import member_training
from dtrain.strategies.multi_worker_mirrored.member_training import Assembly
from dtrain.strategies.multi_worker_mirrored.members import AllReplicas, MemberEntry
from dtrain.strategies.multi_worker_mirrored.orders import LeaderOrder, OrderBook
from dtrain.strategies.multi_worker_mirrored.rendezvous import ledger_of
from dtrain.strategies.multi_worker_mirrored.step_calls import StepCalls
from dtrain.wire.one_host.members import MemberLinks
from dtrain.wire.one_host.shared_memory import GrowingMemory
from dtrain.wire.one_host.synchronization import Locks, pairs
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.streams import Listener, open_stream

SECRET = new_secret()
"""As a launch makes it: the keys of a secret that a person has chosen take a tenth of a second each."""

PATIENCE_S = 60.0
POINTS = ("before gradient", "in gradient", "update", "message")
_LEDGER_BYTES = 1 << 22


@dataclass(frozen=True)
class Death:
    """A rank kills itself in a round: at a point, after passing it `after` times in that round."""

    round: int
    point: str
    after: int = 0


class Ways:
    """What a task has for other hosts: its listener, and the addresses of all."""

    number = -1

    def __init__(self, rank, ports):
        self.own = Credentials.made(Hello(run_id="across", cluster_hash="0", task=f"worker:{rank}"), SECRET)
        self.listener = Listener("127.0.0.1:1", self.own, lambda hello: None, 64)
        self.ports = ports
        ports[rank] = int(self.listener.address.rpartition(":")[2])

    def open(self, task, name, timeout_s):
        address = f"127.0.0.1:{self.ports[int(task.partition(':')[2])]}"
        return open_stream(task, address, name, self.own, timeout_s)

    def named(self, generation):
        return self.open, self.listener.accept

    def reach_members(self, links):
        streams = links.reach(
            lambda seat, timeout_s: self.open(seat.task, f"rounds {self.number}", timeout_s), 1 << 26
        )
        self.listener.route("rounds ", streams.arrived)

    def begin_members(self, ask_in, members): ...

    def learn_at(self, task, address): ...

    def bring(self, arena, generation, welcomed): ...

    def warn(self, text): ...

    def end_members(self):
        self.listener.end_route("rounds ")


class State:
    """What a call of `fit` keeps: the version, and the rows of epochs."""

    def __init__(self, store):
        self.store, self.weights = store, store.variables
        self.global_step = 0
        self.tally = Tally(0, STEPS_PER_EPOCH)


def start(scene, hosts, deaths=None):
    """Fork every replica; return the arenas, and by rank what the survivors have seen."""
    fork = multiprocessing.get_context("fork")
    deaths = scene.deaths if deaths is None else deaths
    several = len(hosts) > 1
    shape = msgspec.structs.replace(scene.shape, several_hosts=several)
    ports, barrier = fork.Array("i", scene.replicas), fork.Barrier(scene.replicas)
    arenas, told = [], {}
    for ranks in hosts:
        arena = Arena.make(shape)
        scene.fill(arena)
        arena.put_tally(0, ())
        arenas.append(arena)
        memory = GrowingMemory.make(_LEDGER_BYTES)
        calls = CallMemory.make(scene.parts * (2 if several else 1))
        ends = pairs(ranks)
        for rank in ranks:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reading)
                here = arena, ledger_of(memory), CallLog(calls, scene.parts)
                live(scene, hosts, rank, here, ends, (ports, barrier), writing, deaths.get(rank))
            os.close(writing)
            told[rank] = child, reading
        for sockets in ends.values():
            for each in sockets.values():
                each.close()
    seen = {}
    for rank, (child, reading) in told.items():
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        os.waitpid(child, 0)
        if said:
            seen[rank] = pickle.loads(said)
    return arenas, seen


def live(scene, hosts, rank, here, ends, meeting, writing, death):
    try:
        for other, sockets in ends.items():
            if other != rank:
                for each in sockets.values():
                    each.close()
        said = pickle.dumps(take_part(scene, hosts, rank, here, ends[rank], meeting, death))
    except BaseException:
        said = pickle.dumps(traceback.format_exc())
    os.write(writing, said)
    os._exit(0)


def take_part(scene, hosts, rank, here, sockets, meeting, death):
    """Train as one rank; return what it saw. All members of a host reduce, as those of a large model do."""
    arena, ledger, log = here
    member_training.SHARES_BYTES = 1
    ports, barrier = meeting
    several = len(hosts) > 1
    ways = Ways(rank, ports) if several else None
    barrier.wait(PATIENCE_S)
    host_of = {each: f"host {host}" for host, ranks in enumerate(hosts) for each in ranks}
    seats = tuple(
        MemberSeat(
            number=each, rank=each, task=f"worker:{each}", host=host_of[each], address=str(ports[each])
        )
        for each in range(scene.replicas)
    )
    links = MemberLinks(sockets, Locks(arena.fd))
    if ways is not None:
        ways.number = rank
        ways.reach_members(links)
    store = arena.store(optimizers.serialize(scene.optimizer), max_steps=scene.steps)
    state = State(store)
    shared = SimpleNamespace(terms=SimpleNamespace(leader=0, state=SimpleNamespace(generation=1)))
    known = Known(members=seats, dealt=Dealt(scene.parts))
    entry = MemberEntry(
        shared,
        links,
        arena,
        ledger,
        log,
        rank,
        known,
        next_term(0, 0),
        AllReplicas(scene.replicas, str),
        ways,
    )
    book = OrderBook(ledger, state, LeaderOrder(0, store.optimizer_config, until=None), 0)
    section = MultiWorkerMirroredSection(weighting=scene.rules.weighting, deterministic=several)
    rules = msgspec.structs.replace(scene.rules, replicas=scene.replicas)
    waits = Waits(patience_s=PATIENCE_S)
    driver = Assembly(entry, state, store, book, section, rules, waits).driver()
    driver.book = book
    passed = 0

    def may_die(point, torn=None):
        nonlocal passed
        if death is None or driver.round + 1 != death.round or point != death.point:
            return
        passed += 1
        if passed > death.after:
            for array in (torn or {}).values():
                array.flat[::2] = 3
            os.kill(os.getpid(), signal.SIGKILL)

    if death is not None:
        send = links.send

        def dying(number, message):
            may_die("message")
            send(number, message)
            may_die("message")

        links.send = dying
        tear(store, may_die)
    seen = scene.train(driver, may_die, StepCalls(log, driver, driver.notify, waits))
    if ways is not None:
        ways.listener.stop()
    return seen


def train(scene, driver, passes, compute):
    """Train to the end of a scene; return what was seen, by step: (version, sums, verdict, members).

    `passes` is called at each point where a process may be killed, with the memory that may be half written
    then; `compute` does a part. The leader sees the sums of all steps so far, by epoch; others None.
    """
    seen, orders = [], dict(scene.orders)
    while not driver.finished:
        if driver.leads and driver.version in orders:
            carry_out(driver, orders.pop(driver.version))
            continue
        part = driver.next_part()
        told = (0, None, True)
        if part != NO_PART:
            told = compute(part, driver.place)
        members = tuple(sorted(driver.members))
        outcome = driver.contribute(part, *told)
        if outcome.verdict is not Verdict.PENDING:
            sums = driver.tally if driver.leads else None
            seen.append((driver.version, sums, outcome.verdict, members))
    driver.close()
    return seen


def carry_out(driver, ordered):
    """Order, as the leader, another optimizer, values or the end, as a strategy does."""
    book, version = driver.book, driver.version
    optimizer = ordered.get("optimizer", book.order.optimizer)
    with driver:
        end = ordered.get("max_steps", book.order.end)
        writes = bool(set(ordered) - {"optimizer"})
        side = driver.side if writes else book.order.side
        order = LeaderOrder(book.order.number + 1, optimizer, None, end, version, side)
        book.give(order, ordered.get("values"), version)
        if writes:
            driver.void(values=True)
            book.carried_out()


def check(scene, hosts=None, deaths=None, left=None):
    """Run a scene, and hold every host that is left, and what its replicas saw, against one process."""
    hosts = [list(range(scene.replicas))] if hosts is None else hosts
    arenas, seen = start(scene, hosts, deaths)
    dead = set(scene.deaths if deaths is None else deaths)
    left = left if left is not None else set(range(scene.replicas)) - dead
    assert left <= set(seen), "a replica that was not to die is gone"
    assert not scene.certain or left == set(seen), "a replica did not come to the point of its death"
    for arena, ranks in zip(arenas, hosts, strict=True):
        if set(ranks) & left:
            judge(scene, arena, {rank: seen[rank] for rank in left})
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
        deaths[rank] = Death(at, point, chance.randint(0, {"message": 9, "before gradient": 0}.get(point, 1)))
    rules = chance.choice((optimizers.SGD(0.05, momentum=0.9), optimizers.Adam(0.01), optimizers.SGD(0.1)))
    return Scene(rules, replicas, chance.choice((replicas, replicas + 1, 2)), 5, deaths=deaths, certain=False)
