"""Where a call of `fit` begins, as the leader of a run decides it."""

import numpy as np

from dtrain.learning import optimizers
from dtrain.parameters import placement
from dtrain.state.batch_cut import UNCUT
from dtrain.strategies.beginnings import Beginnings
from dtrain.strategies.interface import Problem
from dtrain.variables import VariableSpec


def test_the_call_after_a_failed_first_one_begins_with_the_values_of_the_model(tmp_path):
    variables = (VariableSpec("kernel", (2,)),)
    values = {"kernel": np.array([3.0, 4.0], np.float32)}
    problem = Problem(
        variables=variables,
        initial_values=lambda: values,
        optimizer=optimizers.serialize(optimizers.SGD(0.1)),
        max_steps=5,
    )
    plan = placement.plan(variables, servers=1)
    beginnings = Beginnings(None, tmp_path, None)
    beginnings.number = 2
    asked = problem.asked(2, plan, UNCUT, sync=False)
    start = beginnings.start(asked, plan, problem, resumes=beginnings.resumes)
    assert start.state.version == 0
    assert start.values["kernel"].tolist() == [3.0, 4.0]
