"""When a leader's order holds in a replica that reads it between two rounds."""

from types import SimpleNamespace

import numpy as np
import pytest

from dtrain.collectives.board import HEAD_BYTES, Ledger
from dtrain.messages import Sums
from dtrain.protocol.tally import Tally
from dtrain.strategies.multi_worker_mirrored.orders import LeaderOrder, OrderBook

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


def stop(*, in_round):
    return LeaderOrder(1, BEFORE.optimizer, None, end=VERSION, version=VERSION, in_round=in_round)


def test_an_end_within_a_step_holds_when_all_have_arrived(replicas):
    """A replica that took itself to be finished before would never arrive, and all would wait for it."""
    replicas.leader.give(stop(in_round=True), None, VERSION)
    replicas.other.poll(VERSION)
    assert replicas.last_step_of_other == 40
    assert not replicas.other.is_held(VERSION)
    replicas.other.heed(VERSION)
    assert replicas.last_step_of_other == VERSION


def test_a_replica_that_is_held_goes_on_to_the_round_of_an_order(replicas):
    replicas.leader.give(LeaderOrder(1, BEFORE.optimizer, VERSION, version=VERSION), None, VERSION)
    replicas.other.poll(VERSION)
    assert replicas.other.is_held(VERSION)
    replicas.leader.give(
        LeaderOrder(2, BEFORE.optimizer, None, VERSION, VERSION, in_round=True), None, VERSION
    )
    replicas.other.poll(VERSION)
    assert not replicas.other.is_held(VERSION)
    assert replicas.last_step_of_other == 40


def test_an_end_at_rest_holds_at_once(replicas):
    replicas.leader.give(stop(in_round=False), None, VERSION)
    replicas.other.poll(VERSION)
    assert replicas.last_step_of_other == VERSION


def test_a_replica_that_leads_next_lets_the_order_hold(replicas):
    replicas.leader.give(stop(in_round=True), None, VERSION)
    replicas.other.poll(VERSION)
    replicas.other._state.store.end_at = lambda end, version: None
    replicas.other.finish_earlier()
    assert replicas.last_step_of_other == VERSION


def tally_after(steps):
    """The account of so many steps, 20 in an epoch, each of one example with loss 5."""
    tally = Tally(0, 20)
    for step in range(steps):
        tally.add(step, Sums(names=("loss",), totals=np.array([1.0, 5.0]).tobytes()))
    return tally


@pytest.mark.parametrize("version", [19, 20])
def test_what_the_next_round_begins_with_has_the_step_that_is_being_made(replicas, version):
    """A replica that dies before that step is made has not counted it, nor has its heir counted it twice. Each step
    belongs to its own epoch.
    """
    replicas.leader._state.tally = tally_after(version)
    given = [Sums(names=("loss",), totals=np.array([1.0, 5.0]).tobytes())]
    for _ in range(2):
        assert replicas.leader.sums_after(version, given) == tally_after(version + 1).open()
    assert replicas.leader._state.tally.open() == tally_after(version).open()


def test_a_newcomer_leaves_out_the_sums_of_an_epoch_whose_numbers_the_leader_has_recorded(replicas):
    told = tally_after(25).open()
    newcomer = replicas.book()
    newcomer._state.tally = newcomer._state.tally.holding(told)
    assert newcomer._state.tally.open() == told
    replicas.leader.record({0: {"loss": 5.0}}, VERSION)
    newcomer.poll(VERSION)
    assert newcomer._state.tally.open() == told[1:]
    assert newcomer._state.tally.holding(told).open() == told[1:]
