"""Which batch the servers' answers say is next, and what becomes of a batch whose gradient did not count."""

import pytest
from roles.by_hand import Hand

from dtrain.messages import Verdict
from dtrain.protocol.membership import LEASE_S

TASKS = ("chief:0", "worker:0", "worker:1")


def begun(**training):
    hand = Hand(**training)
    hand.initialise()
    for task in TASKS:
        hand.pull(task)
    return hand


def test_a_synchronous_version_takes_one_batch_of_every_replica():
    hand = begun(updates="sync")
    assert hand.batches == {"chief:0": 0, "worker:0": 1, "worker:1": 2}
    for task in reversed(TASKS):
        hand.push(task, batch=hand.batches[task])
    assert hand.batches == {"chief:0": 3, "worker:0": 4, "worker:1": 5}


@pytest.mark.parametrize(("on_stale", "after"), [("skip", 5), ("retry_same_batch", 2)])
def test_a_backups_batch_is_skipped_or_repeated(on_stale, after):
    hand = begun(updates="sync", backup_workers=1, on_stale=on_stale)
    hand.push("chief:0", batch=0)
    hand.push("worker:0", batch=1)
    [answer] = hand.push("worker:1", batch=2)
    assert answer.message.verdict is Verdict.STALE
    assert hand.batches["worker:1"] == after


def test_what_a_lost_replica_had_not_pushed_is_given_to_the_next_who_asks():
    hand = begun(updates="async")
    for task in TASKS:
        hand.beat(task)
    hand.push("worker:1", batch=2)
    assert hand.batches["worker:1"] == 5
    hand.now += LEASE_S + 0.1
    hand.beat("chief:0", incarnation=1, process=1)
    hand.beat("worker:0", incarnation=1, process=1)
    hand.tick()
    hand.push("worker:0", batch=1, base=1)
    assert hand.batches["worker:0"] == 5
    hand.push("chief:0", batch=0, base=2)
    assert hand.batches["chief:0"] == 3


def test_a_contribution_of_a_lost_replica_that_is_not_counted_is_computed_by_another():
    hand = begun(servers=2, updates="sync", too_few="shrink")
    for task in TASKS:
        hand.beat(task)
    hand.push("worker:1", batch=2)  # at ps:0 alone: never complete
    hand.now += LEASE_S + 0.1
    for task in ("chief:0", "worker:0"):
        hand.beat(task, incarnation=1, process=1)
    hand.tick()
    for task in ("chief:0", "worker:0"):
        hand.push(task, batch=hand.batches[task], server=0)
        for report in hand.push(task, batch=hand.batches[task], server=1):
            hand.say("ps:1", report.message)
    assert hand.version() == 1
    assert sorted(hand.batches[task] for task in ("chief:0", "worker:0")) == [2, 4]


def test_a_repeated_push_hears_of_the_same_next_batch():
    hand = begun(updates="async")
    hand.push("worker:0", batch=1)
    hand.batches.clear()
    [answer] = hand.push("worker:0", batch=1)
    assert answer.message.duplicate
    assert hand.batches == {"worker:0": 4}


def test_a_restored_server_deals_on_from_where_its_checkpoint_stood():
    hand = Hand(updates="async")
    hand.initialise(version=4, batches=10, dealt=((6, 4, 5), (1,)))
    for task in ("chief:0", "worker:0", "worker:1"):
        hand.pull(task)
    assert [hand.batches[task] for task in ("chief:0", "worker:0", "worker:1")] == [1, 4, 5]
