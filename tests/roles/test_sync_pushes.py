"""Synchronous servers by hand: contributions, one decision for all servers, sent to all."""

import msgspec
import numpy as np
import pytest
from roles.by_hand import Hand, only, sync

from dtrain.control.interface import Report
from dtrain.messages import Commit, Complete, Reply, Snapshot, Subscribe, Verdict
from dtrain.variables import VariableSpec


def test_the_mean_of_exactly_the_contributors_in_rank_order():
    hand = sync(backup_workers=1)
    hand.push("worker:1", blocks=[np.full(7, 1e8, np.float32), np.full(2, 4)])
    assert hand.version() == 0
    answers = hand.push("worker:0", blocks=[np.full(7, 3.0, np.float32), np.full(2, 7)])
    assert [a.caller for a in answers] == ["worker:1", "worker:0"]
    for answer in answers:
        assert answer.message == Reply(verdict=Verdict.ACCEPTED, version=1, accepted=1)
        mean = (np.float32(3.0) + np.float32(1e8)) / np.float32(2)
        assert answer.blocks[0].tolist() == [np.float32(-0.5) * mean] * 7
        assert answer.blocks[1].tolist() == [5, 5]


def test_the_order_of_arrival_does_not_matter():
    images = set()
    for order in (["chief:0", "worker:0", "worker:1"], ["worker:1", "chief:0", "worker:0"]):
        hand = sync()
        for task in order:
            hand.push(task, value={"chief:0": 1e8, "worker:0": 3, "worker:1": -1e8}[task])
        images.add(repr(hand.image()[2]))
    assert len(images) == 1


def test_whoever_comes_later_is_stale_and_told_at_once_with_the_newest_values():
    hand = sync(backup_workers=1)
    hand.push("chief:0")
    hand.push("worker:0")
    before = hand.image()
    [answer] = hand.push("worker:1", value=50)
    assert answer.message == Reply(verdict=Verdict.STALE, version=1, stale=1)
    assert answer.blocks[0].tolist() == [-0.5] * 7
    assert hand.image()[2] == before[2]
    assert only(hand.push("worker:1", value=50)) == Reply(
        verdict=Verdict.STALE, version=1, stale=1, duplicate=True
    )


def test_a_repetition_while_the_version_is_made_waits_for_the_same_answer():
    hand = sync()
    hand.push("worker:0", caller="old")
    hand.servers[0].disconnected("old")
    assert hand.push("worker:0", caller="new", value=7) == []
    hand.push("worker:1")
    answers = {a.caller: a for a in hand.push("chief:0")}
    assert set(answers) == {"new", "worker:1", "chief:0"}
    assert answers["new"].message == Reply(verdict=Verdict.ACCEPTED, version=1, accepted=1, duplicate=True)
    assert answers["new"].blocks[0].tolist() == [-0.5] * 7, "the first arrival counts, not its repetition"


def test_a_version_that_is_made_while_a_replica_reconnects_keeps_its_verdict_for_it():
    hand = sync()
    hand.push("worker:0", caller="old")
    hand.servers[0].disconnected("old")
    hand.push("worker:1")
    hand.push("chief:0")
    assert only(hand.push("worker:0", caller="new")) == Reply(
        verdict=Verdict.ACCEPTED, version=1, accepted=1, duplicate=True
    )


def test_a_late_repetition_on_the_old_connection_does_not_take_the_answer_from_the_new_one():
    hand = sync()
    hand.push("worker:0", caller="new")
    hand.push("worker:0", caller="old")
    hand.servers[0].disconnected("old")
    hand.push("worker:1")
    assert "new" in [a.caller for a in hand.push("chief:0")]


def test_with_fewer_replicas_than_contributions_each_gives_several():
    hand = sync(workers=1, replicas_to_aggregate=3)
    [answer] = hand.push("worker:0")
    assert answer.message == Reply(verdict=Verdict.PENDING, version=0)
    assert answer.blocks == []
    assert hand.push("chief:0", value=4) == [], "the third part is worker:0's"
    answers = {a.caller: a for a in hand.push("worker:0", sequence=2, ordinal=1, value=7)}
    assert answers["worker:0"].message == Reply(verdict=Verdict.ACCEPTED, version=1, accepted=2)
    assert answers["chief:0"].message == Reply(verdict=Verdict.ACCEPTED, version=1, accepted=1)
    assert answers["chief:0"].blocks[0].tolist() == [-0.5 * (1 + 4 + 7) / 3] * 7


