"""Which part the servers' answers say is next, and what becomes of a part whose gradient did not count:
rule *One batch a step* (docs/design/protocol.md#one-batch-a-step).
"""

import numpy as np
import pytest
from roles.by_hand import TASKS, Hand, lost, only

from dtrain.messages import Release, Subscribe, Verdict
from dtrain.protocol.membership import LEASE_S
from dtrain.protocol.part_dealer import NO_PART


def begun(initialise=None, **training):
    hand = Hand(**training)
    hand.initialise(**initialise or {})
    for task in TASKS:
        hand.beat(task)
        hand.pull(task)
    return hand


def everywhere(hand, task, part, **more):
    """A push that reaches both servers; ps:0 hears that ps:1 has it. Returns ps:0's last actions."""
    hand.push(task, part=part, **more)
    for report in hand.push(task, part=part, server=1, **more):
        actions = hand.say("ps:1", report.message)
    return actions


def test_a_synchronous_version_takes_one_part_of_every_replica_and_then_those_of_the_next_batch():
    hand = begun(updates="sync")
    assert hand.parts == {"chief:0": 0, "worker:0": 1, "worker:1": 2}
    for task in reversed(TASKS):
        hand.push(task)
    assert hand.parts == {"chief:0": 3, "worker:0": 4, "worker:1": 5}


@pytest.mark.parametrize(("on_stale", "after"), [("skip", 4), ("retry_same_batch", 2)])
def test_a_backups_part_is_skipped_or_repeated(on_stale, after):
    hand = begun(updates="sync", backup_workers=1, on_stale=on_stale)
    hand.push("chief:0", part=0)
    hand.push("worker:0", part=1)
    [answer] = hand.push("worker:1", part=2)
    assert answer.message.verdict is Verdict.STALE
    assert hand.parts["worker:1"] in (after, 5)
    assert hand.parts["worker:1"] == (2 if on_stale == "retry_same_batch" else 5)


def test_the_last_step_waits_for_a_part_that_is_computed_again_instead_of_taking_one_of_a_further_pass():
    hand = begun(updates="sync", backup_workers=1, on_stale="retry_same_batch", max_steps=2)
    hand.push("chief:0", part=0)
    hand.push("worker:0", part=1)
    assert hand.parts["chief:0"] == 3
    assert hand.parts["worker:0"] == 1, "no other part than those of the two steps is dealt"
    hand.push("worker:1", part=2)
    assert hand.parts["worker:1"] == 2
    hand.push("chief:0", sequence=2, base=1, part=3)
    assert hand.version() == 1
    hand.push("worker:1", sequence=2, base=1, part=2)
    assert hand.version() == 2


def test_where_the_replica_dies_that_computes_a_part_again_one_that_waits_takes_it():
    hand = begun(updates="sync", backup_workers=1, on_stale="retry_same_batch", max_steps=2)
    hand.push("chief:0", part=0)
    hand.push("worker:0", part=1)
    hand.push("chief:0", sequence=2, base=1, part=3)
    answers = {action.caller: action.message.part for action in hand_over(hand)}
    assert answers == {"worker:0": 2}
    hand.push("worker:0", sequence=2, base=1, part=2)
    assert hand.version() == 2


def hand_over(hand):
    """worker:1 is lost while worker:0 waits for permission; returns what ps:0 says to that."""
    assert hand.pull("worker:0", wait_s=60.0) == []
    hand.now += LEASE_S + 0.1
    hand.beat("chief:0", incarnation=1, process=1)
    answers = hand.beat("worker:0", incarnation=1, process=1)
    return [action for action in [*answers, *hand.tick()] if getattr(action.message, "part", -1) >= 0]


def test_what_a_lost_replica_had_not_pushed_is_given_to_the_next_who_asks():
    hand = begun(updates="async")
    hand.push("worker:1", part=2)
    assert hand.parts["worker:1"] == 5, "the next one of its lane"
    hand.now += LEASE_S + 0.1
    hand.beat("chief:0", incarnation=1, process=1)
    hand.beat("worker:0", incarnation=1, process=1)
    hand.tick()
    hand.push("worker:0", part=1, base=1)
    assert hand.parts["worker:0"] == 5
    hand.push("chief:0", part=0, base=2)
    assert hand.parts["chief:0"] == 3


