"""The leader's account of epochs: every answer brings the sums that ps:0 has, and what is recorded belongs to
a term: rule *Aggregated logs* (docs/design/protocol.md#aggregated-logs).
"""

import msgspec
import numpy as np
import pytest
from roles.by_hand import Hand, asynchronous, only, sync
from roles.test_obedience import control, hold

from dtrain.messages import Conclude, Pull, Record, Recorded, Sums, Verdict
from dtrain.roles.chief.order_driver import OrderDriver
from dtrain.wire.frames import Frame

ROW = {"loss": 0.5}
ALONE = {"workers": 0}


def sums(loss):
    return Sums(names=("loss",), totals=np.array([1.0, loss], "<f8").tobytes())


def counted(answer):
    return [(epoch, np.frombuffer(each.totals, "<f8").tolist()) for epoch, each in answer.tally]


@pytest.mark.parametrize("made", [sync, asynchronous])
def test_an_answer_that_is_repeated_tells_of_what_has_counted(made):
    hand = made(**ALONE)
    hand.initialise(term=1, steps_per_epoch=1)
    push = {"term": 1, "sums": sums(2.0)}
    assert counted(only(hand.push("chief:0", **push))) == [(0, [1.0, 2.0])]
    again = only(hand.push("chief:0", **push))
    assert (again.duplicate, counted(again)) == (True, [(0, [1.0, 2.0])])


@pytest.mark.parametrize("made", [sync, asynchronous])
def test_a_refusal_tells_of_what_has_counted(made):
    hand = made(**ALONE)
    hand.initialise(term=1, steps_per_epoch=1)
    hand.push("chief:0", term=1, sums=sums(2.0))
    refused = hand.push("chief:0", sequence=2, base=1, term=1, finite=False, sums=sums(9.0))[0].message
    assert (refused.verdict, counted(refused)) == (Verdict.REFUSED, [(0, [1.0, 2.0])])


def test_an_order_that_ends_training_tells_whoever_waits_of_what_has_counted():
    hand = sync()
    hand.initialise(term=1, steps_per_epoch=1)
    for task in ("worker:0", "worker:1", "chief:0"):
        hand.push(task, term=1, examples=1, sums=sums(2.0))
    hand.push("chief:0", sequence=2, base=1, term=1, examples=1, sums=sums(3.0))
    hold(hand)
    told, _ = control(hand, version=1, term=1, stop=True)
    assert (told.verdict, counted(told)) == (Verdict.FINISHED, [(0, [3.0, 6.0])])


def test_what_has_ended_in_an_earlier_term_is_not_recorded_in_a_later_one():
    """The servers went back while the leader wrote down an epoch."""
    hand = asynchronous()
    hand.initialise(term=2, steps_per_epoch=2, tally=((0, sums(2.0)),))
    held = hand.servers[0].held
    record = Record(generation=1, term=1, epoch=1, rows={0: ROW}, number=(5, 1))
    assert only(hand.say("chief:0", record)) == Recorded(term=2, rows={})
    assert (held.steps.tally.rows, [epoch for epoch, _ in held.steps.tally.open()]) == ({}, [0])
    assert only(hand.say("chief:0", msgspec.structs.replace(record, term=2))) == Recorded(term=2, rows={})
    assert (held.steps.tally.rows, held.steps.tally.open()) == ({0: ROW}, ())
    assert only(hand.say("chief:0", Record(generation=1))) == Recorded(term=2, rows={0: ROW})


def test_a_record_that_comes_late_on_a_broken_connection_takes_nothing_back():
    hand = asynchronous()
    hand.initialise(term=1, steps_per_epoch=2)
    early, late = (
        Record(generation=1, term=1, epoch=epoch + 1, rows={epoch: ROW}, number=(5, epoch + 1))
        for epoch in (0, 1)
    )
    hand.say("chief:0", early)
    hand.say("chief:0", late)
    assert only(hand.say("chief:0", early)) == Recorded(term=1, rows={}), "it is answered all the same"
    assert hand.servers[0].held.steps.tally.rows == {0: ROW, 1: ROW}


class Line:
    """A connection to ps:0 with its answers prepared."""

    bytes_sent = bytes_received = 0

    def __init__(self, *answers):
        self.answers = list(answers)
        self.sent = []

    def send(self, message, blocks):
        self.sent.append(message)

    def receive(self, into=(), deadline=None):
        return Frame(self.answers.pop(0), ())


def test_after_the_servers_have_gone_back_the_leader_has_the_rows_that_they_have():
    line = Line(
        Recorded(term=1, rows={}),
        Recorded(term=1, rows={}),
        Recorded(term=1, rows={}),
        Recorded(term=2, rows={}),
        Recorded(term=2, rows={0: ROW}),
    )
    orders = OrderDriver(1, 1, 5, lambda server, timeout_s: line, 1.0)
    orders.ask_for_rows()
    assert orders.record(1, 1, {0: ROW})
    assert orders.record(1, 2, {1: ROW})
    assert orders.rows == {0: ROW, 1: ROW}
    orders.repeat_in(1)
    assert not orders.record(1, 3, {2: ROW}), "ps:0 is in another term"
    assert orders.rows == {0: ROW, 1: ROW}
    orders.repeat_in(2)
    assert orders.rows == {0: ROW}
    assert line.sent[-1] == Record(generation=1)


def test_who_is_not_the_leader_asks_for_nothing_in_a_new_term():
    line = Line()
    OrderDriver(1, 1, 5, lambda server, timeout_s: line, 1.0).repeat_in(2)
    assert line.sent == []


def test_a_server_that_was_started_again_after_the_last_checkpoint_knows_the_numbers_of_epochs_from_the_leader():
    hand, rows = Hand(updates="async"), {0: {"loss": 0.5}, 1: {"loss": 0.25}}
    hand.say("chief:0", Conclude(generation=1, rows=rows))
    assert only(
        hand.say("worker:0", Pull(generation=1, at_least=10, wait_s=5.0, term=1, concluded=True))
    ) == Conclude(generation=1, rows=rows)
