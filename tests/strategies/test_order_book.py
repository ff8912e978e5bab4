"""When a leader's order holds in a replica that reads it between two rounds."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from dtrain.collectives.ledger import HEAD_BYTES, Ledger
from dtrain.messages import Sums
from dtrain.protocol.tally import Tally
from dtrain.strategies.multi_worker_mirrored.orders import LEADER, LeaderOrder, OrderBook

BEFORE = LeaderOrder(number=0, optimizer={"name": "sgd"}, until=40)
VERSION = 13


class Replicas:
    """The books of a leader and of a replica, which both stand at one version."""

    def __init__(self):
        self._memory = np.zeros(HEAD_BYTES + 8192, np.uint8), [0]
        self.leader, self.other = self.book(), self.book()

    def book(self):
        ledger = Ledger(*self._memory, lambda start, stop: None)
        return OrderBook(ledger, self.state(), BEFORE, 0)

    def state(self):
        tally = Tally(0, 10)
        store = SimpleNamespace(max_steps=40, change=lambda change, version: None)
        return SimpleNamespace(global_step=VERSION, tally=tally, store=store, weights={})

    @property
    def last_step_of_other(self):
        return self.other._state.store.max_steps


@pytest.fixture
def replicas():
    return Replicas()


def stop():
    return LeaderOrder(1, BEFORE.optimizer, None, end=VERSION, version=VERSION)


def test_an_order_holds_in_a_replica_that_reads_it_and_frees_one_that_is_held(replicas):
    replicas.leader.give(LeaderOrder(1, BEFORE.optimizer, VERSION, version=VERSION), None, VERSION)
    replicas.other.heed(VERSION)
    assert replicas.other.is_held(VERSION)
    assert replicas.last_step_of_other == 40
    replicas.leader.give(stop(), None, VERSION)
    replicas.other.heed(VERSION)
    assert not replicas.other.is_held(VERSION)
    assert replicas.last_step_of_other == VERSION


def test_a_replica_awaits_ordered_values_until_a_round_has_brought_it_to_the_next_side(replicas):
    assert not replicas.other.awaits_values(4)
    replicas.leader.give(msgspec.structs.replace(stop(), side=4), {"w": np.ones(2)}, VERSION)
    replicas.other.heed(VERSION)
    assert replicas.other.awaits_values(4)
    assert not replicas.other.awaits_values(5)


def test_the_next_leader_owes_the_values_of_an_order_until_they_are_assigned(replicas):
    replicas.other.heed(VERSION)
    assert not replicas.other.owes_values()
    replicas.leader.give(LeaderOrder(1, BEFORE.optimizer, None, version=VERSION), {"w": np.ones(2)}, VERSION)
    replicas.other.heed(VERSION)
    assert replicas.other.owes_values()
    values, ends = replicas.other.values(VERSION)
    assert (np.frombuffer(values["w"]).tolist(), ends) == ([1.0, 1.0], False)
    replicas.leader.carried_out()
    replicas.other.heed(VERSION)
    assert not replicas.other.owes_values()


def test_a_leader_of_another_host_may_not_have_written_yet_that_it_leads(replicas):
    """Its whole ledger counts in the place of the one before, which named a leader that has died."""
    replicas.leader.lead(2, VERSION)
    replicas.other.take_over({}, whole=True)
    assert replicas.other.leader == 2
    replicas.other.take_over({LEADER: b"\x01"}, whole=False)
    assert replicas.other.leader == 1


def test_an_order_that_the_next_leader_does_not_know_holds_nowhere(replicas):
    """The leader died before it told the host of the next one."""
    replicas.leader.give(msgspec.structs.replace(stop(), side=4), {"w": np.ones(2)}, VERSION)
    replicas.other.heed(VERSION)
    assert replicas.last_step_of_other == VERSION
    replicas.other.take_over({}, whole=True)
    assert replicas.other.order == BEFORE
    assert replicas.last_step_of_other == 40
    assert not replicas.other.awaits_values(4)


def tally_after(steps):
    """The account of so many steps, 20 in an epoch, each of one example with loss 5."""
    tally = Tally(0, 20)
    for step in range(steps):
        tally.add(step, Sums(names=("loss",), totals=np.array([1.0, 5.0]).tobytes()))
    return tally


@pytest.mark.parametrize("version", [19, 20])
def test_what_the_next_round_begins_with_has_the_step_that_is_being_made(version):
    """A replica that dies before that step is made has not counted it, nor has its heir counted it twice. Each step
    belongs to its own epoch.
    """
    before = tally_after(version)
    given = [Sums(names=("loss",), totals=np.array([1.0, 5.0]).tobytes())]
    for _ in range(2):
        assert before.after(before.open(), version, given) == tally_after(version + 1).open()
    assert before.open() == tally_after(version).open()


def test_a_newcomer_leaves_out_the_sums_of_an_epoch_whose_numbers_the_leader_has_recorded(replicas):
    told = tally_after(25).open()
    newcomer = replicas.book()
    newcomer._state.tally = newcomer._state.tally.holding(told)
    assert newcomer._state.tally.open() == told
    replicas.leader.record({0: {"loss": 5.0}}, VERSION)
    newcomer.heed(VERSION)
    assert newcomer._state.tally.open() == told[1:]
    assert newcomer._state.tally.holding(told).open() == told[1:]
