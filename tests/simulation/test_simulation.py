"""The real machines over a network that breaks, with tasks that crash: every seed keeps the rules and comes to its end.

DTRAIN_SEEDS=FROM:TO runs other seeds than the usual ones.
"""

import os

import pytest
from simulation.scenario import draw
from simulation.world import broken_rule, told

USUAL_SEEDS = "0:1000"
BATCHES = 10


def seeds():
    first, _, end = os.environ.get("DTRAIN_SEEDS", USUAL_SEEDS).partition(":")
    return range(int(first), int(end or int(first) + 1))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_safety_after_every_event_and_progress_in_the_end(batch):
    for seed in seeds()[batch::BATCHES]:
        scenario = draw(seed)
        if broken_rule(scenario) is not None:
            pytest.fail(told(scenario), pytrace=False)
