"""Metrics: resolution of names, split evaluations, and messages for wrong input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.errors import InputError, SpecError
from dtrain.learning import metrics


@pytest.mark.parametrize(
    ("y_true", "y_pred", "expected"),
    [
        ([1, 0, 1], [[0.9], [0.4], [0.2]], 2 / 3),
        ([1, 0], [[0.1, 0.9], [0.2, 0.8]], 0.5),
        ([[1], [0]], [[0.1, 0.9], [0.2, 0.8]], 0.5),
        ([[0, 1], [1, 0]], [[0.1, 0.9], [0.2, 0.8]], 0.5),
    ],
)
def test_accuracy_is_what_the_shapes_say(y_true, y_pred, expected):
    metric = metrics.get("accuracy")
    metric.update_state(y_true, y_pred)
    assert (metric.name, metric.result()) == ("accuracy", pytest.approx(expected))


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 1, width=32), st.floats(0, 2)), max_size=20),
    st.integers(0, 20),
)
def test_a_split_evaluation_is_the_whole_one(rows, cut):
    arrays = [np.array([row[i] for row in rows]) for i in range(3)]
    for build in (metrics.AUC, metrics.Precision, metrics.BinaryAccuracy, metrics.MeanSquaredError):
        whole, first, second = build(), build(), build()
        for metric, part in ((whole, slice(None)), (first, slice(cut)), (second, slice(cut, None))):
            y_true, y_pred, weights = (array[part] for array in arrays)
            metric.update_state(y_true, y_pred, sample_weight=weights)
        first.merge_state([second])
        np.testing.assert_allclose(first.result(), whole.result(), atol=1e-12)
        fresh = build()
        fresh.merge_state([first.state])
        assert fresh.result() == first.result()


def test_area_under_the_curve_is_the_share_of_pairs_in_order():
    generator = np.random.default_rng(0)
    y_true, y_pred = generator.integers(0, 2, 500), generator.uniform(size=500)
    auc = metrics.AUC(num_thresholds=5000)
    auc.update_state(y_true, y_pred)
    pairs = y_pred[y_true == 1][:, None] > y_pred[y_true == 0][None, :]
    assert auc.result() == pytest.approx(pairs.mean(), abs=1e-3)


def test_several_thresholds_keep_their_order():
    metric = metrics.TruePositives(thresholds=[0.8, 0.2])
    metric.update_state([1, 1, 0], [0.9, 0.5, 0.9])
    np.testing.assert_array_equal(metric.result(), [1, 2])


def test_names():
    assert metrics.Mean("val_loss").name == "val_loss"
    assert metrics.get("mse").name == "mse"
    assert metrics.MeanSquaredError().name == "mean_squared_error"
    metric = metrics.AUC()
    assert metrics.get(metric) is metric


@every_row(
    "call, message",
    [
        (lambda: metrics.Mean().update_state([1.0, 2.0], [1.0, 2.0, 3.0]), "sample_weight"),
        (
            lambda: metrics.SparseCategoricalAccuracy().update_state([0, 1], np.zeros((3, 2))),
            r"shape \(3,\), found \(2,\)",
        ),
        (
            lambda: metrics.CategoricalAccuracy().update_state(np.zeros((2, 3)), np.zeros((2, 2))),
            r"shape \(2, 2\)",
        ),
        (lambda: metrics.Precision().update_state([1], [float("nan")]), "found NaN"),
        (lambda: metrics.Precision().update_state([1, 0], [0.5]), r"shape \(1,\), found \(2,\)"),
        (lambda: metrics.MeanIoU(2).update_state([0, 2], [0, 1]), r"\[0, 2\), found 0 to 2"),
    ],
)
def test_wrong_arrays_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_wrong_arguments_are_named():
    with pytest.raises(SpecError, match="unknown metric 'acuracy'"):
        metrics.get("acuracy")
    with pytest.raises(SpecError, match="curve"):
        metrics.AUC(curve="RoC")


def test_the_older_name_of_a_reset():
    metric = metrics.Mean()
    metric.update_state([1.0, 2.0])
    metric.reset_states()
    assert metric.result() == 0.0
