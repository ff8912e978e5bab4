"""Layers placed on tasks by hand: every placement gives the bits of one process."""

import subprocess
import sys

import numpy as np
import pytest
from learning.test_stages import computed, data_of, normalized, recurrent, residual

import dtrain as dt
from dtrain.config.choices import Schedule
from dtrain.errors import SpecError
from dtrain.learning import layers as L
from dtrain.learning.graphs.by_hand import segments_by_hand
from dtrain.learning.graphs.networks import Network
from dtrain.learning.losses import MeanSquaredError
from dtrain.state.stage_layout import StageLayout

TASKS = ("chief:0", "worker:0", "worker:1")


def partially_connected():
    """Two halves of which each reads the other once, as in a net that is cut along its depth."""
    x = L.Input((6,))
    left, right = L.Dense(4, name="left")(x), L.Dense(4, name="right", activation="tanh")(x)
    left, right = (
        L.Dense(4, name="left_2")(L.Concatenate(name="to_left")([left, right])),
        L.Dense(4, name="right_2")(L.Concatenate(name="to_right")([right, left])),
    )
    return Network.from_graph(x, L.Dense(3, name="out")(L.Concatenate(name="both")([left, right])))


def sequences():
    lstms = [L.LSTM(5, return_sequences=True, name="low"), L.LSTM(4, name="high")]
    return Network([L.Input((7, 6)), *lstms, L.Dense(3, name="out")])


def two_heads():
    """One output is made early, on a task that need not have the last one."""
    x = L.Input((6,))
    middle = L.Dense(3, name="early")(x)
    return Network.from_graph(x, [middle, L.Dense(3, name="late")(L.Dropout(0.3)(middle))])


ZOO = {
    each.__name__: each
    for each in (partially_connected, sequences, two_heads, normalized, recurrent, residual)
}


def drawn(network, seed, tasks=TASKS):
    """Places every layer with weights on a task, each task having one at least, and some of the others."""
    chance = np.random.default_rng(seed)
    owners = [
        each for each in network.graph.layers if any(each is layer for layer, _, _ in network.graph.weights())
    ]
    chosen = [*range(len(tasks)), *chance.integers(0, len(tasks), max(0, len(owners) - len(tasks)))]
    chance.shuffle(chosen)
    found = dict(zip(owners, map(int, chosen), strict=False))
    for layer in network.graph.layers:
        if layer not in found and chance.random() < 0.5:
            found[layer] = int(chance.integers(len(tasks)))
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ZOO)
def test_every_placement_gives_the_bits_of_one_process(name, seed):
    network = ZOO[name]()
    weighted = {layer for layer, _, _ in network.graph.weights()}
    tasks = TASKS[: min(3, len(weighted))]
    x, y = data_of(network)
    y = [y, y] if name == "two_heads" else y
    loss = MeanSquaredError()
    whole = segments_by_hand(network.graph, {}, TASKS[:1])
    expected = computed(network, whole, x, y, loss, schedule=Schedule.GPIPE)
    segments = segments_by_hand(network.graph, drawn(network, seed, tasks), tasks)
    assert {task for each in segments for task in each.tasks} == set(range(len(tasks)))
    found = computed(network, segments, x, y, loss, schedule=Schedule.GPIPE)
    for given, wanted in zip(found[:2], expected[:2], strict=True):
        assert given.keys() == wanted.keys()
        assert all(np.array_equal(given[each], wanted[each]) for each in wanted)
    assert found[2] == pytest.approx(expected[2], rel=1e-12)


def test_a_task_computes_what_it_can_without_waiting_in_one_go():
    network = partially_connected()
    by_name = {layer.name: layer for layer in network.graph.layers}
    right = {by_name[name]: 1 for name in ("right", "to_right", "right_2")}
    segments = segments_by_hand(network.graph, right, TASKS[:2])
    names = [[network.graph.steps[number].path for number in each.numbers] for each in segments]
    # each half once by itself, once with the other's first layer, and the leader with both
    assert names == [["left"], ["right"], ["to_left", "left_2"], ["to_right", "right_2"], ["both", "out"]]
    assert [each.tasks for each in segments] == [(0,), (1,), (0,), (1,), (0,)]
    steps = network.graph.steps
    travels = [(steps[edge.slot.step].path, edge.source, edge.target) for edge in StageLayout(segments).edges]
    assert travels == [
        ("left", 0, 2),
        ("right", 1, 2),
        ("right", 1, 3),
        ("left", 0, 3),
        ("left_2", 2, 4),
        ("right_2", 3, 4),
    ]


