"""The replica's machine by hand: what it says to whom, and when it may compute."""

import pytest
from roles.replica_talk import MAX, Talk, later, ready

from dtrain.errors import NonFiniteGradientError, PeerRefusedError, TooFewReplicasError
from dtrain.messages import (
    Conclude,
    HeartbeatReply,
    NotReady,
    Pull,
    Push,
    Refusal,
    RefusalKind,
    Verdict,
)
from dtrain.protocol.contributions import Outcome
from dtrain.roles.worker.machine import Closing, Finished, Pulling, Pushing, ValuesReady


def test_it_asks_the_first_server_and_then_the_others_for_at_least_its_version():
    talk = Talk(servers=3)
    assert talk.said == [(0, Pull(generation=1, at_least=0, wait_s=5.0))]
    assert talk.values(0, 4) == [
        (1, Pull(generation=1, at_least=4, wait_s=5.0)),
        (2, Pull(generation=1, at_least=4, wait_s=5.0)),
    ]
    assert talk.values(2, 4) == []
    assert talk.phase is Pulling
    assert talk.values(1, 4) == []
    assert talk.phase is ValuesReady
    assert talk.machine.global_step == 4


def test_in_sync_whoever_is_behind_is_asked_again_until_all_show_one_version():
    talk = Talk()
    talk.values(0, 4)
    assert talk.values(1, 5) == [(0, Pull(generation=1, at_least=5, wait_s=5.0))]
    assert talk.values(0, 4) == [(0, Pull(generation=1, at_least=5, wait_s=5.0))], (
        "the server's patience is over, ours is not"
    )
    talk.values(0, 5)
    talk.values(1, 5)
    assert talk.phase is ValuesReady


def test_while_the_first_server_makes_it_wait_the_others_values_may_be_assigned_anew():
    """The first server answers after the leader has assigned values at the version that another one showed
    before.
    """
    talk = Talk()
    talk.values(0, 4)
    assert talk.values(1, 5) == [(0, Pull(generation=1, at_least=5, wait_s=5.0))]
    assert talk.values(0, 5) == [(1, Pull(generation=1, at_least=5, wait_s=5.0))]
    assert talk.phase is Pulling
    assert talk.values(1, 5) == []
    assert talk.phase is ValuesReady


def test_in_async_each_server_has_a_version_of_its_own():
    talk = Talk(sync=False)
    assert talk.values(0, 4) == [(1, Pull(generation=1, at_least=0, wait_s=5.0))]
    talk.values(1, 7)
    assert talk.phase is ValuesReady
    assert [message.base_version for _, message in talk.push()] == [4, 7]


def test_a_push_goes_to_every_server_and_its_answers_are_the_next_values():
    talk = ready(version=4)
    assert talk.push() == [
        (0, Push(generation=1, incarnation=3, sequence=1, base_version=4, plan_hash="p")),
        (1, Push(generation=1, incarnation=3, sequence=1, base_version=4, plan_hash="p")),
    ]
    assert talk.machine.unanswered == dict(talk.said)
    assert talk.reply(1, 5, accepted=1) == []
    assert talk.phase is Pushing
    assert talk.reply(0, 5, accepted=1) == []
    assert talk.phase is ValuesReady
    assert talk.machine.outcome == Outcome(Verdict.ACCEPTED, 0, 1, 0)
    assert talk.push()[0] == (0, Push(generation=1, incarnation=3, sequence=2, base_version=5, plan_hash="p"))


def test_it_does_not_push_what_it_has_not_computed():
    with pytest.raises(AssertionError, match="pulling has nothing to push"):
        Talk().push()


def test_stale_somewhere_is_stale_and_the_server_behind_is_asked():
    talk = ready(version=4)
    talk.push()
    talk.reply(0, 5, Verdict.STALE, stale=1)
    assert talk.reply(1, 6, Verdict.STALE, stale=1) == [(0, Pull(generation=1, at_least=6, wait_s=5.0))]
    assert talk.machine.outcome == Outcome(Verdict.STALE, 0, 0, 1)
    talk.values(0, 6)
    talk.values(1, 6)
    assert talk.phase is ValuesReady


def test_the_gravest_verdict_and_the_largest_staleness_count():
    talk = ready(sync=False)
    talk.push()
    talk.reply(0, 5, accepted=1, staleness=2)
    talk.reply(1, 9, Verdict.STALE, stale=1, staleness=6)
    assert talk.machine.outcome == Outcome(Verdict.STALE, 6, 0, 1)


