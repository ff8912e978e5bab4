"""Parts that bring no gradient, because they have no examples or it was refused, and replicas fewer than
parts: rule *One batch a step* (docs/design/protocol.md#one-batch-a-step).
"""

from roles.by_hand import TASKS, Hand, lost, sync

from dtrain.messages import Conclude, Verdict


def test_a_batch_whose_only_part_with_examples_is_refused_before_the_others_have_come_is_passed_over():
    hand = sync()
    for task in TASKS:
        hand.pull(task)
    [answer] = hand.push("chief:0", part=0, finite=False, examples=1, empty=2)
    assert answer.message.verdict is Verdict.REFUSED
    [answer] = hand.push("worker:0", part=1, examples=0, empty=2, blocks=())
    assert (answer.message.verdict, hand.parts["worker:0"]) == (Verdict.PENDING, 4)
    hand.push("worker:1", part=2, examples=0, empty=2, blocks=())
    for task, part in (("chief:0", 3), ("worker:0", 4), ("worker:1", 5)):
        hand.push(task, sequence=2, part=part, ordinal=1)
    assert hand.version() == 1


def test_who_waits_with_nothing_for_a_batch_that_is_refused_is_given_a_part_of_the_next_one():
    hand = sync()
    for task in TASKS:
        hand.pull(task)
    assert hand.push("worker:0", part=1, examples=0, empty=2, blocks=()) == []
    refused, released = hand.push("chief:0", part=0, finite=False, examples=1, empty=2)
    assert refused.message.verdict is Verdict.REFUSED
    assert (released.caller, released.message.verdict) == ("worker:0", Verdict.PENDING)
    assert hand.parts["worker:0"] == 4


def test_nobody_is_waited_for_who_does_not_exist_where_parts_are_more_than_replicas():
    hand = Hand(workers=0, updates="sync", replicas_to_aggregate=2, max_steps=1)
    hand.initialise()
    hand.beat("chief:0")
    for part in (0, 1):
        hand.push("chief:0", sequence=part + 1, part=part, ordinal=part)
    hand.say("chief:0", Conclude(generation=1))
    hand.beat("chief:0", incarnation=1, process=1, leaving=True)
    assert hand.servers[0].control.roster.awaited(hand.servers[0].held) == "chief:0"


def test_a_refused_gradient_of_a_batch_that_counts_already_does_not_bring_the_batch_back():
    hand = sync(too_few="shrink")
    for task in TASKS:
        hand.pull(task)
    lost(hand, "worker:1")
    hand.push("chief:0", part=0)
    hand.push("worker:0", part=1)
    hand.push("chief:0", sequence=2, part=2, ordinal=1)
    hand.push("worker:0", sequence=2, part=2, ordinal=1)
    assert hand.version() == 1
    [answer] = hand.push("worker:1", part=2, finite=False)
    assert answer.message.verdict is Verdict.REFUSED
    assert min(hand.servers[0].held.steps.dealer.export().due) == 3


def test_a_part_that_was_computed_from_an_earlier_version_is_computed_again():
    """Its replica was told of it in the answer to a push that it had repeated, and had no newer values."""
    hand = sync()
    for task in TASKS:
        hand.pull(task)
    for task in TASKS:
        hand.push(task)
    assert hand.parts == {"chief:0": 3, "worker:0": 4, "worker:1": 5}
    [answer] = hand.push("worker:1", sequence=2, base=0, part=5)
    assert answer.message.verdict is Verdict.STALE
    assert hand.parts["worker:1"] == 5
    hand.push("worker:1", sequence=3, base=1)
    for task in ("chief:0", "worker:0"):
        hand.push(task, sequence=2, base=1)
    assert hand.version() == 2