def test_a_layer_that_is_not_placed_is_where_its_first_input_is():
    network = Network(
        [L.Input((6,)), L.Dense(4, name="a"), L.Dense(4, name="b"), L.Dropout(0.5), L.Dense(3, name="c")]
    )
    _, a, b, _, _ = network.graph.layers
    segments = segments_by_hand(network.graph, {b: 1, a: 0}, TASKS[:2])
    assert [each.numbers for each in segments] == [(1,), (2, 3, 4)]


def test_device_places_the_layers_that_are_made_within():
    with dt.device("/job:worker/task:1"):
        inner = L.Dense(2)
        with dt.device(None):
            free = L.Dense(2)
        summed = L.Input((2,)) + L.Input((2,))
    assert str(inner.placed_on) == "worker:1"
    assert free.placed_on is None
    assert str(summed.node.part.placed_on) == "worker:1"
    assert L.Dense(2).placed_on is None
    assert inner.get_config() == L.Dense(2).get_config()


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("/job:worker/replica:0/task:2/device:CPU:0", "worker:2"),
        ("/job:chief", "chief:0"),
        ("worker:3", "worker:3"),
        ("/job:worker/task:1/cpu:0", "worker:1"),
    ],
)
def test_a_task_is_named_as_tensorflow_names_it(name, task):
    with dt.device(name):
        assert str(L.Dense(1).placed_on) == task


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/job:worker/task:1/device:GPU:0", "tasks compute on CPUs"),
        ("/job:ps/task:0", "ps:0 computes no layers"),
        ("/job:works/task:0", "is not a task; expected ROLE:INDEX"),
    ],
)
def test_a_device_that_computes_nothing_is_refused(name, words):
    with pytest.raises(SpecError, match=words), dt.device(name):
        pass


def convolution():
    return Network([L.Input((10, 10, 1)), L.Conv2D(3, 3), L.MaxPooling2D(2), L.Flatten(), L.Dense(3)])


def used_twice():
    x = L.Input((4,))
    twice = L.Dense(4, name="twice")
    return Network.from_graph(x, twice(L.Dense(4, name="between")(twice(x))))


@pytest.mark.parametrize(
    ("make", "placed", "words"),
    [
        (convolution, {"max_pooling2d": 1, "dense": 1}, "conv2d and max_pooling2d are computed together"),
        (convolution, {"flatten": 1}, None),
        (convolution, {"dense": 0}, "no layer with variables is placed on worker:0: place one there"),
        (used_twice, {"between": 1}, "twice is used on chief:0 and on worker:0"),
    ],
)
def test_a_placement_that_cannot_be_is_refused_with_the_reason(make, placed, words):
    network = make()
    by_name = {layer.name: layer for layer in network.graph.layers}
    stages = {by_name[name]: stage for name, stage in placed.items()}
    if words is None:
        segments_by_hand(network.graph, stages, TASKS[:2])
        return
    with pytest.raises(SpecError, match=words):
        segments_by_hand(network.graph, stages, TASKS[:2])


def test_replicas_that_compute_the_whole_model_say_so():
    program = """
import numpy as np, dtrain as dt
with dt.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    with dt.device("worker:1"):
        model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,), name="far")])
    model.compile("sgd", "mse")
model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=4, verbose=0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "far (Dense) is placed on worker:1, which training.strategy: pipeline alone heeds" in done.stderr


def test_a_layer_that_is_used_before_and_behind_another_task_is_refused():
    """Its gradient would be that of its last use alone: each group of steps that runs in one go writes its own."""
    network = used_twice()
    by_name = {layer.name: layer for layer in network.graph.layers}
    stages = {by_name["twice"]: 0, by_name["between"]: 1}
    with pytest.raises(SpecError, match="twice is used before and behind what worker:0 computes"):
        segments_by_hand(network.graph, stages, TASKS[:2])
