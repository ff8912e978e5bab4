"""A worker that the cluster does not name joins: it ranks above all others, and computes parts of the same
batches.
"""

from roles.by_hand import TASKS, Hand, only

from dtrain.messages import Values, Verdict
from dtrain.protocol.membership import LEASE_S


def begun(**training):
    hand = Hand(**training)
    hand.initialise()
    for task in TASKS:
        hand.beat(task)
    return hand


def test_in_async_it_trains_from_its_first_pull_on():
    hand = begun(updates="async")
    hand.beat("worker:2")
    assert isinstance(only(hand.pull("worker:2")), Values)
    assert hand.parts["worker:2"] == 0
    assert only(hand.push("worker:2")).verdict is Verdict.ACCEPTED


def test_in_sync_a_batch_is_cut_as_before_and_the_new_worker_takes_its_turn():
    hand = begun(updates="sync")
    hand.beat("worker:5")
    for version, of_this_batch in enumerate((TASKS, ("worker:5", "chief:0", "worker:0"))):
        for task in of_this_batch:
            hand.pull(task)
            hand.push(task, base=version, sequence=version + 1)
        assert hand.version() == version + 1
    assert hand.servers[0].held.steps.dealer.export() == (3, 9, (6, 7, 8), False)


def test_one_that_asks_for_values_and_is_never_heard_of_is_waited_for_no_longer_than_a_lease():
    hand = begun(updates="sync")
    hand.pull("worker:2")
    for task in TASKS:
        hand.pull(task)
        hand.push(task)
    for task in ("worker:2", "chief:0", "worker:0"):
        hand.pull(task)
    for task in ("chief:0", "worker:0"):
        hand.push(task, base=1, sequence=2)
    assert hand.pull("worker:1", wait_s=60.0) == []
    hand.now += LEASE_S + 0.1
    for task in TASKS:
        hand.beat(task, incarnation=1, process=1)
    [answer] = hand.tick()
    assert (answer.caller, answer.message.part) == ("worker:1", 5)


def test_it_takes_the_place_of_one_that_is_lost():
    hand = begun(updates="sync")
    for task in TASKS:
        hand.pull(task)
    hand.push("chief:0")
    hand.push("worker:0")
    hand.beat("worker:2")
    assert hand.pull("worker:2", wait_s=60.0) == []
    hand.now += LEASE_S + 0.1
    for task in ("chief:0", "worker:0", "worker:2"):
        hand.beat(task, incarnation=1, process=1)
    [answer] = hand.tick()
    assert (answer.caller, answer.message.part) == ("worker:2", 2)
    hand.push("worker:2", part=2)
    assert hand.version() == 1
