"""A worker that the cluster does not name joins: it ranks above all others, and T changes at a version boundary."""

from roles.by_hand import Hand, only

from dtrain.messages import Values, Verdict
from dtrain.protocol.membership import LEASE_S


def test_in_async_it_trains_from_its_first_pull_on():
    hand = Hand(updates="async")
    hand.initialise()
    hand.beat("worker:2")
    assert isinstance(only(hand.pull("worker:2")), Values)
    assert hand.batches["worker:2"] == 0
    assert only(hand.push("worker:2", batch=0)).verdict is Verdict.ACCEPTED


def test_in_sync_a_version_waits_for_it_from_the_next_one_on():
    hand = Hand(updates="sync")
    hand.initialise()
    tasks = ["chief:0", "worker:0", "worker:1"]
    for task in tasks:
        hand.beat(task)
    hand.beat("worker:5")
    for task in tasks:
        hand.push(task)
    assert hand.version() == 1
    for task in tasks:
        hand.push(task, sequence=2, base=1)
    assert hand.version() == 1
    hand.push("worker:5", base=1)
    assert hand.version() == 2


def test_when_it_is_lost_nobody_waits_for_it():
    hand = Hand(updates="sync")
    hand.initialise()
    tasks = ["chief:0", "worker:0", "worker:1"]
    for task in [*tasks, "worker:2"]:
        hand.beat(task)
    for version in range(2):
        for task in tasks:
            hand.push(task, sequence=version + 1, base=version)
    assert hand.version() == 1
    hand.now += LEASE_S + 0.1
    for task in tasks:
        hand.beat(task, incarnation=1, process=1)
    hand.tick()
    assert hand.version() == 2
