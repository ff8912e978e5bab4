"""Scenes of a step that a seed decides: replicas, parts, orders, and who dies at which point."""

import random
from dataclasses import replace

import numpy as np
from collectives.scene import Scene

from dtrain.config.choices import Weighting
from dtrain.learning import optimizers
from dtrain.roles.collective.rules import Rules
from dtrain.variables import VariableSpec

TINY = (
    VariableSpec("kernel", (5, 3), "float32", trainable=True),
    VariableSpec("mean", (3,), "float32", trainable=False),
    VariableSpec("wide", (6,), "float64", trainable=True),
    VariableSpec("seen", (), "int64", trainable=False),
)
WITH_TABLES = (
    VariableSpec("ids", (4, 2), "float32", trainable=False, sparse=True),
    VariableSpec("few", (7, 2), "float32", sparse=True),
    *TINY,
    VariableSpec("many", (9, 3), "float32", sparse=True),
)
"""The same and tables, of which gradients list rows."""
POINTS = {
    "word": 80,
    "update": 3,
    "carry": 2,
    "before gradient": 2,
    "in gradient": 2,
    "doorbell": 9,
    "wait": 5,
}
"""By the points at which a process may die, about how many of it a round has."""

RULES = (
    optimizers.SGD(0.1),
    optimizers.SGD(0.05, momentum=0.9, clipnorm=0.01),
    optimizers.Adam(0.01, use_ema=True),
    optimizers.Adam(0.01, global_clipnorm=0.02),
    optimizers.Adagrad(0.05, clipvalue=0.05),
    optimizers.SGD(0.1, global_clipnorm=0.02),
)


def ordered(chance, rule, steps):
    """Return what a leader may order at a version."""
    config = optimizers.serialize(replace(rule, learning_rate=0.03))
    value = np.full((5, 3), 0.25, np.float32)
    orders = (
        {"values": {"kernel": value}},
        {"optimizer": config},
        {"optimizer": config, "values": {"kernel": value}},
    )
    version = chance.randint(1, steps - 1)
    return {version: chance.choice((*orders, {"max_steps": version}))}


def drawn(seed):
    """Return a scene of a seed."""
    chance = random.Random(seed)
    replicas = chance.choice((1, 2, 2, 3, 3, 4, 5))
    parts = chance.choice((replicas, replicas, replicas + 1, 1, 2))
    rounds = chance.randint(2, 5)
    steps = chance.randint(2, 4)
    together = chance.choice((0, 0, chance.randint(1, rounds)))
    deaths = {}
    for rank in chance.sample(range(replicas), chance.randint(0, replicas - 1)):
        point = chance.choice(("word", "carry", "update", chance.choice(list(POINTS))))
        deaths[rank] = together or chance.randint(1, rounds), point, chance.randint(1, POINTS[point])
    cells = [(number, part) for number in range(rounds) for part in range(parts)]
    rule = chance.choice(RULES)
    return Scene(
        rule,
        replicas,
        parts,
        steps,
        chance.choice((TINY, WITH_TABLES)),
        deaths,
        Rules(chance.choice(list(Weighting))),
        {cell: chance.choice((0, 3, 8)) for cell in chance.sample(cells, min(2, len(cells)))},
        frozenset(chance.sample(cells, chance.choice((0, 0, 1)))),
        ordered(chance, rule, steps) if chance.random() < 0.5 else {},
        min(set(range(replicas)) - set(deaths)),
        certain=False,
        block_elements=4,
    )


def two_deaths(_seed):
    """Return a scene in which one dies within a block and its heir soon after, as it makes the slice."""
    deaths = {1: (1, "update", 1), 2: (1, "update", 4)}
    return Scene(optimizers.SGD(0.1), 4, 4, 3, TINY, deaths, certain=False, block_elements=2)
