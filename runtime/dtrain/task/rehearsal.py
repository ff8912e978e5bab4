"""What every task does first, done once in the warm process, so that tasks share the memory that it leaves behind.

Decoders, class checks and the like are worked out at their first use and kept: every task would do so again, in pages of its own.
"""

import json

import numpy as np

from dtrain.assignment import TF_CONFIG, TaskAssignment
from dtrain.learning import losses, optimizers
from dtrain.learning.layers import Dense
from dtrain.learning.networks import Network
from dtrain.protocol import placement

CLUSTER = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]}


def rehearse() -> None:
    """Read an assignment, take a step of a network; nothing comes of it, and no file, thread or connection is opened."""
    config = json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 0}})
    assignment = TaskAssignment.from_environment({TF_CONFIG: config})
    if assignment is not None:
        TaskAssignment.from_environment(assignment.to_environment(config))
        assignment.hello()
    network, one = Network([Dense(1, input_shape=(1,))]), np.ones((1, 1), np.float32)
    weights = network.initial_values(seed=0)
    gradients = {name: np.empty_like(value) for name, value in weights.items()}
    network.loss_and_gradients(weights, one, one, losses.get("mse"), gradients, rng=np.random.default_rng(0))
    optimizers.serialize(optimizers.get("sgd"))
    placement.plan(network.variables, 1)
