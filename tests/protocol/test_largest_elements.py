"""What is not sent is not lost."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from dtrain.parameters.largest_elements import LargestElements

GRADIENTS = st.integers(0, 30).flatmap(
    lambda size: st.lists(
        st.tuples(
            some.arrays(np.float32, size, elements=st.integers(-50, 50).map(np.float32)), st.booleans()
        ),
        min_size=1,
        max_size=12,
    )
)


@settings(deadline=None, max_examples=60)
@given(GRADIENTS, st.floats(0.01, 1))
def test_applied_and_kept_are_the_sum_of_what_counts_beside_a_twin(gradients, fraction):
    size = len(gradients[0][0])
    largest, kept, arrived = LargestElements(fraction, size), np.zeros(size), np.zeros(size)
    for gradient, counts in gradients:
        whole = kept + gradient
        places, values = largest.pick(gradient)
        assert np.array_equal(values, whole[places])
        assert (np.diff(places) > 0).all()
        assert (values != 0).all()
        others = np.delete(whole, places)
        assert np.abs(others).max(initial=0) < np.abs(values).min(initial=np.inf)
        ties = np.count_nonzero(np.abs(whole) == np.abs(values).min(initial=np.inf))
        assert len(places) <= max(1, round(fraction * size)) + max(0, ties - 1)
        if counts:
            largest.applied(slice(0, size))
            arrived[places] += values
            kept = whole
            kept[places] = 0
    counted = sum((gradient for gradient, counts in gradients if counts), start=np.zeros(size))
    assert np.array_equal(arrived + kept, counted)


def test_one_element_at_least_is_picked_and_zeros_never_are():
    largest = LargestElements(0.001, 5)
    assert [each.tolist() for each in largest.pick(np.array([0, -3, 2, 0, 1], np.float32))] == [[1], [-3]]
    assert [each.tolist() for each in LargestElements(1.0, 3).pick(np.array([0, 1, 0], np.float32))] == [
        [1],
        [1],
    ]


def test_a_part_may_be_applied_and_the_rest_not():
    largest = LargestElements(0.5, 4)
    largest.pick(np.array([1, 5, 2, 7], np.float32))
    largest.applied(slice(0, 2))
    places, values = largest.pick(np.zeros(4, np.float32))
    assert (places.tolist(), values.tolist()) == ([0], [1]), "the other half of that gradient never counted"
    largest.forget()
    assert not largest.pick(np.zeros(4, np.float32))[0].size
