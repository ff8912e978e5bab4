"""Parts of pipelines over several passes, and weights of examples that come from two sides."""

from collections import defaultdict

import numpy as np
import pytest

from dtrain.state.batch_cut import BatchCut
from dtrain.training.parts import Batch, Part, PartsOfPipelines


@pytest.mark.parametrize("lengths", [(3, 3), (4, 1), (2, 0), (1, 3, 2)])
def test_every_pass_reads_each_pipeline_on_from_where_the_pass_before_has_ended(lengths):
    """A stream goes on without end, so batch k of the second pass is batch (length + k) of the stream."""
    read = defaultdict(list)

    class Noting:
        def __init__(self, pipeline):
            self.pipeline = pipeline

        def at(self, number):
            read[self.pipeline].append(number)
            return Part(Batch(np.zeros(1)), len(lengths), 0, len(lengths))

    parts = PartsOfPipelines(Noting, lengths, BatchCut(len(lengths)))
    steps = -(-sum(lengths) // len(lengths))
    for number in range(3 * steps * len(lengths)):
        parts.at(number)
    assert {pipeline: sorted(numbers) for pipeline, numbers in read.items()} == {
        pipeline: list(range(3 * length)) for pipeline, length in enumerate(lengths) if length
    }


def test_a_weight_of_a_class_and_one_of_an_example_are_multiplied():
    batch = Batch(np.zeros((3, 2)), np.array([0, 1, 1]), np.array([[2.0], [3.0], [5.0]]))
    assert batch.weighted({0: 10.0, 1: 100.0}).sample_weight.tolist() == [20.0, 300.0, 500.0]
    assert Batch(batch.x, batch.y).weighted({0: 10.0, 1: 100.0}).sample_weight.tolist() == [
        10.0,
        100.0,
        100.0,
    ]
