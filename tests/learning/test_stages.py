"""Cut models: every cut gives the bits of one process that computes the same microbatches in order."""

import itertools

import numpy as np
import pytest
from learning.pipeline_reference import reference_step

from dtrain.config.choices import Schedule
from dtrain.errors import SpecError
from dtrain.learning import layers as L
from dtrain.learning.graphs.networks import Network
from dtrain.learning.graphs.stages import StageNetwork, StageStep, cut_before, obstacle, segments_of
from dtrain.learning.losses import CategoricalCrossentropy, MeanSquaredError
from dtrain.protocol.pipeline_schedule import FLUSHES, order
from dtrain.state.stage_layout import StageLayout

WORDS = (3, 5, 0, 0, 1)


def dense():
    return Network(
        [
            L.Input((6,)),
            L.Dense(7, activation="tanh"),
            L.Dropout(0.4),
            L.Dense(5, activation="relu"),
            L.Dense(3),
        ]
    )


def normalized():
    return Network(
        [L.Input((6,)), L.Dense(6), L.BatchNormalization(), L.GaussianNoise(0.3), L.Dense(4), L.Dense(3)]
    )


def convolutional():
    pooled = [L.Conv2D(3, 3), L.MaxPooling2D(2)]
    return Network([L.Input((10, 10, 1)), *pooled, L.Conv2D(2, 2), L.Flatten(), L.Dense(4), L.Dense(3)])


def recurrent():
    """A mask travels with what crosses."""
    sequences = [L.Embedding(9, 4, mask_zero=True), L.LSTM(5, return_sequences=True, dropout=0.2), L.GRU(4)]
    return Network([L.Input((5,), dtype="int32"), *sequences, L.Dense(3)])


def residual():
    x = L.Input((6,))
    first = L.Dense(6, activation="relu", kernel_regularizer="l2")(x)
    added = L.Add()([first, L.Dense(6)(first)])
    return Network.from_graph(x, L.Dense(3, activity_regularizer="l2")(L.Dense(4)(added)))


def softmax():
    """The last layer and its loss are computed together, from logits."""
    return Network([L.Input((6,)), L.Dense(8, activation="relu"), L.Dense(3, activation="softmax")])


ZOO = {each.__name__: each for each in (dense, normalized, convolutional, recurrent, residual, softmax)}


THREE = {
    "dense": ["dense", "dense_1", "dense_2"],
    "normalized": ["dense", "batch_normalization", "dense_1"],
    "convolutional": ["conv2d", "conv2d_1", "dense"],
    "recurrent": ["embedding", "lstm", "gru"],
    "residual": ["dense", "dense_2", "dense_3"],
}
"""The layers that begin three stages."""


def data_of(network, n=11):
    chance = np.random.default_rng(1)
    shape = network.input_shapes[0]
    x = (
        chance.integers(0, 9, (n, *shape))
        if len(shape) == 1 and shape[0] == 5
        else chance.normal(size=(n, *shape))
    )
    y = np.eye(3, dtype=np.float32)[chance.integers(0, 3, n)]
    return x.astype(np.int32 if x.dtype.kind == "i" else np.float32), y


def weights_of(network):
    return network.initial_values(seed=2)


