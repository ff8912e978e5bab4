"""Orders that are computed: true permutations, as even as drawn ones, from any place, without memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.data import Dataset
from dtrain.data.permutation import ARRAY_ROWS_MAX, PIECE_ROWS, Ahead, BlockPermutation, Permutation
from dtrain.errors import InputError


def mix(value, key):
    value = (value + key) * 0x9E3779B97F4A7C15 % 2**64
    value ^= value >> 32
    value = value * 0xD6E8FEB86659FD93 % 2**64
    return value ^ value >> 32


def twin(n, index, seed, iteration):
    """The network in Python's own numbers, one index at a time."""
    half = (max(2, (n - 1).bit_length()) + 1) // 2
    keys = [int(key) for key in np.random.SeedSequence((seed, *iteration)).generate_state(6, np.uint64)]
    while True:
        left, right = index >> half, index & (1 << half) - 1
        for key in keys:
            left, right = right, left ^ mix(right, key) & (1 << half) - 1
        index = left << half | right
        if index < n:
            return index


@every_row("n", [1, 2, 3, 10, 1000, 65536, 100003])
def test_every_number_comes_once(n):
    order = Permutation(n, (7, 0)).at(np.arange(n))
    assert np.array_equal(np.sort(order), np.arange(n))
    assert np.array_equal(Permutation(n, (7, 0)).places_of(order), np.arange(n))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 10**12), st.integers(0, 2**32 - 1), st.integers(0, 5), st.data())
def test_an_index_has_the_number_that_the_definition_gives_it(n, seed, past, data):
    indices = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=4))
    found = Permutation(n, (seed, past)).at(np.array(indices))
    assert found.tolist() == [twin(n, index, seed, (past,)) for index in indices]


def test_places_and_numbers_are_independent():
    n, cells = 200_000, 20
    for entropy in ((0, 0), (0, 1), (1, 0)):
        order = Permutation(n, entropy).at(np.arange(n))
        counts, _, _ = np.histogram2d(np.arange(n), order, cells)
        expected = n / cells**2
        freedom = (cells - 1) ** 2
        chi_squared = ((counts - expected) ** 2 / expected).sum() / freedom
        assert 0.7 < chi_squared < 1.35  # five standard deviations, sqrt(2 / freedom) each
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 5 / np.sqrt(n)


def test_seeds_and_iterations_have_orders_of_their_own():
    orders = [Permutation(1000, each).at(np.arange(1000)) for each in ((0, 0), (0, 1), (1, 0), (0, 0, 1))]
    assert all((a == b).mean() < 0.02 for i, a in enumerate(orders) for b in orders[:i])


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 120), st.integers(0, 9))
def test_blocks_come_whole_and_windows_stay_apart(n, block, window, seed):
    order = BlockPermutation(n, block, window, (seed, 0)).at(np.arange(n))
    assert sorted(order.tolist()) == list(range(n))
    blocks_of_window = -(-window // block)
    blocks = (order // block).tolist()
    groups, start = [], 0
    while start < n:  # the rows of so many blocks, all of them, before those of any other
        seen: set[int] = set()
        end = start
        while end < n and (blocks[end] in seen or len(seen) < blocks_of_window):
            seen.add(blocks[end])
            end += 1
        end = start + sum(min(block, n - each * block) for each in seen)
        assert set(blocks[start:end]) == seen
        groups.append(seen)
        start = end
    assert sum(map(len, groups)) == len(set(blocks))
    assert all(len(group) == blocks_of_window for group in groups[:-1])


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 3 * PIECE_ROWS + 4), min_size=1, max_size=9))
def test_pieces_give_what_the_order_gives(indices):
    n = 3 * PIECE_ROWS + 5
    order = Permutation(n, (3,))
    ahead = Ahead(order, n)
    assert ahead.at(np.array(indices)).tolist() == order.at(np.array(indices)).tolist()
    assert [ahead.row(index) for index in indices] == order.at(np.array(indices)).tolist()


def test_a_large_shuffle_is_whole_from_any_place():
    n = ARRAY_ROWS_MAX + 1
    dataset = Dataset.range(n).shuffle(n, seed=5).batch(1000)
    first, second = (np.concatenate(list(dataset)) for _ in range(2))
    assert np.array_equal(np.sort(first), np.arange(n))
    assert not np.array_equal(first, second)
    assert np.array_equal(dataset.node.element(40, (1,)), second[40_000:41_000])
    still = Dataset.range(n).shuffle(n, seed=5, reshuffle_each_iteration=False).batch(n)
    assert np.array_equal(*(next(iter(still)) for _ in range(2)))


def test_shuffles_that_fit_into_an_array_keep_their_order():
    n = ARRAY_ROWS_MAX
    expected = np.random.default_rng([5, 0]).permutation(n)
    assert np.array_equal(next(iter(Dataset.range(n).shuffle(n, seed=5).batch(n))), expected)


def test_a_shuffle_of_a_thousand_million_rows_takes_less_than_a_megabyte():
    n = 10**9
    shuffled = Dataset.range(n).shuffle(n, seed=1).batch(64).node
    by_blocks = Dataset.range(n).shuffle(10**6, seed=1, block=10**4).batch(64).node
    rows = set()
    tracemalloc.start()
    for number in range(0, 10_000_000, 400_000):
        rows.update(shuffled.element(number, (0,)).tolist())
        by_blocks.element(number, (0,))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(rows) == 25 * 64
    assert max(rows) > n // 2
    assert peak < 1 << 20


def test_blocks_through_the_dataset():
    dataset = Dataset.range(1000).shuffle(100, seed=2, block=25)
    first, second = list(dataset), list(dataset)
    assert sorted(first) == list(range(1000))
    assert first != second
    assert [len({int(row) // 25 for row in first[start : start + 100]}) for start in (0, 300, 900)] == [4] * 3
    with pytest.raises(InputError, match="block >= 1"):
        Dataset.range(3).shuffle(2, block=0)
    with pytest.raises(InputError, match="expected elements that can be addressed; a generator"):
        Dataset.from_generator(lambda: range(3)).shuffle(2, block=1)
