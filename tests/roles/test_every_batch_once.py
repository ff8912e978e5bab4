"""Async: every batch counts exactly once on every server, whatever dies or stands still, and in whatever
order it arrives.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roles.by_hand import TASKS, asynchronous
from roles.every_batch_once import Play
from row_by_row import every_row

from dtrain.messages import Control, Hold, Verdict
from dtrain.protocol.membership import LEASE_S

RULES = st.sampled_from([{}, {"warmup_steps": 2}, {"staleness_bound": 1}, {"stale_gradients": "scale"}])
WHO, WHERE = st.sampled_from(TASKS), st.integers(0, 2)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), WHO, WHERE),
        st.tuples(st.just("deliver"), WHO, WHERE),
        st.tuples(st.just("deliver"), WHO, WHERE),
        st.tuples(st.just("kill"), WHO, st.integers(0, 1)),
        st.tuples(st.just("start"), WHO),
        st.tuples(st.just("sleep"), WHO),
        st.tuples(st.just("wake")),
        st.tuples(st.just("lease")),
    ),
    max_size=60,
)


def play(events, servers, **rules):
    game = Play(servers, **rules)
    for name, *arguments in events:
        if name == "deliver":
            arguments[1] %= servers
        getattr(game, name)(*arguments)
    game.to_the_end()
    return game


@given(EVENTS, st.integers(2, 3), RULES)
@settings(max_examples=80, deadline=None)
def test_every_server_applies_each_batch_once(events, servers, rules):
    game = play(events, servers, **rules)
    assert [sorted(applied) for applied in game.applied] == [list(range(game.max_steps))] * servers


@given(EVENTS, st.integers(2, 3), st.integers(0, 2), st.sampled_from(["skip", "retry_same_batch"]))
@settings(max_examples=80, deadline=None)
def test_what_is_too_stale_is_dropped_everywhere_or_nowhere(events, servers, max_staleness, on_stale):
    game = play(events, servers, stale_gradients="drop", max_staleness=max_staleness, on_stale=on_stale)
    first = game.applied[0]
    assert len(first) == len(set(first)) == game.max_steps
    assert [sorted(applied) for applied in game.applied] == [sorted(first)] * servers
    if on_stale == "retry_same_batch":
        assert sorted(first) == list(range(game.max_steps))


@every_row("arrived", [(), (0,), (1,), (0, 1)])
@every_row("again", ["another replica", "the same task", "the leader alone"])
def test_a_push_that_a_death_halves_counts_everywhere(arrived, again):
    game = Play(max_steps=4)
    for task in TASKS:
        game.deliver(task, 0)  # its first pull
        game.deliver(task, 1)
    for server in arrived:
        game.deliver("worker:1", server)
    assert [len(applied) for applied in game.applied] == [int(server in arrived) for server in (0, 1)]
    game.kill("worker:1")
    if again == "the leader alone":
        game.kill("worker:0")
    if again != "the same task":
        game.lease()
    game.to_the_end()
    assert [sorted(applied) for applied in game.applied] == [[0, 1, 2, 3]] * 2


def test_a_push_without_a_ticket_is_refused_and_the_last_step_is_exact_on_every_server():
    hand = asynchronous(servers=2, max_steps=3)
    for task in TASKS:
        hand.beat(task)
        hand.pull(task)
    hand.now = LEASE_S + 0.1
    for task in ("chief:0", "worker:0"):
        hand.beat(task, 1)
    hand.tick()
    verdicts = []
    for task, sequence, part in (
        ("chief:0", 1, 0),
        ("worker:0", 1, 1),
        ("worker:1", 1, 2),
        ("chief:0", 2, 2),
    ):
        for server in (0, 1):
            answer = hand.push(task, sequence, base=sequence - 1, server=server, part=part)[0].message
            verdicts.append(answer.verdict)
    accepted, stale = Verdict.ACCEPTED, Verdict.STALE
    assert verdicts == [accepted] * 4 + [stale, accepted] + [accepted] * 2, (
        "ps:1 has the late one, and passes over the repetition"
    )
    assert [hand.version(0), hand.version(1)] == [3, 3]


def test_a_late_push_does_not_take_the_batch_of_who_has_it_now():
    hand = asynchronous(max_steps=3)
    for task in TASKS:
        hand.beat(task)
        hand.pull(task)
    hand.now = LEASE_S + 0.1
    for task in ("chief:0", "worker:0"):
        hand.beat(task, 1)
    hand.tick()
    hand.push("chief:0", part=0)
    dealer = hand.servers[0].held.steps.dealer
    assert dealer.current[0] == 2, "the lost one's"
    assert hand.push("worker:1", part=2, value=7)[0].message.verdict is Verdict.STALE
    assert hand.push("worker:1", sequence=2, part=2, finite=False)[0].message.verdict is Verdict.REFUSED
    assert dealer.given[2] == 0
    assert hand.push("chief:0", sequence=2, base=1, part=2)[0].message.verdict is Verdict.ACCEPTED


def test_a_batch_that_may_be_on_another_server_is_not_given_up_for_one_gradient_that_is_not_finite():
    game = Play(max_steps=3)
    for task in TASKS:
        game.deliver(task, 0)
        game.deliver(task, 1)
    game.deliver("worker:1", 1)
    game.kill("worker:1")
    game.lease()
    dealer = game.hand.servers[0].held.steps.dealer
    assert dealer.due == {2}
    hand = game.hand
    for server in (0, 1):
        game.deliver("chief:0", server)
    assert dealer.current[0] == 2
    chief = game.machines["chief:0"]
    refused = hand.push(
        "chief:0", chief.sequence, base=chief.versions[0], part=2, finite=False, incarnation=chief.incarnation
    )
    assert refused[0].message.verdict is Verdict.REFUSED
    assert 2 in {*dealer.due, *dealer.given}


def halved(repair):
    """The chief is to push a batch again that one of two servers has: ps:0 (a repair), or the other one."""
    game = Play(max_steps=3)
    for task in TASKS:
        game.deliver(task, 0)
        game.deliver(task, 1)
    game.deliver("worker:1", 0 if repair else 1)
    game.kill("worker:1")
    game.lease()
    for server in (0, 1):
        game.deliver("chief:0", server)
    return game


@pytest.mark.parametrize("repair", [False, True])
def test_where_a_halved_batch_cannot_be_brought_to_all_servers_they_go_back_to_a_checkpoint(repair):
    game = halved(repair)
    hand, chief = game.hand, game.machines["chief:0"]
    for tried in range(4):
        assert hand.servers[0].held is not None, f"{tried} gradients were not finite"
        pushes, part = hand.servers[0].held.steps, 2
        if tried:
            hand.pull("chief:0")
        assert pushes.dealer.current.get(0, pushes.repairs.given.get(0)) == part
        [answer] = hand.push(
            "chief:0",
            chief.sequence + tried,
            base=chief.versions[0],
            part=part,
            finite=False,
            incarnation=chief.incarnation,
        )
        assert answer.message.verdict is Verdict.REFUSED
    assert answer.message.reason.endswith("so all go back to the newest checkpoint")
    [reply] = hand.beat("chief:0", chief.incarnation)
    assert (reply.message.generation, reply.message.term) == (0, 0), "the leader begins a new term"


def test_a_batch_that_only_waits_is_not_under_way_when_the_leader_holds_training():
    """It was under way when the checkpoint was written. Else values that are assigned now would hold from a
    later version on, and wipe it.
    """
    hand = asynchronous(servers=2, max_steps=9)
    hand.initialise(term=1, version=4, until=4, dealt=(1, 6, (2, 3), False, ()))
    [answer] = hand.say("chief:0", Hold(generation=1, number=(1, 1)))
    assert answer.message.version == 4


def test_a_leader_that_stops_training_again_leaves_out_no_batch_that_a_server_may_have():
    """It was started again, and was given the batch of its predecessor, which may have pushed it."""
    game = halved(repair=False)
    hand, pushes = game.hand, game.hand.servers[0].held.steps
    assert pushes.dealer.current[0] == 2
    [answer] = hand.say("chief:0", Hold(generation=1, number=(2, 1)))
    assert answer.message.version == pushes.version + 2, "worker:0 pushes one, and this is the other"
    order = Control(
        generation=1,
        number=(2, 1),
        term=0,
        version=answer.message.version,
        optimizer=hand.servers[0].held.store.optimizer_config,
        stop=True,
    )
    for server in (1, 0):
        hand.say("chief:0", order, server=server)
    game.max_steps = order.version
    game.to_the_end()
    assert [sorted(applied) for applied in game.applied] == [[0, 1, 2]] * 2


def test_in_the_warm_up_only_rank_0_repairs():
    game = Play(max_steps=6, warmup_steps=4)
    for _ in range(3):
        game.deliver("chief:0", 0)
        game.deliver("chief:0", 1)
    game.deliver("chief:0", 0)
    assert len(game.applied[0]) > len(game.applied[1])
    game.kill("chief:0")
    game.lease()
    pushes = game.hand.servers[0].held.steps
    assert list(pushes.repairs.due) == [game.applied[0][-1]]
    assert (pushes.permit(1), pushes.permit(2)) == ((False, -1), (False, -1))
    game.to_the_end()
    assert [sorted(applied) for applied in game.applied] == [list(range(6))] * 2


def test_a_repair_counts_for_no_step_sum_or_clock():
    game = Play(max_steps=4, staleness_bound=2)
    for task in TASKS:
        game.deliver(task, 0)
        game.deliver(task, 1)
    game.deliver("worker:1", 0)
    game.kill("worker:1")
    game.lease()
    gate = game.hand.servers[0].held.steps.gate
    for server in (0, 1):
        game.deliver("chief:0", server)
    clocks, accepted = dict(gate.clocks), gate.accepted
    assert game.machines["chief:0"].repairs
    for server in (0, 1):
        game.deliver("chief:0", server)
    assert (dict(gate.clocks), gate.accepted) == (clocks, accepted)
    assert sorted(game.applied[1]) == sorted(game.applied[0])


def test_ps_0_says_for_whom_the_end_waits():
    game = Play(max_steps=3)
    for task in TASKS:
        game.deliver(task, 0)
        game.deliver(task, 1)
    for task in TASKS:
        game.deliver(task, 0)
    assert [len(applied) for applied in game.applied] == [3, 0]
    attendance = game.hand.servers[0].control.roster
    assert attendance.awaited(game.hand.servers[0].held) == "chief:0, worker:0, worker:1"
    game.to_the_end()
    assert [sorted(applied) for applied in game.applied] == [[0, 1, 2]] * 2


@pytest.mark.parametrize("part", [-1, 1 << 40])
def test_a_batch_that_was_never_dealt_is_applied_nowhere(part):
    hand = asynchronous(servers=2)
    for server in (0, 1):
        hand.push("worker:0", server=server, part=part)
        assert (hand.version(server), hand.servers[server].held.applied.export()) == (0, (0, ()))


def test_a_batch_that_another_server_may_lack_is_not_settled():
    """A server forgets at a checkpoint what is settled, and applies none of it later."""
    game = Play(max_steps=9)
    steps = game.hand.servers[0].held.steps
    for task in TASKS:
        game.deliver(task, 0)
        game.deliver(task, 1)
    game.deliver("chief:0", 0)
    settled = [steps.settled_below]
    for task in ("worker:0", "worker:1"):
        game.deliver(task, 0)
        game.deliver(task, 1)
    settled.append(steps.settled_below)
    game.kill("chief:0")
    game.lease()
    settled.append(steps.settled_below)
    for task in ("worker:0", "worker:1"):
        game.deliver(task, 0)
        game.deliver(task, 1)
    settled.append(steps.settled_below)
    assert settled == [0, 0, 0, 0], "pushed to ps:0 alone; of a lost replica; being computed again"
    game.to_the_end()
    assert steps.settled_below == 9