def test_with_shrink_those_who_wait_compute_the_parts_of_the_lost_so_that_no_example_is_lost():
    hand = begun(updates="sync", too_few="shrink")
    hand.push("chief:0", value=2)
    hand.push("worker:0", value=4)
    assert hand.version() == 0
    answers = lost(hand, "worker:1")
    assert [(a.caller, a.message.verdict, a.message.part) for a in answers] == [
        ("chief:0", Verdict.PENDING, 2)
    ]
    hand.push("chief:0", sequence=2, ordinal=1, value=9, part=2)
    assert hand.version() == 1
    assert hand.servers[0].held.store.values[0].tolist() == [-0.5 * (2 + 4 + 9) / 3] * 7


def test_other_servers_answer_as_soon_as_they_are_told_that_there_is_another_part():
    hand = begun(servers=2, updates="sync", too_few="shrink")
    hand.say("ps:1", Subscribe(generation=1, version=0), caller="commits")
    everywhere(hand, "chief:0", 0)
    hand.push("worker:0", part=1)
    actions = lost(hand, "worker:1")
    releases = [a.message for a in actions if isinstance(a.message, Release)]
    assert releases == [Release(generation=1, version=0, contribution=(0, 1, 0))]
    [answer] = hand.say("ps:0", releases[0], server=1)
    assert (answer.caller, answer.message.verdict) == ("chief:0", Verdict.PENDING)
    assert hand.say("ps:0", releases[0], server=1) == []


def test_a_release_may_come_before_the_push_that_it_is_about():
    hand = begun(servers=2, updates="sync")
    hand.say("ps:0", Release(generation=1, version=0, contribution=(1, 1, 0)), server=1)
    answers = hand.push("worker:0", server=1, part=1)
    assert [type(a).__name__ for a in answers] == ["Report", "Send"]
    assert answers[1].message.verdict is Verdict.PENDING


def test_a_server_that_comes_back_hears_of_what_was_released():
    hand = begun(servers=2, updates="sync", too_few="shrink")
    hand.push("chief:0", part=0)
    lost(hand, "worker:1")
    assert [a.message for a in hand.say("ps:1", Subscribe(generation=1, version=0), caller="commits")] == [
        Release(generation=1, version=0, contribution=(0, 1, 0))
    ]


def test_a_contribution_that_never_became_complete_gives_its_part_back_to_the_successor():
    """The dead process's push had reached ps:0 alone, and its successor is there within the lease."""
    hand = begun(servers=2, updates="sync")
    hand.push("worker:1", part=2)
    hand.now += 1.5
    hand.beat("worker:1")
    hand.parts.clear()
    hand.pull("worker:1")
    assert hand.parts["worker:1"] == 2
    everywhere(hand, "worker:1", 2, incarnation=2, value=7)
    everywhere(hand, "chief:0", 0)
    everywhere(hand, "worker:0", 1)
    assert hand.version() == 1
    assert hand.servers[0].held.steps.dealer.export() == (3, 6, (3, 4, 5), False, ())


def test_what_became_complete_after_its_replica_was_lost_is_computed_by_no_other():
    hand = begun(servers=2, updates="sync", too_few="shrink")
    hand.say("ps:1", Subscribe(generation=1, version=0), caller="ps:1")
    for rank, task in enumerate(TASKS):
        answers = everywhere(hand, task, rank)
    [commit] = [answer.message for answer in answers if answer.caller == "ps:1"]
    hand.say("ps:0", commit, server=1)
    base = {"base": 1, "sequence": 2}
    hand.push("worker:1", part=5, **base)
    hand.now += LEASE_S + 0.1
    for task in TASKS[:2]:
        hand.beat(task, incarnation=1, process=1)
    hand.tick()
    [report] = hand.push("worker:1", part=5, server=1, **base)
    hand.say("ps:1", report.message)
    hand.parts.clear()
    for rank, task in enumerate(TASKS[:2]):
        everywhere(hand, task, 3 + rank, **base)
        assert hand.parts.get(task) in (None, 6, 7), "nothing more is to be computed of this batch"
    assert hand.version() == 2


