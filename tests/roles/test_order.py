"""The leader's machine for one order: every server holds, every server gets it, ps:0 last."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.errors import PeerRefusedError
from dtrain.messages import Control, Controlled, Hold, Holding, NotReady, Refusal
from dtrain.roles.chief.order import Order

RULE = {"class_name": "SGD", "config": {}}


def order(servers, **control):
    return Order(
        servers, 1, (3, 7), Control(generation=1, number=(0, 0), term=0, version=0, optimizer=RULE, **control)
    )


def holding(term=2, version=5, stopped=False):
    return Holding(term=term, version=version, optimizer=RULE, stopped=stopped)


def answered(made, answers):
    """Let servers answer in turn; what is sent then."""
    return [sent for server, message in answers for sent in made.receive(server, message)]


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_all_hold_before_any_is_told_and_ps_0_is_told_last(data):
    servers = data.draw(st.integers(1, 4))
    made = order(servers, until=9)
    asked = dict(made.start())
    assert asked == dict.fromkeys(range(servers), Hold(generation=1, number=(3, 7)))
    told = []
    while asked:
        server = data.draw(st.sampled_from(sorted(asked)))
        message = asked.pop(server)
        if isinstance(message, Control):
            told.append(server)
        # Only ps:0's version counts.
        answer = Controlled() if isinstance(message, Control) else holding(version=5 if server == 0 else 4)
        for target, sent in made.receive(server, answer):
            assert sent == Control(generation=1, number=(3, 7), term=2, version=5, optimizer=RULE, until=9)
            asked[target] = sent
        assert made.unanswered == asked
    assert sorted(told) == list(range(servers))
    assert told[-1] == 0
    assert made.done
    assert made.seen.version == 5


def test_a_look_tells_nobody_anything():
    made = Order(2, 1, (3, 7))
    assert len(list(made.start())) == 2
    assert answered(made, [(0, holding()), (1, holding())]) == []
    assert made.done
    assert not made.stops


@pytest.mark.parametrize("answer", [NotReady(reason="it holds nothing"), holding(term=3)])
def test_servers_in_different_terms_are_asked_again(answer):
    made = order(2)
    list(made.start())
    assert answered(made, [(0, holding()), (1, answer)]) == []
    assert (made.done, made.unanswered) == (False, {})
    assert [message for _, message in made.start()] == [Hold(generation=1, number=(3, 7))] * 2
    [(server, control)] = answered(made, [(1, holding(term=3)), (0, holding(term=3, version=4))])
    assert (server, control.term, control.version) == (1, 3, 4)


def test_a_term_that_begins_while_they_are_told_begins_the_order_again():
    made = order(2)
    list(made.start())
    answered(made, [(0, holding()), (1, holding())])
    assert answered(made, [(1, NotReady(reason="another term"))]) == []
    assert not made.done
    assert len(list(made.start())) == 2


def test_a_stop_of_which_a_server_has_heard_is_part_of_the_next_order():
    made = order(2)
    list(made.start())
    [(_, control)] = answered(made, [(0, holding()), (1, holding(stopped=True))])
    assert control.stop
    assert made.stops


@pytest.mark.parametrize(
    ("again", "comes_back", "version", "brings"),
    [(False, False, 5, True), (True, False, 4, True), (True, False, 5, False), (True, True, 4, False)],
)
def test_values_are_given_again_only_where_the_term_begins_at_their_version(
    again, comes_back, version, brings
):
    made = Order(1, 1, (3, 7), order(1, until=9).control, since=4, assigns=True)
    made.again, made.comes_back = again, comes_back
    list(made.start())
    [(_, control)] = answered(made, [(0, holding(version=version))])
    assert made.brings_values == brings
    assert control.until == (version if comes_back else 9), "an epoch that begins anew ends anew"


@pytest.mark.parametrize("answer", [Refusal(reason="other slots"), Hold(generation=1, number=(0, 0))])
def test_who_does_not_obey_ends_it(answer):
    made = order(1)
    list(made.start())
    answered(made, [(0, holding())])
    with pytest.raises(PeerRefusedError, match=r"other slots|answered Control with Hold"):
        answered(made, [(0, answer)])
