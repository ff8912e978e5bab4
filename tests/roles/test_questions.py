"""Pulls and snapshots by hand: what waits, what is answered at the deadline, and to whom."""

from roles.by_hand import Hand, only

from dtrain.learning import optimizers
from dtrain.messages import (
    Conclude,
    Farewell,
    Initialised,
    NotReady,
    Pull,
    Snapshot,
    SnapshotReply,
    SnapshotRows,
    Values,
)
from dtrain.roles.parameter_server.questions import OPEN_MAX
from dtrain.state.batch_cut import Dealt
from dtrain.state.fit_state import Contents, FitState


def test_a_pull_waits_for_the_variables_and_says_at_its_deadline_that_it_does():
    hand = Hand(updates="sync")
    assert hand.pull("worker:0", wait_s=5.0) == []
    hand.now = 4.9
    assert hand.tick() == []
    hand.now = 5.0
    assert only(hand.tick()) == NotReady(reason="ps:0 waits for chief:0 to initialise the variables")
    assert hand.pull("worker:0") == []
    message = hand.initialisation()
    answers = hand.say("chief:0", message, hand.blocks())
    assert [(a.caller, type(a.message)) for a in answers] == [("chief:0", Initialised), ("worker:0", Values)]


def test_a_pull_waits_for_its_version_and_gets_what_there_is_at_its_deadline(hand):
    assert hand.pull("worker:0", at_least=1) == []
    hand.now = 5.0
    [answer] = hand.tick()
    assert (answer.message.version, answer.message.max_steps) == (0, 10)
    assert [block.tolist() for block in answer.blocks] == [[0] * 7, [0] * 2]


def test_who_is_no_replica_may_read_but_not_push(hand):
    assert isinstance(only(hand.pull("evaluator:0")), Values)
    assert not only(hand.pull("evaluator:0")).ticket
    before = hand.image()
    assert "evaluator:0 is not a replica" in only(hand.push("evaluator:0")).reason
    assert hand.image() == before


def test_a_connection_that_asks_again_and_again_is_refused_and_others_are_not():
    hand = Hand()
    assert [hand.pull("worker:0") for _ in range(OPEN_MAX)] == [[]] * OPEN_MAX
    assert only(hand.pull("worker:0")).reason.startswith(f"worker:0 asks again and again: {OPEN_MAX} of its")
    assert hand.pull("worker:1") == []
    hand.now = 5.0
    assert len(hand.tick()) == OPEN_MAX + 1
    assert hand.pull("worker:0") == [], "those before have been answered"


def test_a_question_that_would_wait_for_no_time_disorders_no_other_deadline():
    hand = Hand()
    for task in ("evaluator:0", "worker:2", "worker:3", "worker:4"):
        hand.pull(task, wait_s=float("nan"))
    hand.pull("worker:0", wait_s=5.0)
    hand.tick()
    hand.now = 5.0
    assert [answer.caller for answer in hand.tick()] == ["worker:0"]
    hand.now = 3600.0
    assert len(hand.tick()) == 4


def test_a_connection_that_is_gone_is_not_answered():
    hand = Hand()
    assert hand.pull("worker:0") == []
    hand.servers[0].disconnected("worker:0")
    hand.now = 60.0
    assert hand.tick() == []


def test_a_snapshot_waits_for_its_version_then_holds_values_slots_and_what_was_seen():
    hand = Hand(updates="async", optimizer=optimizers.SGD(0.5, momentum=0.9))
    hand.initialise()
    assert hand.say("chief:0", Snapshot(at_least=1, wait_s=2.0), caller="control") == []
    answers = hand.push("worker:0")
    assert [a.caller for a in answers] == ["worker:0", "control"]
    reply = answers[1]
    rule = optimizers.serialize(optimizers.SGD(0.5, momentum=0.9))
    assert reply.message == SnapshotReply(
        state=FitState(
            version=1,
            max_steps=hand.max_steps,
            optimizer=rule,
            seen=((("worker:0", 1, 1),),),
            dealt=Dealt(1, 5, (0, 2, 3, 4)),
            contents=(Contents(1, (2, (0,))),),
        ),
        slots=("m",),
    )
    questions = (
        SnapshotRows(part=0, array="", start=0, stop=7),
        SnapshotRows(part=0, array="m", start=0, stop=7),
        SnapshotRows(part=1, array="", start=0, stop=2),
    )
    found = [hand.say("chief:0", question)[0].blocks[0].tolist() for question in questions]
    assert found == [[-0.5] * 7, [-0.5] * 7, [1, 1]]
    assert hand.say("chief:0", Snapshot(at_least=5, wait_s=2.0), caller="control") == []
    hand.now = 2.0
    assert only(hand.tick()).state.version == 1


def test_a_server_that_was_started_again_at_the_end_tells_the_rows_that_the_farewell_brought():
    hand = Hand(updates="async")
    hand.say("chief:0", Farewell(rows={1: {0: {"loss": 0.5}}}))
    assert only(hand.say("worker:0", Pull(generation=1, at_least=0, wait_s=5.0, concluded=True))) == Conclude(
        generation=1, rows={0: {"loss": 0.5}}
    )


def test_a_lost_connection_is_told_to_all_who_may_know_it_under_one_name(hand, monkeypatch):
    server, heard = hand.servers[0], []
    for part in (
        server._questions,
        server._snapshots,
        server.control,
        server.control.learned,
        server.held.rule,
    ):
        kind = type(part)
        before = kind.disconnected

        def disconnected(self, caller, before=before):
            heard.append(type(self))
            before(self, caller)

        monkeypatch.setattr(kind, "disconnected", disconnected)
    read = []
    monkeypatch.setattr(server.held.store, "disconnected", read.append)
    reading = server.held.store.values
    server.disconnected("worker:0", reading)
    assert len(heard) == len(set(heard)) == 5
    assert read == [reading]
