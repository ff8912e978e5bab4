"""Replicas over several hosts, some with several replicas: an arena a host, streams between them, and the numbers of
one process.
"""

import os
import re
import threading
import time
from random import Random
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from collectives.members import Death, check, start
from collectives.scene import Scene
from row_by_row import each_with_one, every_row

from dtrain.config.choices import TooFew, Weighting
from dtrain.errors import PeerLostError
from dtrain.learning import optimizers
from dtrain.messages.rounds import CompletePart, MemberSeat, ReduceAttempt, RoundMade
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.lane_work import LaneJob, LaneThread, MeansOverHosts, SliceWork
from dtrain.roles.collective.rules import Rules


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


ORDERS = {
    "values": {1: {"values": {"bias": np.full(777, 0.25, np.float32)}}},
    "optimizer": {2: {"optimizer": optimizers.serialize(optimizers.SGD(0.5, momentum=0.9))}},
    "values, then the end": {1: {"values": {"wide": np.arange(1000.0)}}, 3: {"max_steps": 3}},
}


@every_row("hosts, orders", each_with_one([[[0, 1, 2]], [[0, 1], [2]], [[0], [1], [2]]], [*ORDERS]))
def test_what_the_leader_orders_holds_at_every_host_and_the_batch_of_a_void_round_comes_again(hosts, orders):
    check(Scene(orders=ORDERS[orders], steps=5), hosts)


POINTS = ["in gradient", "before gradient", "update"]


@every_row("victims, point", each_with_one([(1,), (2,), (0, 1)], POINTS))
def test_the_step_of_a_death_is_finished_by_those_who_are_left(victims, point):
    """A replica, a host, the leader's host."""
    check(Scene(certain=False), [[0, 1], [2]], dict.fromkeys(victims, Death(2, point)))


@every_row("victims, point", each_with_one([(2,), (0,), (0, 2)], POINTS))
def test_another_replica_reduces_for_a_host_whose_first_one_has_ended(victims, point):
    check(
        Scene(replicas=4, parts=4, certain=False), [[0, 1], [2, 3]], dict.fromkeys(victims, Death(2, point))
    )


@pytest.mark.parametrize("seed", range(*map(int, os.environ.get("DTRAIN_SEEDS", "0:4").split(":"))))
def test_the_bits_are_the_same_at_whatever_message_replicas_have_ended(seed):
    """On two hosts of three replicas some die as they have said something, and so may the next."""
    random = Random(seed)
    victims = random.sample([(0, 1, 3), (0, 3, 4), (0, 3), (0,), (3,), (0, 1, 3, 4)], 1)[0]
    deaths = {rank: Death(random.randrange(1, 4), "message", random.randrange(14)) for rank in victims}
    check(
        Scene(replicas=6, parts=6, certain=False), [[0, 1, 2], [3, 4, 5]], deaths, set(range(6)) - {*victims}
    )


@pytest.mark.parametrize(("rule", "timeout_s"), [(TooFew.FAIL, 60.0), (TooFew.WAIT, 0.2)])
@pytest.mark.parametrize("victim", [0, 1, 2], ids=["the leader", "a replica", "a host"])
def test_after_the_step_of_a_death_all_who_are_left_give_up_and_say_why(rule, timeout_s, victim):
    scene = Scene(rules=Rules(too_few=rule, too_few_timeout_s=timeout_s))
    hosts = [[0], [1], [2]] if victim == 0 else [[0, 1], [2]]
    hosts = [[0, 1, 2]] if victim == 3 else hosts
    _, seen = start(scene, hosts, {victim: Death(2, "in gradient")})
    assert seen.keys() == {0, 1, 2} - {victim}
    # Others may not have heard yet that the leader has begun its step: then that one is held. And one of them
    # may have given up before the other.
    version = "[23]" if victim == 0 else "3"
    expected = (
        rf"TooFewReplicasError: too few replicas: 3 are needed for version {version} and [12] are left, .*"
    )
    for said in seen.values():
        assert re.search(rf"{expected}\(training.too_few: {rule}\)", said), said


def test_an_attempt_that_is_given_up_before_it_has_opened_streams_ends_at_once():
    """Another host may have given it up as well: nobody opens the stream for which it would wait."""
    scene = Scene()
    arena = Arena.make(msgspec.structs.replace(scene.shape, several_hosts=True))
    store = arena.store(scene.shape.optimizer, max_steps=scene.steps)
    begun, goes_on = threading.Event(), threading.Event()

    def take(task, name, deadline, given_up):
        while (reason := given_up()) is None:
            assert time.monotonic() < deadline, "waited for a stream that nobody opens"
        raise PeerLostError(reason)

    def open_(task, name, timeout_s):
        return SimpleNamespace(send=lambda block: None, abort=lambda reason: None, close=lambda: None)

    settings = {"weighting": Weighting.REPLICAS, "deterministic": False, "patience_s": 5.0}
    means = MeansOverHosts(arena, 0, open_, take, **settings)

    class SlowWork:
        def run(self, job):
            begun.set()
            assert goes_on.wait(60)
            means.make(job, (0,), SliceWork(store))

    class Means:
        """The same, but that the work goes on only after it was given up."""

        def abort(self, reason):
            means.abort(reason)
            goes_on.set()

        def __getattr__(self, name):
            return getattr(means, name)

    parts = tuple(
        CompletePart(part=each, examples=8, finite=True, holder=each, place=each) for each in (0, 1)
    )
    attempt = ReduceAttempt(number=1, made=RoundMade(parts=parts, divisor=2), lanes={0: (0,), 1: (0,)})
    seats = {
        each: MemberSeat(number=each, rank=each, task=f"worker:{each}", host=f"host {each}")
        for each in (0, 1)
    }
    thread = LaneThread(SlowWork(), Means(), lambda: None)
    thread.begin(LaneJob(0, attempt, seats, 0, 0, ({}, False), ()))
    assert begun.wait(60)
    thread.abandon()
    ((_, error),) = thread.take()
    assert "given up" in str(error)
    thread.close()
