"""A leader's training before servers by hand: its order holds in every term, and the numbers of its pushes go
on.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from roles.by_hand import Hand

from dtrain.cluster import TaskId
from dtrain.learning import optimizers
from dtrain.messages.steps import Verdict
from dtrain.runs.reporting import mean_staleness
from dtrain.runs.trace import NO_TRACE
from dtrain.strategies.context import TaskContext
from dtrain.strategies.interface import FitOrder
from dtrain.strategies.parameter_server.opening import open_training
from dtrain.strategies.parameter_server.training import TrainingParts
from dtrain.wire.frames import Frame

ORDERED = optimizers.serialize(optimizers.SGD(0.125))
LIMIT = 4


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
        for action in self.hand.carried_out(self.server, actions):
            action.caller.arrived.append(Frame(action.message, [block.copy() for block in action.blocks]))

    def receive(self, into=(), deadline=None):
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
    saved_step = 0

    def ordered(self, until, end):
        pass

    def finish(self):
        return False

    def stop(self, save):
        pass


class Reporter:
    """Says nothing."""

    trace = NO_TRACE

    def __init__(self):
        self.status = SimpleNamespace(staleness_counts={})
        self.trace = NO_TRACE

    def __getattr__(self, name):
        return lambda *arguments: None


def opened(hand, trains=True, generation=1, sequence=0):
    """The training of a leader, as the strategy opens it."""
    return open_training(
        TrainingParts(
            number=generation,
            plan=hand.plan,
            context=TaskContext(rank=0 if trains else -1),
            section=hand.training,
            link=SimpleNamespace(incarnation=1, failure=None),
            keeper=Keeper(),
            host=0,
            connect=lambda task, timeout_s: Line(hand, task.index),
            connect_s=1.0,
            patience_s=5.0,
            reporter=Reporter(),
            sequence=sequence,
            steps_per_epoch=3,
            checkpoint_folder=Path("nowhere"),
            on_close=lambda training: None,
        )
    )


def step(training):
    """Contribute what is there; returns the verdict."""
    return training.replicas[0].commit(0.5, 1, None).verdict


def begun(trains):
    """Servers in term 1, and the session of their leader, who has given an order."""
    hand = Hand(workers=1 - trains, updates="sync", chief_trains=trains)
    hand.initialise(term=1, until=0)
    training = opened(hand, trains)
    training.order(FitOrder(ORDERED, until=LIMIT))
    return hand, training


def fallen_back(hand, version=0):
    """Begin another term on the servers, from a checkpoint that knows nothing of the order."""
    hand.initialise(term=2, version=version, until=version)


def in_force(hand):
    held = hand.servers[0].held
    return held.term, held.store.optimizer_config["config"]["learning_rate"], held.held_back


def is_in_force(hand):
    return in_force(hand) == (2, 0.125, hand.version() >= LIMIT)


def test_an_order_is_repeated_where_a_push_is_answered_with_a_new_term():
    hand, training = begun(trains=True)
    training.replicas[0].gradients["kernel"][...] = 1
    fallen_back(hand)
    assert step(training) is Verdict.VOID
    assert is_in_force(hand)
    assert step(training) is Verdict.ACCEPTED


def test_an_order_is_repeated_where_the_leader_waits_for_a_version_of_a_new_term():
    hand, training = begun(trains=False)
    fallen_back(hand, version=3)
    training.step(None)  # it has no replica, and the epoch ends at step 3
    assert is_in_force(hand)


@pytest.mark.parametrize("trains", [True, False])
def test_an_order_is_repeated_where_the_last_step_could_not_be_saved(trains):
    hand, training = begun(trains)
    fallen_back(hand)
    assert not training._conclude()
    assert is_in_force(hand)


@pytest.mark.parametrize("trains", [True, False])
def test_an_order_is_repeated_where_the_numbers_of_an_epoch_come_in_a_new_term(trains):
    hand, training = begun(trains)
    fallen_back(hand)
    training.order(FitOrder(rows={}))
    assert is_in_force(hand)


@pytest.mark.parametrize(("updates", "mean"), [("sync", None), ("async", 0.0)])
def test_the_status_tells_how_old_gradients_were_where_they_can_be(updates, mean):
    hand = Hand(workers=0, updates=updates)
    hand.initialise(term=1)
    training = opened(hand)
    training.order(FitOrder(ORDERED))
    assert step(training) is Verdict.ACCEPTED
    assert mean_staleness(training._reporter.status.staleness_counts) == mean


def test_what_is_not_trained_is_contributed_as_it_is_until_a_step_says_otherwise():
    hand = Hand(workers=0, updates="sync")
    hand.say("chief:0", hand.initialisation(term=1), hand.blocks(value=3))
    training = opened(hand)
    training.order(FitOrder(ORDERED))
    for gradient in training.replicas[0].gradients.values():
        gradient.fill(0)
    assert step(training) is Verdict.ACCEPTED
    assert training.weights["table"].tolist() == [3, 3]


def test_pushes_are_numbered_on_from_one_fit_to_the_next():
    """The servers remember the newest number of a process; one that is not newer counts as seen."""
    hand = Hand(workers=0, updates="sync")
    hand.initialise(term=1)
    first = opened(hand)
    first.order(FitOrder(ORDERED))
    for _ in range(2):
        assert step(first) is Verdict.ACCEPTED
    first.close()
    seen = hand.servers[0].held.seen.export()
    assert seen == [("chief:0", 1, 2)]
    hand.initialise(generation=2, term=2, seen=seen)
    second = opened(hand, generation=2, sequence=first.driver.machine.sequence)
    second.order(FitOrder(ORDERED))
    second.replicas[0].gradients["kernel"][...] = 1
    assert step(second) is Verdict.ACCEPTED
    assert np.array_equal(second.weights["kernel"], np.full((2, 2), -0.125, np.float32))
    assert hand.servers[0].held.seen.export() == [("chief:0", 1, 3)]
