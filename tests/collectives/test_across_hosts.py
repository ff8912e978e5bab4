"""Replicas over several hosts, some with several replicas: an arena a host, streams between them, and the numbers of
one process.
"""

import multiprocessing
import os
import pickle
import re
import signal
import socket
import traceback
from random import Random

import msgspec
import pytest
from collectives.scene import Scene, twin
from row_by_row import each_with_one, every_row

from dtrain.collectives.between_hosts.follower import Vote
from dtrain.config.choices import TooFew, Weighting
from dtrain.learning import optimizers
from dtrain.messages import Hello
from dtrain.messages.replicas import Seat
from dtrain.process.secret import new_secret
from dtrain.protocol.part_dealer import PartDealer
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.between_hosts.agreement import (
    OF_THREADS,
    SPEAKS,
    AgreementMember,
    HostProxy,
    Hosts,
)
from dtrain.roles.collective.calls import CallLog, CallMemory
from dtrain.roles.collective.driver import CollectiveDriver
from dtrain.roles.collective.rules import Rules, Waits
from dtrain.state.batch_cut import Dealt
from dtrain.strategies.multi_worker_mirrored.step_calls import StepCalls
from dtrain.wire.one_host.synchronization import Doorbells, Locks, pairs
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.streams import Listener, open_stream

SECRET = new_secret()
"""As a launch makes it: the keys of a secret that a person has chosen take a tenth of a second each."""

PATIENCE_S = 60.0


def start(scene, hosts, deaths):
    """Fork every replica; return the arenas, and by rank what the survivors have seen."""
    fork = multiprocessing.get_context("fork")
    shape = msgspec.structs.replace(scene.shape, several_hosts=True)
    ports, barrier = fork.Array("i", scene.replicas), fork.Barrier(scene.replicas)
    arenas, told = [], {}
    seats = {
        host: tuple(Seat(rank=rank, task=f"worker:{rank}", address="") for rank in ranks)
        for host, ranks in enumerate(hosts)
    }
    for host, ranks in enumerate(hosts):
        arena = Arena.make(shape)
        scene.fill(arena)
        arena.begin(ranks)
        arena.vote_first(Vote.first(host, seats))
        arenas.append(arena)
        log = CallLog(CallMemory.make(scene.parts))
        ends = pairs(ranks)
        for rank in ranks:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reading)
                memory = arena, log
                live(scene, hosts, host, rank, memory, ends, (ports, barrier), writing, deaths.get(rank))
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


def live(scene, hosts, host, rank, memory, ends, meeting, writing, death):
    try:
        for other, sockets in ends.items():
            if other != rank:
                for each in sockets.values():
                    each.close()
        said = pickle.dumps(take_part(scene, hosts, host, rank, memory, ends[rank], meeting, death))
    except BaseException:
        said = pickle.dumps(traceback.format_exc())
    os.write(writing, said)
    os._exit(0)


def take_part(scene, hosts, host, rank, memory, sockets, meeting, death):
    arena, log = memory
    ports, barrier = meeting
    own = Credentials.made(Hello(run_id="across", cluster_hash="0", task=f"worker:{rank}"), SECRET)
    listener = Listener("127.0.0.1:1", own, lambda hello: None, 64)
    ports[rank] = int(listener.address.rpartition(":")[2])
    speaks = rank == hosts[host][0]
    locks = Locks(arena.fd)
    assert not speaks or locks.acquire(SPEAKS)
    barrier.wait(PATIENCE_S)
    heard, doorbell = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    doorbells = Doorbells({**sockets, OF_THREADS: heard})

    def open_(task, name, timeout_s):
        address = f"127.0.0.1:{ports[int(task.partition(':')[2])]}"
        return open_stream(task, address, name, own, timeout_s)

    holds = scene.rules.too_few != TooFew.SHRINK
    needed = scene.rules.needed(scene.parts, scene.parts) if holds else 0
    known = Hosts(open_, listener.accept, lease_s=20.0, patience_s=PATIENCE_S, needed=needed)
    about = {"weighting": scene.rules.weighting, "deterministic": True, "calls": log}

    def speak(number, book):
        return HostProxy(arena, known, rank, doorbells.ring, doorbell, number=number, book=book, **about)

    if death is not None and death[0] in {"vote", "no promise"}:
        die_with(arena.vote, *death)
    across = AgreementMember(arena, locks, rank, speak, speaks=speaks)
    store = arena.store(optimizers.serialize(scene.optimizer), max_steps=scene.steps)
    dealer = PartDealer.of(Dealt(scene.parts), whole=True)
    waits = Waits(patience_s=PATIENCE_S)
    driver = CollectiveDriver(arena, doorbells, rank, store, dealer, scene.rules, waits=waits, across=across)

    def may_die(point, torn=None):
        if death is not None and (driver.round + 1, point) == death:
            os.kill(os.getpid(), signal.SIGKILL)

    seen = scene.train(driver, may_die, StepCalls(log, driver, doorbells.ring, waits))
    across.close()
    listener.stop()
    return seen


