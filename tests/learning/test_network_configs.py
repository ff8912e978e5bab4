"""What a network's config says makes the same network again; a damaged one makes none."""

import json

import numpy as np
import pytest
from learning.test_networks import two_inputs
from row_by_row import every_row

from dtrain.errors import SpecError
from dtrain.learning.graphs.networks import Network
from dtrain.learning.layers import Dense, Flatten


def test_the_config_of_a_graph_round_trips():
    network = two_inputs()
    again = Network.from_config(json.loads(json.dumps(network.get_config())))
    assert again.variables == network.variables
    assert again.get_config() == network.get_config()
    weights = network.initial_values(3)
    x = [np.ones((2, 3)), np.ones((2, 2))]
    for ours, theirs in zip(network.predict(weights, x), again.predict(weights, x), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_config_of_an_unbuilt_stack_round_trips():
    network = Network([Flatten(), Dense(2)])
    again = Network.from_config(network.get_config())
    assert not again.built
    again.build((2, 3))
    assert again.output_shapes == [(2,)]


@every_row(
    "damage",
    [
        lambda c: c.pop("steps"),
        lambda c: c["steps"][1].update(inputs=[[1, 0]]),
        lambda c: c["steps"][1].update(inputs=[[0, 3]]),
        lambda c: c["steps"][1].update(inputs=[["0", 0]]),
        lambda c: c["steps"][1].update(inputs=[]),
        lambda c: c["steps"][1].update(layer=9),
        lambda c: c["layers"][1].update(class_name="os.system"),
        lambda c: c["layers"][1].update(class_name="Layer"),
        lambda c: c["layers"][1]["config"].update(units=[]),
        lambda c: c["layers"][1]["config"].update(surprise=1),
        lambda c: c["layers"][1].update(config=None),
        lambda c: c.update(outputs=[[7, 0]]),
        lambda c: c.update(outputs=[]),
        lambda c: c.update(layers=None),
    ],
)
def test_a_damaged_config_is_refused(damage):
    config = Network([Dense(2, input_shape=(3,))]).get_config()
    damage(config)
    with pytest.raises(SpecError):
        Network.from_config(config)
