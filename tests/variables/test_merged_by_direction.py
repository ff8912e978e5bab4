"""Differences merged by direction and length (`merge: rda`), against a few lines of arithmetic."""

import numpy as np
import pytest

from dtrain.parameters.placement import plan
from dtrain.parameters.updater import by_direction, merged_by_direction
from dtrain.variables import VariableSpec


def test_orthogonal_differences_keep_their_length():
    """Their mean is shorter than each of them; the merged one is as long as they are on the mean."""
    first, second = np.array([3.0, 0.0]), np.array([0.0, 5.0])
    merged = by_direction([first, second], [1.0, 1.0])
    np.testing.assert_allclose(merged, 4.0 * np.array([1.0, 1.0]) / np.sqrt(2.0))


def test_weights_count_for_direction_and_length():
    merged = by_direction([np.array([3.0, 0.0]), np.array([0.0, 5.0])], [3.0, 1.0])
    np.testing.assert_allclose(merged, 3.5 * np.array([3.0, 1.0]) / np.sqrt(10.0))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([[1.0, 0.0], [-1.0, 0.0]], [0.0, 0.0]),
        ([[2.0, 0.0], [-1.0, 0.0]], [0.5, 0.0]),
        ([[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0]),
    ],
)
def test_without_a_common_direction_it_is_the_mean(parts, expected):
    np.testing.assert_allclose(by_direction(list(map(np.array, parts)), [1.0, 1.0]), expected)


def test_one_contribution_is_itself():
    one = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_allclose(by_direction([one], [7.0]), one, rtol=1e-6)


def test_each_variable_has_a_direction_of_its_own_and_others_have_means():
    specs = [
        VariableSpec("a", (2,)),
        VariableSpec("b", (2, 2)),
        VariableSpec("seen", (2,), trainable=False),
        VariableSpec("words", (9, 2), sparse=True),
    ]
    layout = plan(specs, servers=1).layout(0)
    random = np.random.default_rng(3)
    pushed = [
        [
            random.normal(size=6).astype(np.float32),
            np.full(2, mean, np.float32),
            np.array(ids),
            np.full(4, mean, np.float32),
        ]
        for mean, ids in ((1.0, [1, 4]), (3.0, [4, 8]))
    ]
    merged = merged_by_direction(layout, pushed, [1.0, 2.0])
    flats = [each[0] for each in pushed]
    for rows in (slice(0, 2), slice(2, 6)):
        alone = by_direction([flat[rows] for flat in flats], [1.0, 2.0])
        np.testing.assert_allclose(merged[0][rows], alone, rtol=1e-6)
    np.testing.assert_allclose(merged[1], 2.0)
    assert merged[2].tolist() == [1, 4, 8]
    np.testing.assert_allclose(merged[3].reshape(3, 2)[:, 0], [0.5, 2.0, 1.5])
