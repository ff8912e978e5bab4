"""A convolution and its pooling computed together give what they give one after the other."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from learning.finite_differences import spaced
from row_by_row import every_row

from dtrain.learning import layers
from dtrain.learning.graphs.networks import Network
from dtrain.learning.layers.pooled_convolution import PooledConvolution, pooled
from dtrain.learning.losses import MeanSquaredError

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
convolutions = st.builds(
    lambda pace, **arguments: layers.Conv2D(3, **arguments, **pace),
    pace=st.one_of(
        st.fixed_dictionaries({"strides": pairs}), st.fixed_dictionaries({"dilation_rate": pairs})
    ),
    kernel_size=pairs,
    padding=st.sampled_from(["valid", "same"]),
    activation=st.sampled_from(["relu", None]),
    use_bias=st.booleans(),
)


def results(network, x, y):
    weights = {name: value + np.float32(0.1) for name, value in network.initial_values(0).items()}
    gradients = {name: np.full_like(value, np.nan) for name, value in weights.items()}
    result = network.loss_and_gradients(
        weights, x, y, MeanSquaredError(), gradients, rng=np.random.default_rng(0)
    )
    return [result.outputs, network.predict(weights, x), *gradients.values()]


def assert_same(stack, x):
    together, alone = (Network(stack()) for _ in range(2))
    for network in (together, alone):
        network.build(x.shape[1:])
    assert any(isinstance(layer, PooledConvolution) for layer in together.graph.stand_ins.values())
    alone.graph.stand_ins = {}
    y = spaced((len(x), *together.output_shapes[0]), np.random.default_rng(1))
    for found, expected in zip(results(together, x, y), results(alone, x, y), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(convolution=convolutions, pool=pairs, channels=st.integers(1, 2), first=st.booleans())
def test_it_is_the_two_layers(convolution, pool, channels, first):
    def stack():
        before = (
            [] if first else [layers.Conv2D(channels, 1, name="before")]
        )  # then the input's gradient is wanted, too
        return [*before, layers.Conv2D(**convolution.get_config()), layers.MaxPooling2D(pool)]

    assert_same(stack, spaced((3, 12, 11, channels), np.random.default_rng(0)))


def test_it_works_along_one_axis_and_in_several_parts():
    x = spaced((5, 10, 2), np.random.default_rng(0))
    assert_same(lambda: [layers.Conv1D(4, 3, padding="causal"), layers.MaxPooling1D(3)], x)
    x = spaced((40, 28, 28, 1), np.random.default_rng(0))
    assert_same(lambda: [layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(), layers.Dense(2)], x)


def test_equal_places_share_nothing_the_first_has_it_all():
    assert_same(
        lambda: [layers.Conv2D(1, 1, use_bias=False), layers.MaxPooling2D()],
        np.ones((2, 4, 4, 1), np.float32),
    )


@every_row(
    "pair",
    [
        (
            layers.Conv2D(2, 1, activation="tanh"),
            layers.MaxPooling2D(),
        ),  # rounded to 1, places are equal that were not
        (layers.Conv2D(2, 1, groups=2), layers.MaxPooling2D()),
        (layers.Conv2D(2, 1), layers.MaxPooling2D(3, strides=2)),
        (layers.Conv2D(2, 1), layers.MaxPooling2D(padding="same")),
        (layers.Conv2D(2, 1), layers.AveragePooling2D()),
        (layers.Conv2DTranspose(2, 1), layers.MaxPooling2D()),
    ],
)
def test_other_pairs_are_left_alone(pair):
    assert pooled(*pair) is None


def test_a_convolution_that_is_read_twice_is_left_alone():
    x = layers.Input((4, 4, 2))
    convolved = layers.Conv2D(2, 1)(x)
    network = Network.from_graph(x, [convolved, layers.MaxPooling2D()(convolved)])
    assert network.graph.stand_ins == {}
