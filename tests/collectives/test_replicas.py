"""Replicas that share memory make the steps of one process, whoever dies at whatever moment.

DTRAIN_SEEDS=FROM:TO draws other deaths than the usual ones.
"""

import os

import pytest
from collectives.members import POINTS, Death, check, drawn, start
from collectives.scene import WITH_TABLES, Scene
from row_by_row import every_row

from dtrain.config.choices import NanPolicy, Weighting
from dtrain.learning import optimizers
from dtrain.roles.collective.rules import Rules

FIRST, LAST = map(int, os.environ.get("DTRAIN_SEEDS", "0:4").split(":"))


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize(
    "optimizer",
    [
        optimizers.SGD(0.1),
        optimizers.Adam(0.01, clipvalue=0.2, use_ema=True),
        optimizers.AdamW(0.01, clipnorm=0.5),
        optimizers.RMSprop(0.01, global_clipnorm=0.5, ema_overwrite_frequency=2, use_ema=True),
    ],
    ids=["sgd", "adam clipvalue", "adamw clipnorm", "rmsprop global"],
)
def test_replicas_make_the_steps_of_one_process(optimizer, replicas):
    check(Scene(optimizer, replicas, parts=replicas))


@pytest.mark.parametrize(("replicas", "parts"), [(2, 5), (3, 2), (4, 1)])
def test_parts_may_be_more_or_fewer_than_replicas(replicas, parts):
    check(Scene(replicas=replicas, parts=parts))


@pytest.mark.parametrize("weighting", list(Weighting))
def test_examples_weigh_as_the_setting_says(weighting):
    examples = {(0, 1): 3, (1, 0): 0, (2, 0): 0, (2, 1): 0, (2, 2): 0, (3, 2): 1}
    seen = check(Scene(rules=Rules(weighting), steps=3, examples=examples))
    assert [each[0] for each in seen[0]] == [1, 2, 2, 3], "a batch without any example makes no version"


def test_a_gradient_with_nan_is_refused_and_does_not_count():
    seen = check(Scene(steps=3, poisoned=frozenset({(1, 2), (2, 0), (2, 1), (2, 2)})))
    assert [each[2] for each in seen[2]] == ["accepted", "refused", "refused", "accepted"]
    assert [each[0] for each in seen[0]] == [1, 2, 2, 3]


def test_with_nan_policy_fail_every_replica_says_whose_gradient_it_was():
    scene = Scene(rules=Rules(nan_policy=NanPolicy.FAIL), poisoned=frozenset({(1, 2)}))
    _, seen = start(scene, [[0, 1, 2]])
    for told in seen.values():
        assert "NonFiniteGradientError: the gradient of replica 2 for step 2 holds NaN or infinity" in told


@every_row("point", POINTS)
@every_row("victim", [0, 1])
def test_the_step_of_a_death_is_that_of_one_process(point, victim):
    seen = check(Scene(deaths={victim: Death(2, point)}))
    survivor = 2
    assert [each[3] for each in seen[survivor]][-1] == tuple({0, 1, 2} - {victim})


def test_one_is_enough_when_all_others_die_in_one_step_one_as_the_heir_of_another():
    deaths = {0: Death(2, "update"), 1: Death(2, "update", 2), 3: Death(2, "message", 1)}
    check(Scene(replicas=4, parts=4, deaths=deaths))


def test_an_heir_that_dies_within_a_block_that_it_makes_again_leaves_it_to_be_made_once_more():
    check(Scene(replicas=4, parts=4, deaths={1: Death(1, "update"), 0: Death(1, "update", 2)}))


@pytest.mark.parametrize(
    ("optimizer", "deaths"),
    [
        (optimizers.Adagrad(0.05, clipnorm=0.5), {0: Death(2, "update", 2), 2: Death(3, "carry", 1)}),
        (optimizers.SGD(0.1), {1: Death(2, "in gradient", 1), 2: Death(2, "carry")}),
        (optimizers.SGD(0.1, momentum=0.9), {0: Death(1, "update", 1), 1: Death(3, "message", 2)}),
    ],
    ids=["adagrad clipnorm", "sgd", "momentum"],
)
def test_rows_of_tables_are_updated_once_whoever_dies_in_their_midst(optimizer, deaths):
    check(Scene(optimizer, variables=WITH_TABLES, deaths=deaths, block_elements=4))


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_deaths_at_any_moment(seed):
    check(drawn(seed))
