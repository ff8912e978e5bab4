"""What a leader that is started again makes of calls of `fit` that had ended."""

import numpy as np

from dtrain import checkpoints
from dtrain.learning import optimizers
from dtrain.strategies.interface import Problem
from dtrain.strategies.passed_over import PassedOverTraining
from dtrain.variables import VariableSpec


def save(directory, step, fit, **values):
    arrays = {name: np.full(3, value, np.float32) for name, value in values.items()}
    checkpoints.save(directory, step, arrays, {"generation": fit}, now=0.0)


def weights(directory, fit, name):
    problem = Problem(
        variables=(VariableSpec(name, (3,)),),
        max_steps=5,
        optimizer=optimizers.serialize(optimizers.SGD(0.1)),
        initial_values=lambda: {name: np.zeros(3)},
    )
    return PassedOverTraining(problem, fit, directory).weights[name][0]


def test_each_model_has_what_it_had_learned_though_the_next_one_began_at_the_same_step(tmp_path):
    save(tmp_path, 0, 1, teacher=0)
    save(tmp_path, 5, 1, teacher=1)
    checkpoints.keep_final(tmp_path, 1)
    save(tmp_path, 5, 2, student=2)
    save(tmp_path, 9, 2, student=3)
    assert weights(tmp_path, 1, "teacher") == 1
    assert weights(tmp_path, 2, "student") == 3
    assert weights(tmp_path / "nowhere", 1, "teacher") == 0
