"""A leader's session before servers by hand: its order holds in every term, and the numbers of its pushes go
on.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from roles.by_hand import Hand

from dtrain.cluster import TaskId
from dtrain.learning import optimizers
from dtrain.messages.verdict import Verdict
from dtrain.strategies.interface import Contribution, Orders
from dtrain.strategies.parameter_server_session import ParameterServerSession
from dtrain.wire.frames import Frame

ORDERED = optimizers.serialize(optimizers.SGD(0.125))
LIMIT = 4
STEP = Contribution(0.5, 1)


class Line:
    """A connection of the leader to a server; time passes while it waits for an answer."""

    lost = False
    bytes_sent = bytes_received = 0

    def __init__(self, hand, server):
        self.hand, self.server, self.arrived = hand, server, []

    def send(self, message, blocks=()):
        told = [block.copy() for block in blocks]
        actions = self.hand.servers[self.server].receive(
            self, TaskId.parse("chief:0"), message, told, self.hand.now
        )
        self.carry_out(actions)

    def carry_out(self, actions):
        for action in actions:
            action.caller.arrived.append(Frame(action.message, [block.copy() for block in action.blocks]))

    def receive(self, into=(), *, early=False, meanwhile=None):
        for _ in range(100):
            if self.arrived:
                return self.arrived.pop(0)
            self.hand.now += 0.1
            self.carry_out(self.hand.servers[self.server].tick(self.hand.now, 1))
        raise AssertionError("the server does not answer")

    def close(self):
        pass


class Keeper:
    """Keeps nothing; says of the last step that it was not saved."""

    first_version, failure, generation = 0, None, SimpleNamespace(number=1, alone=True)

    def ordered(self, until, end):
        pass

    def finish(self):
        return False

    def stop(self, save):
        pass


class Reporter:
    """Says nothing."""

    def __init__(self):
        self.status = SimpleNamespace(staleness_mean=None)

    def __getattr__(self, name):
        return lambda *arguments: None


def strategy_of(hand, trains=True):
    return SimpleNamespace(
        training=hand.training,
        reporter=Reporter(),
        trains=trains,
        rank=0 if trains else None,
        num_replicas=1,
        pushes_sent=0,
        connect=lambda server, timeout_s: Line(hand, server),
        connect_s=1.0,
        patience_s=5.0,
        recorded={},
        let_read=lambda driver: None,
    )


def opened(strategy, hand, generation=1):
    return ParameterServerSession(
        strategy, generation, hand.plan, SimpleNamespace(incarnation=1, failure=None), Keeper()
    )


def begun(trains):
    """Servers in term 1, and the session of their leader, who has given an order."""
    hand = Hand(workers=1 - trains, updates="sync", chief_trains=trains)
    hand.initialise(term=1, until=0)
    session = opened(strategy_of(hand, trains), hand)
    session.control(Orders(ORDERED, until=LIMIT))
    return hand, session


def fallen_back(hand, version=0):
    """Begin another term on the servers, from a checkpoint that knows nothing of the order."""
    hand.initialise(term=2, version=version, until=version)


def in_force(hand):
    held = hand.servers[0].held
    return held.term, held.store.optimizer_config["config"]["learning_rate"], held.pushes.held_back


def is_in_force(hand):
    return in_force(hand) == (2, 0.125, hand.version() >= LIMIT)


def test_an_order_is_repeated_where_a_push_is_answered_with_a_new_term():
    hand, session = begun(trains=True)
    session.gradients["kernel"][...] = 1
    fallen_back(hand)
    assert session.step(STEP).verdict is Verdict.VOID
    assert is_in_force(hand)
    assert session.step(STEP).verdict is Verdict.ACCEPTED


def test_an_order_is_repeated_where_the_leader_waits_for_a_version_of_a_new_term():
    hand, session = begun(trains=False)
    fallen_back(hand, version=3)
    session.wait(3)
    assert is_in_force(hand)


@pytest.mark.parametrize("trains", [True, False])
def test_an_order_is_repeated_where_the_last_step_could_not_be_saved(trains):
    hand, session = begun(trains)
    fallen_back(hand)
    assert not session.conclude()
    assert is_in_force(hand)


@pytest.mark.parametrize("trains", [True, False])
def test_an_order_is_repeated_where_the_numbers_of_an_epoch_come_in_a_new_term(trains):
    hand, session = begun(trains)
    fallen_back(hand)
    session.record(0, {})
    assert is_in_force(hand)


@pytest.mark.parametrize(("updates", "mean"), [("sync", None), ("async", 0.0)])
def test_the_status_tells_how_old_gradients_were_where_they_can_be(updates, mean):
    hand = Hand(workers=0, updates=updates)
    hand.initialise(term=1)
    session = opened(strategy_of(hand), hand)
    session.control(Orders(ORDERED))
    assert session.step(STEP).verdict is Verdict.ACCEPTED
    assert session._reporter.status.staleness_mean == mean


def test_what_is_not_trained_is_contributed_as_it_is_until_a_step_says_otherwise():
    hand = Hand(workers=0, updates="sync")
    hand.say("chief:0", hand.initialisation(term=1), hand.blocks(value=3))
    session = opened(strategy_of(hand), hand)
    session.control(Orders(ORDERED))
    for gradient in session.gradients.values():
        gradient.fill(0)
    assert session.step(STEP).verdict is Verdict.ACCEPTED
    assert session.weights["table"].tolist() == [3, 3]


def test_pushes_are_numbered_on_from_one_fit_to_the_next():
    """The servers remember the newest number of a process; one that is not newer counts as seen."""
    hand = Hand(workers=0, updates="sync")
    hand.initialise(term=1)
    strategy = strategy_of(hand)
    first = opened(strategy, hand)
    first.control(Orders(ORDERED))
    for _ in range(2):
        assert first.step(STEP).verdict is Verdict.ACCEPTED
    first.close()
    seen = hand.servers[0].held.seen.export()
    assert seen == [("chief:0", 1, 2)]
    hand.initialise(generation=2, term=2, seen=seen)
    second = opened(strategy, hand, generation=2)
    second.control(Orders(ORDERED))
    second.gradients["kernel"][...] = 1
    assert second.step(STEP).verdict is Verdict.ACCEPTED
    assert np.array_equal(second.weights["kernel"], np.full((2, 2), -0.125, np.float32))
    assert hand.servers[0].held.seen.export() == [("chief:0", 1, 3)]
