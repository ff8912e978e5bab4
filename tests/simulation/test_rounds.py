"""Local steps in simulated runs: the shipped machines make rounds while tasks die, join and are resumed, and
the judge knows which examples a round has, and what it makes of the values.

DTRAIN_SEEDS=FROM:TO runs other seeds than the usual ones.
"""

import pytest
from simulation import planted
from simulation.scenario import draw_rounds
from simulation.test_judge import HANGS, found
from simulation.test_simulation import seeds
from simulation.world import broken_rule, told

USUAL = (*range(36), 64, 117, 124, 159, 173, 313)
"""In 159 a connection breaks as a callback assigns values; the others of the last share rounds by speed."""


@pytest.mark.timeout(0)
def test_every_example_of_a_round_counts_once_and_values_are_to_the_bit_those_of_its_steps():
    for seed in seeds(USUAL):
        scenario = draw_rounds(seed)
        if broken_rule(scenario) is not None:
            pytest.fail(told(scenario), pytrace=False)


def test_the_usual_seeds_have_deaths_joins_resumes_and_falling_servers_with_every_merge():
    drawn = [draw_rounds(seed) for seed in USUAL]
    for rule in (
        [each for each in drawn if each.training.updates == "async"],
        [each for each in drawn if each.training.updates == "sync" and not each.training.backup_workers],
        [each for each in drawn if each.training.updates == "sync" and each.training.backup_workers],
    ):
        kinds = {fault.kind for each in rule for fault in each.faults}
        assert {"crash", "die", "fall", "pause", "break"} <= kinds
        assert any(each.joins for each in rule)
        assert any(each.resume for each in rule)
        assert any(each.stream.batches * each.rounds.local_steps > 1 for each in rule)


def test_the_usual_seeds_share_rounds_by_speed_also_where_replicas_are_slow_and_die():
    drawn = [draw_rounds(seed) for seed in USUAL]
    shared = [each for each in drawn if not isinstance(each.training.local_steps, int)]
    assert {"slow", "crash", "fall"} <= {fault.kind for each in shared for fault in each.faults}
    assert len([each for each in shared if each.replicas > 1]) > 3


PLANTED = [
    (planted.counts_a_batch_of_a_round_twice, {"ONCE", "ALL", "STEP", "VERDICT"}),
    (planted.applies_a_late_difference, {"BITS", "ONCE", "STEP", "SAME"}),
    (planted.loses_the_batches_of_the_dead, {"ALL", HANGS}),
    (planted.says_nothing_of_other_numbers_to_who_is_late, {"BITS"}),
]


@pytest.mark.parametrize(("plant", "broken"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_fault_of_rounds_is_found(plant, broken, monkeypatch):
    with monkeypatch.context() as taken_out:
        plant(taken_out.setattr)
        shows = next((seed for seed in USUAL if found(draw_rounds(seed)) in broken), None)
    assert shows is not None
    assert found(draw_rounds(shows)) is None, "with the mend the same run keeps every promise"
