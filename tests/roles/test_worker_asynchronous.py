"""The replica's machine in asynchronous training: tickets, repairs, and what ps:0 alone judges."""

from roles.replica_talk import MAX, Talk

from dtrain.messages import (
    Pull,
    Verdict,
)
from dtrain.roles.worker.machine import Finished, ValuesReady


def asynchronous(version=0, **more):
    """Ready, with two servers, of which ps:0 says what is to be computed."""
    talk = Talk(sync=False, **more)
    talk.values(0, version)
    talk.values(1, version)
    assert talk.phase is ValuesReady
    return talk


def test_a_pull_tells_ps_0_which_push_all_servers_have_answered():
    talk = asynchronous()
    talk.push()
    assert talk.reply(0, 1, ticket=False) == []
    assert talk.machine.unanswered.keys() == {1}
    assert talk.reply(1, 1) == [(0, Pull(generation=1, at_least=0, wait_s=5.0, answered=1))]


def test_training_has_not_ended_before_ps_0_says_that_every_server_has_the_last_step():
    talk = asynchronous(MAX - 1, saves=True)
    talk.push()
    talk.reply(0, MAX, ticket=False)
    ask = (0, Pull(generation=1, at_least=MAX, wait_s=5.0, answered=1))
    assert talk.reply(1, MAX) == [ask]
    assert talk.values(0, MAX, ticket=False, settled=False) == [ask], "asked in vain, for as long as it waits"
    assert talk.values(0, MAX, ticket=False) == []
    assert talk.phase is Finished


def test_a_repair_is_computed_after_the_last_step():
    talk = asynchronous(MAX - 1)
    talk.push()
    talk.reply(0, MAX, ticket=True, part=4, repairs=True)
    talk.reply(1, MAX)
    assert (talk.phase, talk.machine.repairs, talk.machine.turn.part) == (ValuesReady, True, 4)
    assert [push.part for _, push in talk.push()] == [4, 4]
    talk.reply(1, MAX)
    assert talk.reply(0, MAX, ticket=False) == [(0, Pull(generation=1, at_least=MAX, wait_s=5.0, answered=2))]
    assert talk.values(0, MAX, ticket=False) == [
        (0, Pull(generation=1, at_least=MAX, wait_s=5.0, concluded=True, answered=2))
    ]


def test_a_leader_that_does_not_train_waits_until_every_server_has_the_step():
    talk = Talk(sync=False, trains=False, saves=True)
    talk.values(0, 0, ticket=False)
    talk.values(1, 0)
    talk.said = list(talk.machine.wait_for(4))
    assert talk.values(0, 4, ticket=False, settled=False) == [(0, Pull(generation=1, at_least=4, wait_s=5.0))]
    assert talk.values(0, 4, ticket=False, held=True) == [(1, Pull(generation=1, at_least=4, wait_s=5.0))]


def test_where_ps_0_judges_alone_the_others_are_sent_what_it_accepts():
    talk = asynchronous(first_judges=True)
    [(server, push)] = talk.push()
    assert server == 0
    [(server, passed_on)] = talk.reply(0, 1, accepted=1)
    assert (server, passed_on.sequence, passed_on.part) == (1, push.sequence, push.part)
    talk.reply(1, 1, accepted=1)
    assert (talk.phase, talk.machine.outcome.verdict) == (ValuesReady, Verdict.ACCEPTED)


def test_where_ps_0_finds_a_gradient_too_stale_the_others_give_their_values_only():
    talk = asynchronous(first_judges=True)
    talk.push()
    assert talk.reply(0, 5, Verdict.STALE, stale=1) == [
        (1, Pull(generation=1, at_least=0, wait_s=5.0, answered=1))
    ]
    talk.values(1, 6)
    assert (talk.phase, talk.machine.outcome.verdict, talk.machine.versions) == (
        ValuesReady,
        Verdict.STALE,
        [5, 6],
    )