def test_with_quotas_pending_contributions_are_counted_up_and_the_values_stay():
    talk = ready(version=4)
    for ordinal in range(2):
        assert [message.ordinal for _, message in talk.push()] == [ordinal] * 2
        talk.reply(0, 4, Verdict.PENDING)
        talk.reply(1, 4, Verdict.PENDING)
        assert (talk.phase, talk.machine.global_step) == (ValuesReady, 4)
    talk.push()
    talk.reply(0, 5, accepted=3)
    talk.reply(1, 5, accepted=3)
    assert [message.ordinal for _, message in talk.push()] == [0, 0]


def test_a_refused_contribution_s_number_is_neither_used_twice_nor_forgotten():
    talk = ready(version=4)
    talk.push()
    for server in range(2):
        talk.reply(server, 4, Verdict.PENDING)
    assert [(message.ordinal, message.finite) for _, message in talk.push(finite=False)] == [(1, False)] * 2
    for server in range(2):
        talk.reply(server, 4, Verdict.REFUSED, reason="NaN")
    assert [message.ordinal for _, message in talk.push()] == [1, 1]


def test_refused_gradients_are_skipped_or_fail_by_the_policy():
    for policy in ("refuse", "skip"):
        talk = ready(servers=1, nan_policy=policy)
        talk.push(finite=False)
        talk.reply(0, 0, Verdict.REFUSED, reason="the gradient of worker:1 holds NaN")
        assert talk.phase is ValuesReady
        assert talk.machine.outcome.reason == "the gradient of worker:1 holds NaN"
    talk = ready(servers=1, nan_policy="fail")
    talk.push(finite=False)
    with pytest.raises(NonFiniteGradientError, match="worker:1 holds NaN"):
        talk.reply(0, 0, Verdict.REFUSED, reason="the gradient of worker:1 holds NaN")


def test_without_a_ticket_it_asks_for_one_and_then_for_what_has_aged_meanwhile():
    talk = ready(sync=False)
    talk.push()
    talk.reply(1, 3, accepted=1)
    assert talk.reply(0, 2, accepted=1, ticket=False) == [
        (0, Pull(generation=1, at_least=0, wait_s=5.0, answered=1))
    ]
    assert talk.values(0, 5, ticket=False) == [(0, Pull(generation=1, at_least=0, wait_s=5.0, answered=1))]
    assert talk.values(0, 6) == [(1, Pull(generation=1, at_least=0, wait_s=5.0, answered=1))]
    talk.values(1, 8)
    assert talk.phase is ValuesReady
    assert talk.machine.versions == [6, 8]


def test_at_the_last_step_it_has_the_final_values_of_every_server():
    talk = ready(version=MAX - 1)
    talk.push()
    talk.reply(0, MAX, accepted=1)
    assert talk.reply(1, MAX, accepted=1) == [
        (0, Pull(generation=1, at_least=MAX, wait_s=5.0, concluded=True))
    ]
    assert (talk.phase, talk.machine.global_step) == (Closing, MAX)
    assert talk.hear(0, NotReady(reason="chief:0 has not saved the last step")) == [
        (0, Pull(generation=1, at_least=MAX, wait_s=5.0, concluded=True))
    ]
    assert talk.hear(0, Conclude(generation=1)) == []
    assert (talk.phase, talk.machine.unanswered) == (Finished, {})


def test_a_server_that_never_gets_to_the_last_step_is_asked_once():
    talk = Talk(sync=False, saves=True)
    assert talk.values(0, MAX, ticket=False) == [(1, Pull(generation=1, at_least=MAX, wait_s=5.0))]
    talk.values(1, MAX - 1)
    assert talk.phase is Finished
    assert talk.machine.versions == [MAX, MAX - 1]


def test_one_that_comes_when_all_is_done_is_finished_at_once():
    talk = Talk(servers=1, saves=True)
    assert talk.values(0, MAX, ticket=False) == []
    assert talk.phase is Finished


