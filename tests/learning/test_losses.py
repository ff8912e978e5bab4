"""Gradients by finite differences, extreme inputs, and messages for wrong ones."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.errors import InputError, SpecError
from dtrain.learning import losses

PROBABILITIES = ("KLDivergence", "Poisson")


def one_of_each():
    plain = [loss() for loss in losses.NAMES if "rossentropy" not in loss.__name__]
    crossentropies = [
        loss(from_logits=from_logits, **smoothing)
        for loss in (losses.BinaryCrossentropy, losses.CategoricalCrossentropy)
        for from_logits in (True, False)
        for smoothing in ({}, {"label_smoothing": 0.1})
    ]
    sparse = [
        losses.SparseCategoricalCrossentropy(from_logits=from_logits, ignore_class=2)
        for from_logits in (True, False)
    ]
    return plain + crossentropies + sparse


def arrays_for(loss, shape, generator):
    """float64 targets and predictions of a shape, away from kinks and from what is clipped."""
    if isinstance(loss, losses.SparseCategoricalCrossentropy):
        y_true = generator.integers(0, shape[-1], shape[:-1])
    elif "rossentropy" in type(loss).__name__ or type(loss).__name__ in PROBABILITIES:
        y_true = generator.dirichlet(np.ones(shape[-1]), shape[:-1])
    else:
        y_true = generator.normal(size=shape)
    if getattr(loss, "from_logits", None) is False or type(loss).__name__ in PROBABILITIES:
        return y_true, generator.uniform(0.1, 0.9, shape)
    if type(loss).__name__ == "MeanSquaredLogarithmicError":
        return np.abs(y_true), generator.uniform(0.1, 2.0, shape)
    return y_true, generator.normal(size=shape)


@pytest.mark.parametrize("loss", one_of_each(), ids=repr)
@settings(deadline=None, max_examples=8)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=2), st.integers(2, 4), st.integers(0, 1000))
def test_gradient_is_that_of_the_value(loss, batch_shape, outputs, seed):
    generator = np.random.default_rng(seed)
    y_true, y_pred = arrays_for(loss, (*batch_shape, outputs), generator)
    weights = generator.uniform(0.5, 2.0, batch_shape)
    value, gradient = loss.value_and_gradient(y_true, y_pred, weights)
    assert value == pytest.approx(float(loss(y_true, y_pred, weights)))
    direction, small = generator.normal(size=y_pred.shape), 1e-6
    ahead, behind = (float(loss(y_true, y_pred + sign * small * direction, weights)) for sign in (1, -1))
    assert (ahead - behind) / (2 * small) == pytest.approx(
        float((gradient * direction).sum()), rel=1e-3, abs=1e-5
    )


@pytest.mark.parametrize("scale", [1e4, 1e30])
def test_large_logits_neither_overflow_nor_vanish(scale):
    logits = np.array([[scale, -scale], [-scale, scale]], "float32")
    value, gradient = losses.SparseCategoricalCrossentropy(from_logits=True).value_and_gradient(
        [0, 0], logits
    )
    assert value == pytest.approx(scale)
    np.testing.assert_allclose(gradient, [[0, 0], [-0.5, 0.5]])
    value, gradient = losses.BinaryCrossentropy(from_logits=True).value_and_gradient([[1.0, 0.0]] * 2, logits)
    assert value == pytest.approx(scale / 2)
    assert np.isfinite(gradient).all()


@every_row("loss", one_of_each(), ids=repr)
def test_an_empty_batch_costs_nothing(loss):
    y_true = np.zeros((0,) if isinstance(loss, losses.SparseCategoricalCrossentropy) else (0, 3), "int64")
    value, gradient = loss.value_and_gradient(y_true, np.zeros((0, 3), "float32"))
    assert value == 0.0
    assert gradient.shape == (0, 3)


def test_targets_and_predictions_stay_as_they_are():
    for loss in one_of_each():
        y_true, y_pred = arrays_for(loss, (3, 4), np.random.default_rng(0))
        kept = y_true.copy(), y_pred.copy()
        loss.value_and_gradient(y_true, y_pred)
        np.testing.assert_array_equal(y_true, kept[0])
        np.testing.assert_array_equal(y_pred, kept[1])


def test_shapes_that_keras_puts_right_are_put_right():
    mse = losses.MeanSquaredError()
    assert mse([1.0, 2.0], [[1.0], [4.0]]) == 2.0
    assert mse([1, 2], [1, 4]) == 2.0
    value, gradient = mse.value_and_gradient([1.0, 2.0], np.array([1.0, 4.0], "float32"))
    assert (value, gradient.shape) == (2.0, (2,))
    assert losses.SparseCategoricalCrossentropy(from_logits=True)(
        [[1], [0]], np.zeros((2, 3))
    ) == pytest.approx(math.log(3))


@pytest.mark.parametrize("name", ["mse", "MSE", "mean_squared_error", "MeanSquaredError"])
def test_losses_by_name(name):
    assert losses.get(name) == losses.MeanSquaredError()


SPARSE = losses.SparseCategoricalCrossentropy(from_logits=True)


@every_row(
    "call, message",
    [
        (lambda: SPARSE([3], np.zeros((1, 3))), r"class numbers in \[0, 3\), found 3"),
        (lambda: SPARSE([-1], np.zeros((1, 3))), r"found -1"),
        (
            lambda: SPARSE([0, 1], np.zeros((1, 3))),
            r"shape \(1,\) for predictions of shape \(1, 3\), found \(2,\)",
        ),
        (
            lambda: losses.MeanSquaredError()(np.zeros((2, 3)), np.zeros((3, 2))),
            r"shape \(3, 2\), found \(2, 3\)",
        ),
        (
            lambda: losses.MeanSquaredError()(np.zeros((2, 3)), np.zeros((2, 3)), [1, 2, 3]),
            r"shape \(2,\), found \(3,\)",
        ),
        (lambda: losses.MeanSquaredError()(1.0, 1.0), "found a single number"),
    ],
)
def test_wrong_arrays_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_wrong_arguments_are_named():
    with pytest.raises(SpecError, match="unknown loss 'mes'"):
        losses.get("mes")
    with pytest.raises(SpecError, match="expected the function"):
        losses.get({"class_name": "CalledLoss", "config": {"function": "mine"}})
    with pytest.raises(SpecError, match="reduction"):
        losses.MeanSquaredError(reduction="mean")


def test_a_loss_of_ones_own():
    class Cubic(losses.ElementMean):
        def _elements(self, y_true, y_pred):
            error = y_pred - y_true
            return np.abs(error) ** 3, lambda: 3 * error * np.abs(error)

    value, gradient = losses.get(Cubic()).value_and_gradient([[0.0]], [[2.0]])
    assert (value, gradient.tolist()) == (8.0, [[12.0]])


def test_reductions_have_keras_names():
    loss = losses.MeanSquaredError(reduction=losses.Reduction.NONE)
    assert loss(np.zeros((2, 3)), np.ones((2, 3))).shape == (2,)
    assert losses.Reduction.SUM_OVER_BATCH_SIZE == "sum_over_batch_size"