def test_a_contribution_that_was_answered_as_pending_stays_what_it_was_when_its_memory_is_written_again():
    hand = sync(workers=1, replicas_to_aggregate=3)
    memory = hand.blocks(value=1)
    assert only(hand.push("worker:0", blocks=memory)).verdict is Verdict.PENDING
    for block in memory:
        block[...] = 7
    hand.push("chief:0", value=4)
    [answer, _] = sorted(
        hand.push("worker:0", sequence=2, ordinal=1, blocks=memory), key=lambda action: action.caller
    )
    assert answer.blocks[0].tolist() == [-0.5 * (1 + 4 + 7) / 3] * 7


def test_a_repeated_pending_contribution_leaves_the_replica_its_values():
    hand = sync(workers=1, replicas_to_aggregate=3)
    hand.push("chief:0")
    hand.push("worker:0")
    hand.push("worker:0", sequence=2, ordinal=1)
    [answer] = hand.push("chief:0")
    assert (answer.message.verdict, answer.message.duplicate) == (Verdict.PENDING, True)
    assert answer.blocks == []


def test_an_older_incarnation_and_an_older_push_are_refused():
    hand = sync()
    hand.push("worker:0", sequence=3, incarnation=2)
    before = hand.image()
    assert "incarnation 1" in only(hand.push("worker:0", sequence=4)).reason
    assert "push 2 is older" in only(hand.push("worker:0", sequence=2, incarnation=2)).reason
    assert hand.image() == before


def test_a_successor_s_contribution_does_not_count_beside_its_dead_predecessor_s():
    hand = sync(backup_workers=1)
    hand.push("worker:0", value=1)
    hand.push("worker:0", value=1, incarnation=2)
    assert hand.version() == 0
    hand.push("chief:0", value=3)
    assert hand.image()[2][0] == np.full(7, -1.0, np.float32).tobytes()


def test_after_the_last_version_a_push_is_finished_and_nobody_is_missed():
    hand = sync(max_steps=1, too_few="fail")
    for task in ("chief:0", "worker:0", "worker:1"):
        hand.beat(task)
        hand.push(task)
    for task in ("worker:0", "worker:1"):
        assert only(hand.beat(task, 1, leaving=True)).failed is None
    before = hand.image()[2]
    assert only(hand.push("chief:0", sequence=2, base=1)) == Reply(verdict=Verdict.FINISHED, version=1)
    assert hand.image()[2] == before
    assert only(hand.say("chief:0", Snapshot(at_least=1, wait_s=0.0))).state.version == 1


def test_means_of_whole_numbers_and_truth_values_are_of_their_own_kind():
    kinds = [
        ("int8", 100, 100),
        ("uint8", 200, 200),
        ("int64", -3, -3),
        ("bool", True, True),
        ("float64", 0.1, 0.1),
    ]
    variables = [VariableSpec(f"v{i}", (1,), dtype, trainable=False) for i, (dtype, _, _) in enumerate(kinds)]
    hand = sync(variables=variables)
    for task in ("chief:0", "worker:0", "worker:1"):
        hand.push(task, blocks=[np.array([value], dtype) for dtype, value, _ in kinds])
    for value, (dtype, _, expected) in zip(hand.servers[0].held.store.values, kinds, strict=True):
        assert value.dtype == dtype
        assert value[0] == pytest.approx(expected)


def test_what_all_left_alone_stays_exactly_what_it_was():
    frozen = np.random.default_rng(0).normal(size=100).astype(np.float32)
    assert ((frozen + frozen + frozen) / np.float32(3) != frozen).any(), (
        "a mean of equal floats need not be one of them"
    )
    hand = sync(variables=[VariableSpec("frozen", (100,), trainable=False)])
    for task in ("chief:0", "worker:0", "worker:1"):
        hand.push(task, blocks=[frozen])
    assert np.array_equal(hand.servers[0].held.store.values[0], frozen)