def test_a_leader_that_does_not_train_waits_for_the_versions_that_it_names():
    talk = Talk(trains=False, saves=True)
    assert talk.values(0, 3, ticket=False) == [(1, Pull(generation=1, at_least=3, wait_s=5.0))]
    talk.values(1, 3)
    assert talk.phase is ValuesReady, "it looks at the first values"
    assert list(talk.machine.wait_for(6)) == [(0, Pull(generation=1, at_least=6, wait_s=5.0))]
    assert talk.values(0, 5, ticket=False) == [(0, Pull(generation=1, at_least=6, wait_s=5.0))]
    assert talk.values(0, 6, ticket=False) == [(1, Pull(generation=1, at_least=6, wait_s=5.0))]
    talk.values(1, 6)
    assert talk.phase is ValuesReady
    assert list(talk.machine.wait_for(MAX + 5)) == [(0, Pull(generation=1, at_least=MAX, wait_s=5.0))]
    assert talk.values(0, MAX, ticket=False) == [(1, Pull(generation=1, at_least=MAX, wait_s=5.0))]
    talk.values(1, MAX)
    assert talk.phase is Finished


def test_a_server_that_is_not_ready_is_asked_again():
    talk = Talk()
    assert talk.hear(0, NotReady(reason="ps:0 waits for chief:0")) == [
        (0, Pull(generation=1, at_least=0, wait_s=5.0))
    ]
    assert list(talk.machine.unanswered) == [0]


@pytest.mark.parametrize("pushing", [False, True])
def test_a_later_generation_means_that_this_one_is_over(pushing):
    talk = ready() if pushing else Talk()
    if pushing:
        talk.push()
    asked = Pull(generation=1, at_least=0, wait_s=5.0, concluded=True)
    assert talk.values(0, 0, generation=2) == [(0, asked)]
    assert (talk.phase, talk.machine.unanswered) == (Closing, {0: asked})
    assert talk.hear(0, Conclude(generation=1, rows={0: {"loss": 0.5}})) == []
    assert (talk.phase, talk.machine.rows) == (Finished, {0: {"loss": 0.5}})
    assert talk.machine.outcome.verdict is Verdict.FINISHED
    assert talk.machine.global_step == talk.machine.max_steps


def test_refusals_are_errors_of_their_kind():
    with pytest.raises(TooFewReplicasError, match="too few replicas: 3 contributions"):
        Talk().hear(
            0,
            Refusal(reason="too few replicas: 3 contributions are needed", kind=RefusalKind.TOO_FEW_REPLICAS),
        )
    with pytest.raises(PeerRefusedError, match="too few"):
        Talk().hear(0, Refusal(reason="too few blocks: a sentence is never parsed"))
    with pytest.raises(PeerRefusedError, match="another plan"):
        Talk().hear(0, Refusal(reason="another plan"))
    with pytest.raises(PeerRefusedError, match="ps:0 answered Pull with HeartbeatReply"):
        Talk().hear(0, HeartbeatReply(incarnation=1, generation=1, version=0, ended=False))


# Servers that went back to a checkpoint


def test_in_a_later_term_it_begins_again_when_everything_it_asked_for_is_answered():
    talk = ready(version=4, term=7)
    talk.push()
    assert later(talk, 1) == []
    assert talk.reply(0, 5, accepted=1) == [(0, Pull(generation=1, at_least=0, wait_s=5.0, term=8))], (
        "what it has heard of the earlier term is void"
    )
    assert talk.machine.outcome.verdict is Verdict.VOID
    assert talk.values(0, 3, term=8) == [(1, Pull(generation=1, at_least=3, wait_s=5.0, term=8))]
    talk.values(1, 3, term=8)
    assert (talk.phase, talk.machine.versions) == (ValuesReady, [3, 3])
    assert talk.push()[0] == (
        0,
        Push(generation=1, incarnation=3, sequence=2, base_version=3, plan_hash="p", term=8),
    ), "the numbers of pushes go on"


def test_a_server_that_lost_its_memory_is_asked_for_what_comes_instead_of_the_push():
    talk = ready(servers=1, version=4, term=7)
    talk.push()
    assert talk.hear(0, NotReady(reason="ps:0 waits for chief:0")) == [
        (0, Pull(generation=1, at_least=0, wait_s=5.0, term=7))
    ]
    assert later(talk, 0) == [(0, Pull(generation=1, at_least=0, wait_s=5.0, term=8))]


def test_who_waits_for_the_last_step_to_be_saved_may_be_needed_again():
    talk = ready(servers=1, version=MAX - 1, term=7)
    talk.push()
    talk.reply(0, MAX, accepted=1)
    assert later(talk, 0) == [(0, Pull(generation=1, at_least=0, wait_s=5.0, term=8))]
    talk.values(0, 3, term=8)
    assert talk.phase is ValuesReady
    assert talk.machine.outcome.verdict is Verdict.VOID
