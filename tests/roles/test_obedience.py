"""What a server does about orders: it holds, changes at the version that is named, and obeys each once."""

import numpy as np
import pytest
from roles.by_hand import asynchronous, only, sync

from dtrain.control.interface import Send
from dtrain.learning import optimizers
from dtrain.messages import Control, Controlled, Hold, Holding, NotReady, Refusal, Values, Verdict
from dtrain.variables import VariableSpec

FASTER = optimizers.serialize(optimizers.SGD(1.0))
ONE = {"workers": 0, "chief_trains": True}


def hold(hand, count=1, **more):
    return only(hand.say("chief:0", Hold(generation=1, number=(1, count), **more)))


def control(hand, count=1, version=0, optimizer=FASTER, blocks=(), term=0, **more):
    message = Control(
        generation=1,
        number=(1, count),
        term=term,
        version=version,
        optimizer=optimizer,
        **more,
    )
    actions = hand.say("chief:0", message, blocks)
    assert isinstance(actions[0], Send)
    return actions[0].message, actions[1:]


def kernel(hand):
    return float(hand.servers[0].held.store.values[0][0])


@pytest.mark.parametrize("made", [sync, asynchronous])
def test_from_the_next_version_on_other_numbers_hold(made):
    hand = made(**ONE)
    hand.pull("chief:0")
    hand.push("chief:0")
    before = kernel(hand)
    assert hold(hand).version == 1
    assert control(hand, version=1)[0] == Controlled()
    hand.push("chief:0", sequence=2, base=1)
    assert kernel(hand) == pytest.approx(before - 1.0), "the rate was 0.5"


def test_nothing_is_made_while_a_server_holds():
    hand = sync(**ONE)
    assert hold(hand) == Holding(
        term=0, version=0, optimizer=optimizers.serialize(hand.optimizer), stopped=False
    )
    assert hand.push("chief:0") == []
    answer, freed = control(hand)
    assert answer == Controlled()
    assert [action.message.verdict for action in freed] == [Verdict.ACCEPTED]
    assert hand.version() == 1


def test_a_limit_holds_until_the_next_order():
    hand = sync(**ONE)
    hold(hand)
    control(hand, until=1)
    assert only(hand.push("chief:0")).verdict is Verdict.ACCEPTED
    assert hand.push("chief:0", sequence=2, base=1) == []
    hold(hand, count=2)
    _, freed = control(hand, count=2, version=1)
    assert [action.message.verdict for action in freed] == [Verdict.ACCEPTED]


def test_in_async_a_limit_is_one_of_tickets():
    hand = asynchronous(**ONE)
    hold(hand)
    assert not only(hand.pull("chief:0")).ticket
    control(hand, until=1)
    assert only(hand.pull("chief:0")).ticket
    assert not only(hand.push("chief:0")).ticket
    control(hand, count=2, version=1)
    assert only(hand.pull("chief:0")).ticket


def test_an_order_that_comes_late_or_twice_changes_nothing():
    hand = sync(**ONE)
    hold(hand, count=2)
    control(hand, count=2)
    before = hand.image(), hand.servers[0].held.store.optimizer_config
    for count in (1, 2):
        slower = optimizers.serialize(optimizers.SGD(0.01))
        assert control(hand, count=count, optimizer=slower, blocks=hand.blocks(value=7))[0] == Controlled()
        assert hold(hand, count=count).version == 0
    assert (hand.image(), hand.servers[0].held.store.optimizer_config) == before
    assert only(hand.push("chief:0")).verdict is Verdict.ACCEPTED, "and it does not hold again"


def test_orders_of_another_fit_or_term_are_not_obeyed():
    hand = sync(**ONE)
    before = hand.image()
    assert isinstance(only(hand.say("chief:0", Hold(generation=2, number=(1, 1)))), NotReady)
    assert isinstance(control(hand, term=4)[0], NotReady)
    assert hand.image() == before


def test_a_change_that_does_not_fit_is_refused_and_leaves_everything_alone():
    hand = sync(**ONE)
    hold(hand)
    before = hand.image()
    adam = optimizers.serialize(optimizers.Adam())
    for more in (
        {"optimizer": adam},
        {"blocks": hand.blocks()[:1]},
        {"optimizer": {"class_name": "Unknown", "config": {}}},
    ):
        assert isinstance(control(hand, **more)[0], Refusal)
        assert hand.image() == before


def test_values_are_set_at_the_version_that_is_named():
    hand = sync(**ONE)
    hold(hand)
    control(hand, version=1, blocks=hand.blocks(value=7))
    assert kernel(hand) == 0.0, "that is version 0"
    hand.push("chief:0")
    assert kernel(hand) == 7.0


def test_of_a_table_all_rows_are_set_or_none():
    variables = (VariableSpec("bias", (2,)), VariableSpec("table", (3, 2), sparse=True))
    hand = sync(**ONE, variables=variables)
    rows = np.arange(6, dtype=np.float32)
    table = hand.servers[0].held.store.tables[0]
    table.values[...] = 1
    table.mark()
    hold(hand)
    assert control(hand, blocks=[*hand.blocks(value=7), rows])[0] == Controlled()
    assert table.values.tolist() == rows.reshape(3, 2).tolist()
    assert table.snapshot.read("", 0, 3).tolist() == [[1.0] * 2] * 3, (
        "a checkpoint that is being written has them as they were"
    )
    control(hand, count=2, blocks=[*hand.blocks(value=8), rows[:0]])
    assert table.values.tolist() == rows.reshape(3, 2).tolist()
    assert kernel(hand) == 8.0
    for blocks in (hand.blocks(), [*hand.blocks(), rows[:2]], [*hand.blocks(), rows, rows]):
        assert "rows of 1 tables" in control(hand, count=3, blocks=blocks)[0].reason


def test_a_stop_while_contributions_are_held_makes_no_version_of_them():
    hand = sync(workers=1)
    assert hold(hand).version == 0
    for task in ("chief:0", "worker:0"):
        assert hand.push(task) == []
    told = hand.say(
        "chief:0",
        Control(generation=1, number=(1, 1), term=0, version=0, optimizer=FASTER, stop=True),
        caller="orders",
    )
    assert {action.caller: action.message for action in told}.pop("orders") == Controlled()
    assert [action.message.verdict for action in told if action.caller != "orders"] == [Verdict.FINISHED] * 2
    assert hand.version() == 0


def test_one_whose_connection_was_broken_while_training_was_stopped_hears_of_it():
    hand = sync(workers=1)
    hold(hand)
    hand.push("worker:0", caller="old")
    hand.servers[0].disconnected("old")
    control(hand, version=0, stop=True)
    answer = only(hand.push("worker:0", caller="new"))
    assert (answer.verdict, answer.version, answer.duplicate) == (Verdict.FINISHED, 0, True)


def test_a_stop_makes_the_version_the_last_one():
    hand = sync(**ONE)
    hand.push("chief:0")
    assert not hold(hand).stopped
    control(hand, version=1, stop=True)
    assert hold(hand, count=2).stopped
    values = only(hand.pull("chief:0", at_least=1))
    assert isinstance(values, Values)
    assert only(hand.push("chief:0", sequence=2, base=1)).verdict is Verdict.FINISHED
    assert hand.version() == 1