def test_where_the_predecessors_contribution_was_complete_its_successor_waits_for_the_next_batch():
    hand = begun(updates="sync")
    hand.push("worker:1", part=2)
    hand.beat("worker:1")
    assert hand.pull("worker:1") == []
    hand.push("chief:0", part=0)
    answers = hand.push("worker:0", part=1)
    assert {a.caller for a in answers} >= {"chief:0", "worker:0"}
    assert hand.version() == 1


def test_a_late_push_of_a_replica_that_stood_still_counts_once_with_what_replaced_it():
    """Its part was dealt to another; the one that is complete first counts, and the other is stale."""
    hand = begun(updates="sync", too_few="shrink")
    hand.push("chief:0", part=0)
    hand.push("worker:0", part=1)
    lost(hand, "worker:1")
    hand.push("worker:1", part=2, value=5)
    assert hand.version() == 1
    answer = only(hand.push("chief:0", sequence=2, ordinal=1, part=2, value=5))
    assert answer.verdict is Verdict.STALE
    assert hand.servers[0].held.steps.dealer.export() == (3, 6, (3, 4, 5), False, ())


def test_with_more_contributions_than_replicas_the_parts_are_shared_evenly():
    hand = begun({"dealt": (5, 0, ())}, updates="sync")
    parts = {task: [hand.parts[task]] for task in TASKS}
    for sequence in (1, 2):
        for task in TASKS:
            hand.push(task, sequence=sequence, ordinal=sequence - 1, value=1)
            if hand.version() == 0:
                parts[task].append(hand.parts[task])
    assert hand.version() == 1
    assert sorted(part for each in parts.values() for part in dict.fromkeys(each)) == [0, 1, 2, 3, 4]


def test_with_fewer_parts_than_replicas_everyone_takes_turns():
    """As after a resume with more replicas: no replica starves, and none is waited for before its turn."""
    hand = Hand(workers=4, updates="sync")
    hand.initialise(dealt=(3, 0, ()))
    tasks = ("chief:0", "worker:0", "worker:1", "worker:2", "worker:3")
    for task in tasks:
        hand.beat(task)
        hand.pull(task)
    computed = []
    for version in range(5):
        hand.parts = {
            task: hand.dealt(task)
            for task in tasks
            if hand.servers[0].held.steps.next_part(tasks.index(task)) != NO_PART
        }
        owing = sorted(hand.servers[0].held.steps.awaited()[0])
        assert [tasks[rank] for rank in owing] == sorted(hand.parts, key=tasks.index)
        computed += hand.parts
        for task, part in sorted(hand.parts.items()):
            hand.push(task, base=version, sequence=version + 1, part=part)
        assert hand.version() == version + 1
    assert {task: computed.count(task) for task in tasks} == dict.fromkeys(tasks, 3)


def test_one_whose_turn_it_was_not_computes_the_part_of_one_that_is_lost():
    hand = Hand(workers=2, updates="sync")
    hand.initialise(dealt=(2, 0, ()))
    for task in TASKS:
        hand.beat(task)
        hand.pull(task)
    assert hand.parts == {"chief:0": 0, "worker:0": 1}
    hand.push("chief:0", part=0)
    lost(hand, "worker:0")
    assert hand.dealt("worker:1") == 1
    hand.push("worker:1", part=1)
    assert hand.version() == 1


def test_parts_without_examples_count_as_zero_and_are_not_waited_for():
    hand = begun(updates="sync")
    hand.push("chief:0", part=0, examples=2, empty=1, value=3)
    hand.push("worker:0", part=1, examples=2, empty=1, value=6)
    assert hand.version() == 1
    assert hand.servers[0].held.store.values[0].tolist() == [-0.5 * (3 + 6) / 3] * 7