def die_with(record, kind, count):
    """Die as a promise is to be written that often, or has been, before anything follows from it."""
    write = record.write

    def counted(vote):
        nonlocal count
        count -= 1
        if count or kind == "vote":
            write(vote)
        if not count:
            os.kill(os.getpid(), signal.SIGKILL)

    record.write = counted


def check(scene, hosts, deaths=None, left=None):
    """Run a scene over hosts, and hold every host that is left, and what its replicas saw, against one process."""
    arenas, seen = start(scene, hosts, deaths or {})
    served, version, sums = twin(scene)
    left = left if left is not None else set(range(scene.replicas))
    for rank in left:
        assert not isinstance(seen[rank], str), f"rank {rank}: {seen[rank]}"
        assert [each[1] for each in seen[rank] if each[1]] == sums
        assert seen[rank][-1][0] == version
    for arena, ranks in zip(arenas, hosts, strict=True):
        if set(ranks) & left:
            served.hold_against(arena, version)
    return seen


@pytest.mark.parametrize("hosts", [[[0], [1], [2]], [[0, 1], [2]], [[0, 2], [1]], [[0, 1, 2]]], ids=str)
def test_the_bits_are_those_of_one_process_wherever_the_replicas_are(hosts):
    check(Scene(), hosts)


@pytest.mark.parametrize(
    "scene",
    [
        Scene(optimizers.Adam(0.01, clipnorm=0.5), parts=4),
        Scene(optimizers.SGD(0.1, global_clipnorm=0.3)),
        Scene(rules=Rules(weighting=Weighting.EXAMPLES), examples={(0, 1): 3, (1, 2): 5, (2, 0): 0}),
        Scene(examples={(1, 1): 0}, poisoned=frozenset({(2, 0)})),
    ],
    ids=["clipnorm", "global clipnorm", "weighted", "empty and refused"],
)
def test_so_they_are_with_limits_weights_empty_and_refused_parts(scene):
    check(scene, [[0, 1], [2]])


POINTS = ["in gradient", "before gradient"]


@every_row("victims, point", each_with_one([(1,), (2,), (0, 1)], POINTS))
def test_the_step_of_a_death_is_finished_by_those_who_are_left(victims, point):
    """A replica, a host, the leader's host."""
    check(Scene(certain=False), [[0, 1], [2]], dict.fromkeys(victims, (2, point)), {0, 1, 2} - {*victims})


@pytest.mark.parametrize(("victims", "point"), each_with_one([(2,), (0,), (0, 2)], POINTS), ids=str)
def test_another_replica_speaks_for_a_host_whose_speaker_has_ended(victims, point):
    scene = Scene(replicas=4, parts=4, certain=False)
    check(scene, [[0, 1], [2, 3]], dict.fromkeys(victims, (2, point)), {0, 1, 2, 3} - set(victims))


@pytest.mark.parametrize("seed", range(*map(int, os.environ.get("DTRAIN_SEEDS", "0:4").split(":"))))
def test_it_speaks_in_the_same_words_whatever_was_promised_last(seed):
    """On two hosts of three replicas the one that speaks dies as it has promised something, and so may the next."""
    random = Random(seed)
    victims = random.sample([(0, 1, 3), (0, 3, 4), (0, 3), (0,), (3,), (0, 1, 3, 4)], 1)[0]
    kinds = "vote", "no promise"
    deaths = {rank: (random.choice(kinds), random.randrange(1, 14)) for rank in victims}
    scene = Scene(replicas=6, parts=6, certain=False)
    check(scene, [[0, 1, 2], [3, 4, 5]], deaths, set(range(6)) - set(victims))


@pytest.mark.parametrize(("rule", "timeout_s"), [(TooFew.FAIL, 60.0), (TooFew.WAIT, 0.2)])
@pytest.mark.parametrize("victim", [0, 1, 2], ids=["the leader", "a replica", "a host"])
def test_after_the_step_of_a_death_all_who_are_left_give_up_and_say_why(rule, timeout_s, victim):
    scene = Scene(rules=Rules(too_few=rule, too_few_timeout_s=timeout_s))
    _, seen = start(scene, [[0], [1], [2]] if victim == 0 else [[0, 1], [2]], {victim: (2, "in gradient")})
    assert seen.keys() == {0, 1, 2} - {victim}
    # Others may not have heard yet that the leader has begun its step: then that one is held. And one of them
    # may have given up before the other.
    version = "[23]" if victim == 0 else "3"
    expected = (
        rf"TooFewReplicasError: too few replicas: 3 are needed for version {version} and [12] are left, .*"
    )
    for said in seen.values():
        assert re.search(rf"{expected}\(training.too_few: {rule}\)", said), said
