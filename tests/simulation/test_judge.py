"""The judge finds the faults that real runs had: in a family of stories, with one of a few seeds, when a mend
is taken out; the seeds that show it today come first.
"""

import re

import pytest
from simulation import planted, stories
from simulation.judging.judge import Judge
from simulation.world import World, outcome

HANGS = "no end"
FAILS = "and yet"
"""A task has failed, and nothing has happened to it by which it may."""

PLANTED = [
    (
        planted.settles_what_a_dead_process_pushed,
        stories.dies_while_it_pushes,
        (23, 13, 28),
        {"ONCE", "ALL", "STEP"},
    ),
    (planted.forgets_that_a_process_was_started_again, stories.dies_while_it_pushes, (23, 21), {HANGS}),
    (planted.adds_up_by_rank, stories.turns, (4, 0, 5), {"BITS"}),
    (planted.leaves_due_what_has_come, stories.stands_still, (1, 2, 4), {"ONCE", "ALL", "STEP"}),
    (planted.saves_values_that_are_assigned_in_half, stories.assigns, (0, 4, 5), {"WHOLE"}),
    (planted.applies_a_batch_again, stories.stands_still_async, (3, 4, 1), {"ONCE", "STEP", "SAME"}),
    (
        planted.leaves_in_half_what_a_death_has_halved,
        stories.averages_async,
        (12, 23),
        {"SAME", "STEP", "AVERAGES"},
    ),
    (planted.lets_every_server_drop, stories.drops, (1, 2, 0), {"SAME", "STEP"}),
    (
        planted.takes_a_ticket_that_came_back,
        stories.stands_still_async,
        (3, 4, 7),
        {"ONCE", "ALL", "SAME", "STEP", HANGS},
    ),
    (planted.numbers_parts_anew, stories.resumed, (5, 4, 6), {"ONCE", "ALL"}),
    (planted.reads_a_row_of_the_part_before, stories.dies_while_it_pushes, (4, 5), {"ONCE"}),
    (planted.begins_an_heir_s_pipeline_anew, stories.averages_async, (7, 19), {"ONCE", "VERDICT"}),
    (planted.cuts_as_the_present_cluster_would, stories.recut, (8, 13, 38), {"ONCE", "ALL"}),
    (planted.refuses_what_it_cannot_hold, stories.servers_fall, (0, 2, 6), {FAILS}),
]
NAMES = [plant.__name__ for plant, *_ in PLANTED]


def found(scenario):
    """The promise that a run breaks, with nothing passed over in silence; None if it breaks none."""
    reason = outcome(World(scenario, judge=Judge(scenario, frozenset())))
    named = reason and re.search(r": ([A-Z]+): ", reason)
    return named.group(1) if named else next((why for why in (HANGS, FAILS) if why in (reason or "")), reason)


@pytest.mark.parametrize(("plant", "story", "seeds", "broken"), PLANTED, ids=NAMES)
def test_a_fault_is_found_when_its_mend_is_taken_out(plant, story, seeds, broken, monkeypatch):
    with monkeypatch.context() as taken_out:
        plant(taken_out.setattr)
        shows = next((seed for seed in seeds if found(story(seed)) in broken), None)
    assert shows is not None
    assert found(story(shows)) is None, "with the mend the same run keeps every promise"
