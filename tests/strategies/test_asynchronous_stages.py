"""pipedream and pipedream_2bw against a reference that writes down which version computes what."""

import numpy as np
import pytest
from learning.pipeline_reference import reference_of_versions, reference_step
from learning.test_stages import ZOO, all_cuts, data_of, weights_of
from strategies.stages_in_memory import StagesInMemory

from dtrain.learning.graphs.stages import StageNetwork, StageRange
from dtrain.learning.losses import CategoricalCrossentropy, MeanSquaredError
from dtrain.learning.optimizers import SGD

STEPS, PER_EPOCH, BATCH, RATE = 14, 7, 6, 0.05
SETTINGS = {
    "pipedream": {"schedule": "pipedream"},
    "vertical sync": {"schedule": "pipedream", "vertical_sync": True},
    "microbatches": {"schedule": "pipedream", "microbatches": 2},
    "2bw": {"schedule": "pipedream_2bw", "microbatches": 4},
}


STACKS = ("dense", "normalized")
"""Models that the reference computes layer by layer. The others have branches, masks or layers that are computed
together: there the whole network computes each microbatch."""


def words_of(number):
    return [3, number, 0, 0, 1]


def whole_step(network, weights, x, y, loss, microbatches, words):
    whole = StageNetwork(network.graph, StageRange(0, len(network.graph.steps), None, None))
    gradients = {spec.name: np.empty(spec.shape, np.float32) for spec in whole.variables if spec.trainable}
    step = whole.begin(weights, gradients, loss, words)
    block = -(-len(x) // microbatches)
    for number, start in enumerate(range(0, len(x), block)):
        part = slice(start, start + block)
        step.forward(number, len(x[part]) / len(x), x[part])
        step.backward(number, step.judged(number, y[part], None))
    return gradients, step.result().state_updates, 0.0


def trained(name, ranges, settings):
    network = ZOO[name]()
    x, y = data_of(network, STEPS * BATCH)
    loss = CategoricalCrossentropy() if name == "softmax" else MeanSquaredError()
    weights = dict(weights_of(network))

    def batch_of(number):
        rows = slice(number * BATCH, (number + 1) * BATCH)
        return x[rows], y[rows]

    pipeline = StagesInMemory(
        network, ranges, weights, SGD(RATE), steps=STEPS, steps_per_epoch=PER_EPOCH, **settings
    )
    found = pipeline.run(batch_of, loss, words_of)
    stage_of = {
        spec.name: stage
        for stage, each in enumerate(segments_of(ranges, network.graph, [1] * len(ranges)))
        for spec in StageNetwork(network, each).variables
    }
    expected = reference_of_versions(
        network,
        weights,
        [batch_of(number) for number in range(STEPS)],
        loss,
        words_of,
        stage_of,
        step=reference_step if name in STACKS else whole_step,
        stages=len(ranges),
        per_epoch=PER_EPOCH,
        rate=RATE,
        **settings,
    )
    return pipeline, found, expected


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", ZOO)
def test_every_cut_gives_the_bits_of_the_reference(name, settings):
    for ranges in all_cuts(ZOO[name]()):
        if len(ranges) > 4:
            continue
        _, found, expected = trained(name, ranges, SETTINGS[settings])
        assert found.keys() == expected.keys()
        wrong = [each for each in expected if not np.array_equal(found[each], expected[each])]
        assert not wrong, (ranges, wrong)
