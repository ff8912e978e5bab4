"""An asynchronous checkpoint: from the mark on new pushes wait, until the server has what any other one had,
and for no longer.
"""

import numpy as np
import pytest
from roles.by_hand import Hand, only

from dtrain.learning import optimizers
from dtrain.messages import (
    Mark,
    Marked,
    NotReady,
    Refusal,
    Reply,
    Rows,
    Snapshot,
    SnapshotReply,
    SnapshotRows,
    Verdict,
)
from dtrain.roles.parameter_server.questions import UNREAD_S

WAIT_S = 2.0


def marked(**more):
    """Two servers that are marked: both have the chief's first batch, only the second one the worker's."""
    hand = Hand(workers=1, servers=2, updates="async", **more)
    hand.initialise()
    for task in ("chief:0", "worker:0"):
        hand.beat(task)
        hand.pull(task)
    for server in (0, 1):
        hand.push("chief:0", server=server, part=0)
    hand.push("worker:0", server=1)
    answers = [only(mark(hand, server)) for server in (0, 1)]
    assert [answer.applied for answer in answers] == [(1, ()), (2, ())]
    assert (answers[0].again, answers[0].settled) == ((), 0), (
        "the chief's may be on its way to the second server"
    )
    return hand


def mark(hand, server=0, **more):
    return hand.say("chief:0", Mark(wait_s=WAIT_S, **more), server=server, caller="control")


def ask(hand, server, covers=(0, ()), **more):
    return hand.say(
        "chief:0", Snapshot(at_least=0, wait_s=WAIT_S, covers=covers, **more), server=server, caller="control"
    )


EVERYTHING = 2, ()


def test_new_pushes_wait_and_what_another_server_had_is_let_pass():
    hand = marked()
    assert hand.push("chief:0", sequence=2, base=1) == []
    assert hand.push("worker:0") == []
    passed, state = ask(hand, 0, EVERYTHING)[:2]
    assert (passed.caller, passed.message.verdict) == ("worker:0", Verdict.ACCEPTED)
    assert (state.caller, state.message.state.version) == ("control", 2)
    assert state.message.state.contents[0].batches == EVERYTHING
    assert hand.version() == 3, "the push that waited is applied once the state is remembered"


def test_a_server_that_has_everything_answers_at_once_and_all_that_waited_follows_in_its_order():
    hand = marked()
    for part, task in ((3, "worker:0"), (2, "chief:0")):
        assert hand.push(task, sequence=2, base=2, server=1, part=part) == []
    answers = ask(hand, 1, EVERYTHING)
    assert [action.caller for action in answers] == ["control", "worker:0", "chief:0"]
    assert [type(action.message) for action in answers] == [SnapshotReply, Reply, Reply]
    assert [each.message.version for each in answers[1:3]] == [3, 4]


def test_what_is_lost_is_not_waited_for_long():
    hand = marked()
    assert ask(hand, 0, EVERYTHING) == []
    assert hand.push("chief:0", sequence=2, base=1) == []
    hand.now = WAIT_S
    state, reply = hand.tick()
    assert state.message.state.contents[0].batches != EVERYTHING
    assert (reply.caller, reply.message.verdict) == ("chief:0", Verdict.ACCEPTED)


def test_a_leader_that_is_gone_stops_nobody():
    hand = marked()
    assert hand.push("chief:0", sequence=2, base=1) == []
    hand.now = WAIT_S
    assert only(hand.tick()).verdict is Verdict.ACCEPTED


def test_a_push_that_comes_again_on_a_new_connection_waits_and_counts_once():
    hand = marked()
    assert hand.push("chief:0", sequence=2, base=1, caller="broken") == []
    hand.servers[0].disconnected("broken")
    assert hand.push("chief:0", sequence=2, base=1, caller="new") == []
    assert hand.push("chief:0", sequence=2, base=1, caller="newer") == []
    hand.now = WAIT_S
    first, second = hand.tick()
    assert (first.caller, first.message.duplicate, second.caller, second.message.duplicate) == (
        "new",
        False,
        "newer",
        True,
    )
    assert hand.version() == 2


def test_only_the_leader_marks_and_only_in_the_term_that_is_held():
    hand = Hand(updates="async")
    assert isinstance(only(mark(hand)), NotReady)
    hand.initialise(term=4)
    assert isinstance(only(mark(hand)), NotReady)
    assert only(mark(hand, term=4)) == Marked(applied=(0, ()))
    assert isinstance(only(hand.say("worker:0", Mark(wait_s=WAIT_S, term=4))), Refusal)


@pytest.mark.parametrize("updates", ["sync", "async"])
def test_the_state_is_read_as_it_was_while_training_goes_on(updates):
    hand = Hand(workers=0, updates=updates, optimizer=optimizers.Adagrad(0.5))
    hand.initialise()
    hand.push("chief:0")
    held = hand.servers[0].held.store
    then = {("", part): array.copy() for part, array in enumerate(held.values)}
    then["accumulator", 0] = held.parts[0]["accumulator"].copy()
    assert only(hand.say("chief:0", Snapshot(at_least=1, wait_s=WAIT_S))).slots == ("accumulator",)
    for (name, part), array in sorted(then.items(), key=lambda item: item[0][1]):
        for start in range(0, array.size, 2):
            stop = min(start + 2, array.size)
            hand.push("chief:0", 1 + hand.version(), hand.version())
            for _ in range(2):  # the answer may have been lost
                [answer] = hand.say("chief:0", SnapshotRows(part=part, array=name, start=start, stop=stop))
                assert np.array_equal(answer.blocks[0], array[start:stop])
    assert hand.version() > 5
    for wrong in (
        SnapshotRows(part=2, array="", start=0, stop=1),
        SnapshotRows(part=0, array="momentum", start=0, stop=1),
        SnapshotRows(part=1, array="", start=0, stop=3),
    ):
        assert isinstance(only(hand.say("chief:0", wrong)), Refusal)


def test_what_nobody_reads_on_is_let_go():
    hand = Hand(workers=0, updates="async")
    hand.initialise()
    ask(hand, 0)
    for kind in (Rows, Rows, Refusal):
        hand.tick()
        assert isinstance(only(hand.say("chief:0", SnapshotRows(part=0, array="", start=0, stop=7))), kind)
        hand.now += UNREAD_S - 1 if hand.now == 0 else UNREAD_S


@pytest.mark.parametrize("updates", ["sync", "async"])
def test_at_the_end_nothing_is_under_way(updates):
    hand = Hand(workers=0, updates=updates, max_steps=1)
    hand.initialise()
    hand.push("chief:0")
    assert only(hand.say("chief:0", Snapshot(at_least=1, wait_s=WAIT_S))).state.version == 1
