"""The real machines over a network that breaks, with tasks that crash: every seed keeps the rules and comes
to its end.

DTRAIN_SEEDS=FROM:TO runs other seeds than the usual ones; by night 0:400, or more. With DTRAIN_TRACE=1 and `-s` every seed is told: what
happened, by the words of docs/reference/trace.md and with the virtual time.
"""

import os

import pytest
from simulation.scenario import SEEDS_OF_SAME_RUN, USUAL_SEEDS, Fault, Resume, Scenario, draw, pairs
from simulation.world import World, broken_rule, told, whole_story

from dtrain.config import training_section
from dtrain.runs.trace import VARIABLE

BATCHES = 4
TRACED = os.environ.get(VARIABLE, "") not in ("", "0")


def seeds(usual=USUAL_SEEDS[SEEDS_OF_SAME_RUN:]):
    if "DTRAIN_SEEDS" not in os.environ:
        return usual
    first, _, end = os.environ["DTRAIN_SEEDS"].partition(":")
    return range(int(first), int(end or int(first) + 1))


def test_the_usual_seeds_draw_all_that_the_first_120_draw_together():
    usual, first = (set().union(*(pairs(draw(seed)) for seed in them)) for them in (USUAL_SEEDS, range(120)))
    assert first - usual == set(), "choose others by `pairs`"


@pytest.mark.timeout(0)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_safety_after_every_event_and_progress_in_the_end(batch):
    for seed in seeds()[batch::BATCHES]:
        scenario = draw(seed)
        if TRACED:
            print(whole_story(scenario))
        if broken_rule(scenario) is not None:
            pytest.fail(told(scenario), pytrace=False)


@pytest.mark.parametrize("dies_s", [5.0, 5.05, 5.1, 5.2, 5.3, 5.5, 6.0])
def test_a_leader_that_dies_while_it_begins_a_term_leaves_the_servers_in_the_one_before(dies_s):
    faults = Fault(4.0, "fall", 1, 0.1), Fault(dies_s, "crash", 0, 0.5)
    rule = training_section(updates="sync")
    scenario = Scenario(1, 3, 3, 20, rule, mean_delay_s=0.1, compute_s=0.5, nan_rate=0.0, faults=faults)
    assert broken_rule(scenario) is None, told(scenario)


@pytest.mark.parametrize("falls_s", [6.2, 6.4, 6.6])
def test_a_leader_that_comes_back_as_a_server_falls_records_no_epoch_that_was_taken_back(falls_s):
    faults = Fault(4.0, "crash", 0, 1.0), Fault(falls_s, "fall", 1, 1.0)
    rule = training_section(chief_trains=False)
    scenario = Scenario(8, 3, 2, 11, rule, 0.1, compute_s=0.5, nan_rate=0.0, faults=faults, steps_per_epoch=1)
    assert broken_rule(scenario) is None, told(scenario)


def test_one_who_is_dead_for_good_is_not_waited_for_again_when_ps_0_was_started_again():
    faults = Fault(2.0, "die", 2, 0.0), Fault(12.0, "fall", 0, 1.0)
    rule = training_section(updates="sync", too_few="shrink")
    world = World(Scenario(1, 3, 2, 40, rule, mean_delay_s=0.005, compute_s=0.5, nan_rate=0.0, faults=faults))
    world.run()
    assert world.clock.now < 60.0, "40 steps of half a second, and two leases"


def test_a_run_that_is_resumed_soon_after_its_failure_trains_to_its_end():
    faults = Fault(2.0, "die", 2, 0.0), Fault(6.0, "pause", 1, 20.0)
    rule, resume = training_section(updates="sync", too_few="fail"), Resume(9.0, 2, 2)
    scenario = Scenario(1, 3, 2, 40, rule, 0.005, compute_s=0.5, nan_rate=0.0, faults=faults, resume=resume)
    story = whole_story(scenario)
    assert story.index("too few replicas") < story.index("and resumed with 2 replicas")
    assert story.endswith("=> None")


@pytest.mark.parametrize(
    "rule",
    [
        training_section(updates="sync"),
        training_section(updates="sync", backup_workers=1, on_stale="retry_same_batch"),
        training_section(),
        training_section(staleness_bound=1),
    ],
    ids=["sync", "backups", "async", "bounded"],
)
def test_replicas_that_beat_and_do_nothing_hold_up_nobody_for_longer_than_until_they_are_killed(rule):
    faults = Fault(2.0, "stick", 0, 9.0), Fault(14.0, "stick", 1, 9.0)
    scenario = Scenario(1, 3, 2, 60, rule, mean_delay_s=0.005, compute_s=0.5, nan_rate=0.0, faults=faults)
    story = whole_story(scenario)
    assert story.endswith("=> None")
    assert "chief:0 is stuck" in story


def test_an_evaluator_that_ps_0_never_told_of_the_directory_says_so_in_the_end():
    faults = Fault(0.6, "pause", -1, 8.0), Fault(4.0, "fall", 0, 0.5)
    rule = training_section(updates="sync")
    scenario = Scenario(2, 1, 1, 4, rule, 0.005, compute_s=0.5, nan_rate=0.0, faults=faults, evaluation_s=0.1)
    story = whole_story(scenario)
    assert "evaluator:0: nothing was evaluated" in story
    assert story.endswith("=> None")


def test_a_story_has_the_words_of_a_trace_in_the_order_of_virtual_time():
    rule = training_section(updates="sync")
    scenario = Scenario(1, 2, 2, 6, rule, mean_delay_s=0.005, compute_s=0.5, nan_rate=0.0, evaluation_s=0.1)
    lines = [line.split(maxsplit=1) for line in whole_story(scenario).splitlines()[1:-1]]
    told = [float(at_s) for at_s, _ in lines]
    assert told == sorted(told)
    events = ("term begun", "member joined", "decided", "config changed", "cut taken", "saved", "member left")
    spans = ("wait", "send", "apply")
    for word in (*events, *spans):
        assert any(f" {word}" in text for _, text in lines), word
    decided = [text for _, text in lines if text.startswith("ps:0 decided: ")]
    assert [text.split(",")[0] for text in decided] == [f"ps:0 decided: step {step}" for step in range(1, 7)]