# Two servers, one decision


def test_a_contribution_counts_when_both_servers_hold_it_and_both_commit_the_same():
    hand = sync(servers=2, backup_workers=2)
    assert hand.say("ps:1", Subscribe(generation=1, version=0), caller="commits") == []
    assert hand.push("worker:1") == []
    [report] = hand.push("worker:0", server=1)
    assert report == Report(Complete(generation=1, rank=1, incarnation=1, version=0, ordinal=0))
    assert hand.say("ps:1", report.message) == []
    [late] = hand.push("worker:1", server=1)
    actions = hand.say("ps:1", late.message)
    commit = Commit(generation=1, version=0, contributors=((2, 1, 0),), parts=1)
    assert [(a.caller, type(a.message)) for a in actions] == [("commits", Commit), ("worker:1", Reply)]
    assert actions[0].message == commit
    replies = hand.say("ps:0", commit, server=1)
    assert [(a.caller, a.message.verdict) for a in replies] == [
        ("worker:0", Verdict.STALE),
        ("worker:1", Verdict.ACCEPTED),
    ]
    before = hand.image(1)
    assert hand.say("ps:0", commit, server=1) == []
    assert hand.image(1) == before


def test_after_a_reconnect_a_server_tells_what_it_holds_and_hears_what_it_missed():
    hand = sync(servers=2, backup_workers=2)
    assert hand.servers[1].position() == (Subscribe(generation=1, version=0), [])
    [report] = hand.push("worker:0", server=1)
    assert hand.servers[1].position() == (Subscribe(generation=1, version=0), [report.message])
    hand.push("worker:0")
    hand.say("ps:1", report.message)
    assert hand.version() == 1
    [again] = hand.say("ps:1", Subscribe(generation=1, version=0), caller="commits")
    assert again.message == Commit(generation=1, version=0, contributors=((1, 1, 0),), parts=1)
    hand.say("ps:0", again.message, server=1)
    assert hand.servers[1].position() == (Subscribe(generation=1, version=1), [])
    assert hand.say("ps:1", Subscribe(generation=1, version=1), caller="commits") == []
    hand.servers[0].disconnected("commits")


def test_a_server_that_asked_before_it_was_initialised_hears_what_it_missed_since():
    hand = sync(servers=2, backup_workers=2)
    hand.push("worker:0")
    [report] = hand.push("worker:0", server=1)
    hand.say("ps:1", report.message)
    assert [action.message for action in hand.say("ps:1", Subscribe(generation=0, version=0))] == [
        Commit(generation=1, version=0, contributors=((1, 1, 0),), parts=1)
    ]


def test_what_belongs_to_an_earlier_term_changes_nothing():
    hand = sync(servers=2, backup_workers=2)
    hand.initialise(term=3)
    hand.push("worker:0", term=3)
    [report] = hand.push("worker:0", server=1, term=3)
    before = hand.image(), hand.image(1)
    assert hand.say("ps:1", msgspec.structs.replace(report.message, term=2)) == []
    assert (
        hand.say(
            "ps:0", Commit(generation=1, version=0, contributors=((1, 1, 0),), term=2, parts=1), server=1
        )
        == []
    )
    assert (
        hand.say(
            "ps:0", Commit(generation=1, version=5, contributors=((2, 1, 0),), term=2, parts=1), server=1
        )
        == []
    ), "not followed, and no reason to end"
    assert (hand.image(), hand.image(1)) == before
    hand.say("ps:1", report.message)
    assert hand.version() == 1


def test_what_belongs_to_another_generation_changes_nothing():
    hand = sync(servers=2)
    before = hand.image()
    assert hand.say("ps:1", Complete(generation=2, rank=0, incarnation=1, version=0, ordinal=0)) == []
    assert hand.say("ps:0", Commit(generation=2, version=0, contributors=((0, 1, 0),)), server=1) == []
    assert hand.say("ps:1", Subscribe(generation=2, version=0)) == []
    assert hand.image() == before
    assert Hand(servers=2).servers[1].position() == (Subscribe(generation=0, version=0), [])