def computed(network, segments, x, y, loss, microbatches=4, schedule=Schedule.ONE_F_ONE_B):
    """All tasks by turns in this process: gradients, new values and the loss of a step.

    A task does what its schedule says; it stops where an array has not come. Replicas of a stage add up in order.
    """
    layout = StageLayout(segments)
    weights, edges = weights_of(network), layout.edges
    block = -(-len(x) // microbatches)
    rows = [slice(start, start + block) for start in range(0, len(x), block)]
    tasks = sorted({task for each in segments for task in each.tasks})
    gradients, begun, work = {}, {}, {}
    for task in tasks:
        parts = {place: StageNetwork(network, segments[place]) for place in layout.of(task)}
        gradients[task] = {
            spec.name: np.full(spec.shape, np.nan, np.float32)
            for part in parts.values()
            for spec in part.variables
            if spec.trainable
        }
        for place, part in parts.items():
            begun[task, place] = StageStep(
                part, weights, gradients[task], loss, WORDS, penalises=task == segments[place].tasks[0]
            )
        replicas = segments[layout.of(task)[0]].tasks
        work[task] = [
            (back, number, place)
            for back, number in order(schedule, len(tasks), replicas[0], len(rows))
            if replicas[number % len(replicas)] == task
            for place in (reversed(layout.of(task)) if back else layout.of(task))
        ]
    arrived = {}
    while any(work.values()):
        before = {task: len(left) for task, left in work.items()}
        for task in tasks:
            while work[task]:
                back, number, place = work[task][0]
                into = [e for e, edge in enumerate(edges) if edge.target == place]
                out = [e for e, edge in enumerate(edges) if edge.source == place]
                if not all((back, number, e) in arrived for e in (out if back else into)):
                    break
                work[task].pop(0)
                step = begun[task, place]
                if back:
                    upstream = [
                        total(
                            [arrived.pop((True, number, e)) for e in reversed(out) if edges[e].slot == slot]
                        )
                        for slot in segments[place].leaving
                    ]
                    if segments[place].is_last:
                        upstream = step.judged(number, of_rows(y, rows[number]), None)
                    for e, gradient in zip(into, step.backward(number, upstream), strict=True):
                        arrived[True, number, e] = gradient
                else:
                    share = len(x[rows[number]]) / len(x)
                    given = [arrived.pop((False, number, e)) for e in into]
                    left = step.forward(number, share, x[rows[number]], given)
                    for e in out:
                        array, mask = left[segments[place].leaving.index(edges[e].slot)]
                        arrived[False, number, e] = np.array(array), mask
        assert before != {task: len(left) for task, left in work.items()}, "all tasks wait"
    results = [step.result() for step in begun.values()]
    merged = {}
    for own in gradients.values():
        for name, array in own.items():
            merged[name] = merged[name] + array if name in merged else array
    updates = {name: value for result in results for name, value in result.state_updates.items()}
    last = next(result for result in results if result.outputs is not None)
    return merged, updates, sum(result.loss for result in results), last


def of_rows(y, rows):
    return [each[rows] for each in y] if isinstance(y, list) else y[rows]


def total(gradients):
    first, *others = gradients
    for each in others:
        first = first + each
    return first


def chain(network, ranges, replicas=()):
    return segments_of(ranges, network.graph, replicas or [1] * len(ranges))


def all_cuts(network):
    """Every way to cut, into any number of stages."""
    places = [each for each in range(1, len(network.graph.steps)) if obstacle(network.graph, each) is None]
    for count in range(len(places) + 1):
        for chosen in itertools.combinations(places, count):
            ends = [0, *chosen, len(network.graph.steps)]
            yield [range(*each) for each in itertools.pairwise(ends)]


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("schedule", FLUSHES)
def test_every_cut_of_every_model_gives_the_bits_of_the_whole(name, schedule):
    network = ZOO[name]()
    x, y = data_of(network)
    loss = CategoricalCrossentropy() if name == "softmax" else MeanSquaredError()
    first, *others = all_cuts(network)
    assert others
    gradients, updates, lost, result = computed(network, chain(network, first), x, y, loss)
    for ranges in others:
        found = computed(network, chain(network, ranges), x, y, loss, schedule=schedule)
        for expected, given in ((gradients, found[0]), (updates, found[1])):
            assert given.keys() == expected.keys()
            assert all(np.array_equal(given[each], expected[each]) for each in expected), ranges
        assert found[2] == pytest.approx(lost, rel=1e-12)
        assert np.array_equal(found[3].outputs, result.outputs)


@pytest.mark.parametrize("microbatches", [1, 3, 4, 11])
@pytest.mark.parametrize("name", ["dense", "normalized"])
def test_the_bits_are_those_of_the_reference_also_with_an_uneven_last_microbatch(name, microbatches):
    network = ZOO[name]()
    x, y = data_of(network)
    expected = reference_step(network, weights_of(network), x, y, MeanSquaredError(), microbatches, WORDS)
    found = computed(
        network,
        chain(network, cut_before(network.graph, THREE[name])),
        x,
        y,
        MeanSquaredError(),
        microbatches,
    )
    for given, wanted in zip(found[:2], expected[:2], strict=True):
        assert given.keys() == wanted.keys()
        assert all(np.array_equal(given[each], wanted[each]) for each in wanted)
    assert found[2] == pytest.approx(expected[2], rel=1e-12)


@pytest.mark.parametrize("schedule", FLUSHES)
@pytest.mark.parametrize("replicas", [(2, 1), (3, 1), (2, 2, 1), (1, 3, 1), (3, 2, 1)])
def test_replicas_of_a_stage_compute_microbatches_in_turn_and_add_up_in_order(replicas, schedule):
    network = dense()
    x, y = data_of(network)
    names = ["dense", "dense_1", "dense_2"]
    segments = chain(network, cut_before(network.graph, names[: len(replicas)]), replicas)
    of_name = {
        spec.name: len(each.tasks) for each in segments for spec in StageNetwork(network, each).variables
    }
    for microbatches in (4, 6, 11):
        expected = reference_step(
            network, weights_of(network), x, y, MeanSquaredError(), microbatches, WORDS, of_name
        )
        found = computed(network, segments, x, y, MeanSquaredError(), microbatches, schedule)
        assert all(np.array_equal(found[0][name], expected[0][name]) for name in expected[0])
        assert found[2] == pytest.approx(expected[2], rel=1e-12)


def test_penalties_are_those_of_the_whole_batch():
    """They belong to the step, and each microbatch has its share of them."""
    network = residual()
    x, y = data_of(network, 12)
    whole = {spec.name: np.empty(spec.shape, np.float32) for spec in network.variables}
    result = network.loss_and_gradients(
        weights_of(network), x, y, MeanSquaredError(), whole, rng=np.random.default_rng(0)
    )
    found, _, lost, _ = computed(
        network, chain(network, cut_before(network.graph, ["dense", "dense_2"])), x, y, MeanSquaredError()
    )
    assert lost == pytest.approx(result.loss, rel=1e-6)
    for name, gradient in whole.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-6)


