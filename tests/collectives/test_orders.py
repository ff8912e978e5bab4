"""The leader's orders hold from one version on in every replica, and a replica that comes later goes on like the others.

Replicas are threads that share an arena; the sockets between them are real.
"""

import threading

import numpy as np

from dtrain.collectives.board import ranks_in
from dtrain.learning import optimizers
from dtrain.parameters.placement import plan
from dtrain.parameters.store import Change
from dtrain.protocol.part_dealer import PartDealer
from dtrain.roles.collective.arena import Arena, ArenaShape
from dtrain.roles.collective.driver import CollectiveDriver
from dtrain.roles.collective.round import HostMembership
from dtrain.roles.collective.rules import Rules
from dtrain.state.batch_cut import Dealt
from dtrain.variables import VariableSpec
from dtrain.wire.one_host.synchronization import Doorbells, pairs

PARTS, STEPS, TIMEOUT_S = 2, 4, 30.0
FIRST = np.arange(6, dtype=np.float32)
ASSIGNED = np.full(6, 7, np.float32)
SLOW, FAST = optimizers.SGD(0.5), optimizers.SGD(2.0)


class Orders:
    """Of one replica: `told` is what the leader has ordered, common to all."""

    def __init__(self, told, store):
        self.told, self.store, self.heard = told, store, []

    def heed(self, version):
        self.heard.append(version)
        if "rule" in self.told:
            self.store.change(Change(version, optimizers.serialize(self.told["rule"])), version)
        if "end" in self.told:
            self.store.max_steps = self.told["end"]

    def carry_out(self):
        for array in self.store.values:
            array[...] = self.told["values"]

    def sums_after(self, version, given):
        return ()


class Replicas:
    """An arena and what its replicas are made of."""

    def __init__(self, ranks=2, rules=None):
        self.told = {}
        self.rules = rules or Rules()
        variables = [VariableSpec("w", FIRST.shape, "float32", trainable=True)]
        self.arena = Arena.make(ArenaShape(plan(variables, servers=1), optimizers.serialize(SLOW), PARTS, 3))
        self.arena.store(optimizers.serialize(SLOW)).fill({"w": FIRST})
        self.arena.begin(range(ranks))
        self.doorbells = {rank: Doorbells(ends) for rank, ends in pairs(range(ranks)).items()}

    def driver(self, rank, **more):
        store = self.arena.store(optimizers.serialize(SLOW), 0, STEPS)
        dealer = PartDealer.of(Dealt(PARTS), whole=True)
        orders = Orders(self.told, store)
        doorbells = self.doorbells[rank]
        return CollectiveDriver(self.arena, doorbells, rank, store, dealer, self.rules, orders=orders, **more)

    def members(self, number):
        return ranks_in(self.arena.board.members[number % 2])

    def values(self, version=STEPS):
        return self.arena.store(optimizers.serialize(SLOW), version=version).variables["w"]


def step(driver, computed=None):
    """Contribute this replica's parts to the round that is open: each one's gradient is 1 + its number."""
    before = driver.round
    while driver.round == before and not driver.finished:
        part = driver.next_part()
        if computed is not None:
            computed.append(part)
        if part >= 0:
            driver.gradients(part).variables["w"][...] = 1 + part
        driver.contribute(part, 1, None, True)


def train(driver, computed=None):
    while not driver.finished:
        step(driver, computed)


def in_threads(*calls):
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def ended(threads):
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert not any(thread.is_alive() for thread in threads)


def expected(values, batches, rate):
    for batch in batches:
        values = values - np.float32(rate) * np.float32(2 * batch + 1.5)
    return values


def test_an_order_holds_in_the_step_in_which_the_leader_has_not_arrived():
    replicas = Replicas()
    leader, member = replicas.driver(0), replicas.driver(1)
    threads = in_threads(lambda: train(member))
    step(leader)
    replicas.told["rule"] = FAST
    train(leader)
    ended(threads)
    assert replicas.values().tolist() == expected(expected(FIRST, [0], 0.5), [1, 2, 3], 2.0).tolist()
    assert member.version == leader.version == STEPS


def test_a_void_round_makes_no_version_assigns_values_and_repeats_its_batch():
    replicas = Replicas()
    leader, member = replicas.driver(0), replicas.driver(1)
    computed = []
    threads = in_threads(lambda: train(member, computed))
    step(leader)
    replicas.told["values"] = ASSIGNED
    leader.void()
    assert replicas.values(1).tolist() == ASSIGNED.tolist()
    assert (leader.version, leader.round) == (1, 2)
    train(leader)
    ended(threads)
    assert [part for part in dict.fromkeys(computed) if part >= 0] == [1, 3, 5, 7]
    assert replicas.values().tolist() == expected(ASSIGNED, [1, 2, 3], 0.5).tolist()


def test_a_void_round_ends_training_in_the_midst():
    replicas = Replicas()
    leader, member = replicas.driver(0), replicas.driver(1)
    threads = in_threads(lambda: train(member))
    step(leader)
    replicas.told |= {"end": 1, "values": FIRST}
    leader.void()
    ended(threads)
    assert (leader.version, member.version) == (1, 1)
    assert leader.finished
    assert member.finished


def test_an_heir_writes_what_was_ordered_where_the_leader_dies_in_the_void_round():
    replicas = Replicas()
    leader, member = replicas.driver(0), replicas.driver(1)
    threads = in_threads(lambda: step(leader))
    step(member)
    ended(threads)
    replicas.told["values"] = ASSIGNED
    replicas.arena.board.void[0] = 2  # the leader's last word
    leader.close()
    step(member)
    assert replicas.values(1).tolist() == ASSIGNED.tolist()
    train(member)
    assert replicas.values().tolist() == expected(ASSIGNED, [1, 2, 3], 0.5).tolist()


def test_a_replica_that_is_admitted_goes_on_with_the_batch_of_all_others():
    replicas = Replicas()
    drivers = [replicas.driver(0), replicas.driver(1)]
    ended(in_threads(*(lambda driver=driver: step(driver) for driver in drivers)))
    ends = pairs(range(3))
    replicas.doorbells[2] = Doorbells(ends[2])
    for rank in (0, 1):
        replicas.doorbells[rank].offer(2, ends[rank][2])
    ended(in_threads(*(lambda driver=driver: step(driver) for driver in drivers)))
    assert replicas.arena.board.admitted[2] == 3
    newcomer = replicas.driver(2, from_round=3)
    assert (newcomer.version, tuple(newcomer.members)) == (2, (0, 1, 2))
    ended(in_threads(*(lambda driver=driver: train(driver) for driver in (*drivers, newcomer))))
    assert replicas.values().tolist() == expected(FIRST, range(STEPS), 0.5).tolist()


def test_no_replica_becomes_a_member_before_every_live_member_can_wake_it():
    """A member that cannot wake it would let it wait for ever."""
    replicas, ends = Replicas(), pairs(range(3))
    views = [HostMembership(replicas.arena.board, replicas.doorbells[rank], rank) for rank in (0, 1)]
    found = []
    for rank, view in enumerate(views):
        replicas.doorbells[rank].offer(2, ends[rank][2])
        view.publish()
        views[0].prepare(2, (0, 1))
        found.append(replicas.members(2))
    assert found == [(0, 1), (0, 1, 2)]
