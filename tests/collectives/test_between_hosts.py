"""Ring and ordered chain against the left fold over all parts, on any number of hosts with any parts."""

from random import Random

import numpy as np
import pytest
from collectives.in_one_process import run
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_mean import mean

from dtrain.collectives.all_reduce import ElementRange, Terms, ordered_chain, ring, slices


def left_fold(gradients, count, weights):
    """The mean of gradients in the order of their parts, as ten obvious lines make it."""
    total = None
    for part in sorted(gradients):
        term = gradients[part] * np.float32(weights[part]) if weights else gradients[part]
        total = term.copy() if total is None else total + term
    return total / np.float32(sum(weights.values()) if weights else count)


def reduce(schedule, held, gradients, count, weights, lanes, length, seed=0):
    """The mean at each host, and the bytes that each has sent."""
    size = next(iter(gradients.values())).size
    random, hosts = Random(seed), sorted(held)
    means = {host: np.full(size, np.nan, np.float32) for host in hosts}
    terms = {host: Terms({part: gradients[part] for part in held[host]}, count, weights) for host in hosts}
    sent = dict.fromkeys(hosts, 0)
    for span in slices(size, lanes):
        flows = {host: schedule(hosts, host, held, span, length) for host in hosts}
        for host, nbytes in run(flows, terms, means, random).items():
            sent[host] += nbytes
    return means, sent


def drawn(size, parts, seed=0):
    rng = np.random.default_rng(seed)
    return {
        part: (rng.normal(size=size) * 10.0 ** rng.integers(-6, 6, size)).astype(np.float32) for part in parts
    }


@st.composite
def layouts(draw):
    """Parts of a step and the hosts that hold them; some hosts hold none, and some parts have no examples."""
    hosts = draw(st.integers(1, 5))
    count = draw(st.integers(1, 8))
    parts = sorted(draw(st.sets(st.integers(0, count - 1), min_size=1)))
    holders = [draw(st.integers(0, hosts - 1)) for _ in parts]
    held = {
        host: [part for part, at in zip(parts, holders, strict=True) if at == host] for host in range(hosts)
    }
    weights = draw(st.none() | st.fixed_dictionaries({part: st.integers(1, 9) for part in parts}))
    return held, count, weights


CASES = given(layouts(), st.integers(0, 40), st.integers(1, 3), st.integers(1, 9), st.integers(0, 2**32))


@settings(max_examples=60, deadline=None)
@CASES
def test_the_chain_has_the_bits_of_the_left_fold_at_every_host(layout, size, lanes, length, seed):
    held, count, weights = layout
    gradients = drawn(size, [part for parts in held.values() for part in parts], seed)
    means, _ = reduce(ordered_chain, held, gradients, count, weights, lanes, length, seed)
    expected = left_fold(gradients, count, weights)
    for found in means.values():
        assert found.tobytes() == expected.tobytes()


@settings(max_examples=60, deadline=None)
@CASES
def test_the_ring_has_the_same_mean_at_every_host(layout, size, lanes, length, seed):
    held, count, weights = layout
    gradients = drawn(size, [part for parts in held.values() for part in parts], seed)
    means, _ = reduce(ring, held, gradients, count, weights, lanes, length, seed)
    magnitude = left_fold({part: abs(block) for part, block in gradients.items()}, count, weights)
    for found in means.values():
        assert found.tobytes() == means[0].tobytes()
        assert np.all(abs(found - left_fold(gradients, count, weights)) <= 1e-5 * magnitude)


@pytest.mark.parametrize("weights", [None, {0: 3, 1: 3, 2: 1, 3: 2, 4: 3}], ids=["parts", "examples"])
def test_the_chain_has_the_bits_of_a_parameter_server(weights):
    gradients = drawn(1000, range(5))
    held = {0: [0, 1], 1: [2], 2: [3, 4]}
    means, _ = reduce(ordered_chain, held, gradients, 5, weights, 2, 64)
    (expected,) = mean(
        [[gradients[part].copy()] for part in range(5)], [True], weights=weights and list(weights.values())
    )
    assert means[1].tobytes() == expected.tobytes()


@pytest.mark.parametrize("hosts", [2, 3, 5])
def test_a_ring_moves_the_fewest_bytes_and_a_chain_twice_the_slice_at_a_middle_host(hosts):
    size = 120
    held = {host: [host] for host in range(hosts)}
    gradients = drawn(size, range(hosts))
    _, sent = reduce(ring, held, gradients, hosts, None, 1, 7)
    assert set(sent.values()) == {2 * (hosts - 1) * size // hosts * 4}
    _, sent = reduce(ordered_chain, held, gradients, hosts, None, 1, 7)
    assert [sent[host] for host in range(hosts)] == [size * 4, *[2 * size * 4] * (hosts - 2), size * 4]


def test_slices_are_even_and_hold_each_element_once():
    assert slices(10, 4) == [ElementRange(0, 2), ElementRange(2, 5), ElementRange(5, 7), ElementRange(7, 10)]
    assert slices(1, 3) == [ElementRange(0, 0), ElementRange(0, 0), ElementRange(0, 1)]