def names_of(network, ranges):
    return [
        [step.path for step in network.graph.steps[each.start : each.stop] if step.inputs] for each in ranges
    ]


def test_stages_begin_with_the_layers_that_are_named():
    network = convolutional()
    ranges = cut_before(network.graph, ["conv2d", "conv2d_1", "dense"])
    assert names_of(network, ranges) == [
        ["conv2d", "max_pooling2d"],
        ["conv2d_1", "flatten"],
        ["dense", "dense_1"],
    ]


def shared():
    x = L.Input((4,))
    twice = L.Dense(4, name="twice")
    return Network.from_graph(x, L.Dense(2)(twice(L.Dense(4, name="between")(twice(x)))))


def two_outputs():
    x = L.Input((4,))
    middle = L.Dense(3, name="early")(x)
    return Network.from_graph(x, [middle, L.Dense(2, name="late")(middle)])


@pytest.mark.parametrize(
    ("make", "names", "words"),
    [
        (
            convolutional,
            ["conv2d", "max_pooling2d"],
            "conv2d and the layer behind it are computed together; expected some of conv2d_1, flatten, dense, d",
        ),
        (convolutional, ["conv2d", "dens"], "no layer dens; did you mean dense?"),
        (convolutional, ["dense", "dense_1"], "the first one begins with the model, at conv2d"),
        (convolutional, ["conv2d", "dense_1", "dense"], "dense_1 lies behind the layer that is named after"),
        (convolutional, ["conv2d", "conv2d_1", "flatten", "dense"], "begins with flatten has no variables"),
        (residual, ["dense", "dense_1"], None),
        (residual, ["dense", "add"], "2 arrays would cross it, of dense, dense_1"),
        (shared, ["twice", "between"], "between two uses of the layer twice"),
        (two_outputs, ["early", "late"], "an output of the model, of early, lies in front of it"),
    ],
)
def test_a_cut_that_cannot_be_is_refused_with_the_reason(make, names, words):
    if words is None:
        cut_before(make().graph, names)
        return
    with pytest.raises(SpecError, match=words):
        cut_before(make().graph, names)