def test_who_says_that_its_part_has_no_examples_waits_for_the_version():
    hand = begun(updates="sync")
    assert hand.push("worker:1", part=2, examples=0, empty=1, blocks=[]) == []
    hand.push("chief:0", part=0, examples=2, empty=1)
    answers = hand.push("worker:0", part=1, examples=2, empty=1)
    assert {a.caller: a.message.verdict for a in answers} == dict.fromkeys(TASKS, Verdict.ACCEPTED)


def test_who_has_nothing_to_contribute_is_never_too_late():
    hand = begun(updates="sync")
    hand.push("chief:0", part=0, examples=2, empty=1)
    hand.push("worker:0", part=1, examples=2, empty=1)
    answer = only(hand.push("worker:1", part=2, examples=0, empty=1, blocks=[]))
    assert (answer.verdict, answer.version, answer.stale) == (Verdict.ACCEPTED, 1, 0)


@pytest.mark.parametrize(
    ("weighting", "mean"), [("replicas", (3 + 6 + 9) / 3), ("examples", (2 * 3 + 2 * 6 + 1 * 9) / 5)]
)
def test_the_mean_is_of_the_parts_means_or_of_their_examples(weighting, mean):
    hand = begun(updates="sync", weighting=weighting)
    for part, (task, examples) in enumerate(zip(TASKS, (2, 2, 1), strict=True)):
        hand.push(task, part=part, examples=examples, value=3 * (part + 1))
    assert hand.servers[0].held.store.values[0].tolist() == pytest.approx([-0.5 * mean] * 7)


def test_sums_are_taken_in_the_order_of_parts_whoever_computed_them():
    images = set()
    for owner in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        hand = begun(updates="sync")
        for rank, part in enumerate(owner):
            hand.push(
                TASKS[rank],
                part=part,
                blocks=[np.full(7, [1e8, 3, -1e8][part], np.float32), np.zeros(2, np.int64)],
            )
        images.add(hand.servers[0].held.store.values[0].tobytes())
    assert len(images) == 1


def test_a_refused_part_is_left_out_of_its_batch():
    hand = begun(updates="sync")
    hand.push("chief:0", part=0, finite=False)
    hand.push("worker:0", part=1, value=2)
    hand.push("worker:1", part=2, value=4)
    assert hand.version() == 1
    assert hand.servers[0].held.store.values[0].tolist() == [-0.5 * 3] * 7


def test_with_backups_a_refused_part_is_not_computed_again():
    hand = begun(updates="sync", backup_workers=1)
    assert only(hand.push("worker:1", part=2, finite=False)).verdict is Verdict.REFUSED
    assert hand.parts["worker:1"] == 3
    assert hand.servers[0].held.steps.dealer.export() == (2, 4, (0, 1, 3), True, ())


def test_a_batch_of_which_all_is_refused_makes_room_for_the_next_one():
    hand = begun(updates="sync")
    for part, task in enumerate(TASKS):
        hand.push(task, part=part, finite=False)
    assert hand.version() == 0
    assert hand.parts["worker:1"] == 5
    assert hand.servers[0].held.steps.dealer.export() == (3, 6, (3, 4, 5), False, ())


def test_a_repeated_push_hears_of_the_same_next_part():
    hand = begun(updates="async")
    hand.push("worker:0", part=1)
    hand.parts.clear()
    [answer] = hand.push("worker:0", part=1)
    assert answer.message.duplicate
    assert hand.parts == {"worker:0": 4}


def test_a_restored_server_deals_on_from_where_its_checkpoint_stood():
    hand = begun({"version": 4, "dealt": (1, 6, (1, 4))}, updates="async")
    assert [hand.parts[task] for task in TASKS] == [1, 4, 8], "6 and 7 wait for their own replicas"


def test_one_who_is_alone_computes_every_part():
    hand = begun({"alone": True}, updates="sync")
    assert hand.parts == {"chief:0": 0}
    for ordinal in range(3):
        hand.push("chief:0", sequence=ordinal + 1, ordinal=ordinal, value=ordinal)
    assert hand.version() == 1
