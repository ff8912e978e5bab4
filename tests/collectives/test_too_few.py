"""From the step after a death on, replicas go on, wait for others or give up, as `too_few` says."""

import threading
import time

import pytest
from collectives.test_orders import FIRST, PARTS, STEPS, Replicas, ended, expected, in_threads, step, train

from dtrain.config.choices import TooFew
from dtrain.errors import TooFewReplicasError
from dtrain.roles.collective.rules import Rules
from dtrain.wire.one_host.synchronization import Doorbells, pairs


def after_a_death(rule, timeout_s=20.0):
    """Return replicas of which one has died after the first step, and the driver of the other."""
    replicas = Replicas(rules=Rules(too_few=rule, too_few_timeout_s=timeout_s))
    survivor, victim = replicas.driver(0), replicas.driver(1)
    ended(in_threads(lambda: step(survivor), lambda: step(victim)))
    victim.close()
    step(survivor)  # the step of the death is finished whatever the rule
    assert survivor.version == 2
    assert survivor.members == (0,)
    return replicas, survivor


def test_with_shrink_the_others_compute_all_parts():
    replicas, survivor = after_a_death(TooFew.SHRINK)
    computed = []
    train(survivor, computed)
    assert sorted(part for part in computed if part >= 0) == list(range(2 * PARTS, STEPS * PARTS))
    assert replicas.values().tolist() == expected(FIRST, range(STEPS), 0.5).tolist()


@pytest.mark.parametrize(("rule", "timeout_s"), [(TooFew.FAIL, 20.0), (TooFew.WAIT, 0.05)])
def test_they_give_up_at_once_or_after_a_while_and_say_why(rule, timeout_s):
    _, survivor = after_a_death(rule, timeout_s)
    with pytest.raises(
        TooFewReplicasError, match=rf"2 are needed for version 3 and 1 are left.*too_few: {rule}"
    ):
        survivor.next_part()


def test_with_wait_they_go_on_when_another_has_come():
    replicas, survivor = after_a_death(TooFew.WAIT)
    threads = in_threads(lambda: train(survivor))
    ends = pairs(range(2))
    replicas.doorbells[1] = Doorbells(ends[1])
    replicas.doorbells[0].offer(1, ends[0][1])
    deadline = time.monotonic() + 20
    while replicas.arena.board.admitted[1] != 3 or 1 not in replicas.members(3):
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    newcomer = replicas.driver(1, from_round=3)
    ended([*threads, *in_threads(lambda: train(newcomer))])
    assert replicas.values().tolist() == expected(FIRST, range(STEPS), 0.5).tolist()
    assert newcomer.version == survivor.version == STEPS
