"""`dt.profile` of models as programs make them."""

import numpy as np
import pytest

import dtrain as dt


@pytest.mark.parametrize("shape", [{"input_shape": (6,)}, {}])
def test_a_stack_is_built_for_the_batch_and_its_weights_stay(shape):
    model = dt.Sequential([dt.layers.Dense(4, activation="relu", **shape), dt.layers.Dense(2)])
    x = np.ones((8, 6), np.float32)
    found = dt.profile(model, x)
    before = model.get_weights()
    again = dt.profile(model, (x, np.ones(8)))
    assert all(np.array_equal(*each) for each in zip(before, model.get_weights(), strict=True))
    for profile in (found, again):
        assert profile.examples == 8
        assert [(each.layers, each.parameter_bytes) for each in profile.layers] == [
            (("dense",), 4 * 28),
            (("dense_1",), 4 * 10),
        ]
        assert all(each.forward_s > 0 and each.backward_s > 0 for each in profile.layers)


def test_a_model_with_two_inputs_takes_both():
    one, other = dt.Input((3,), name="one"), dt.Input((5,), name="other")
    model = dt.Model([one, other], dt.layers.Dense(2)(dt.layers.Concatenate()([one, other])))
    batch = {"one": np.ones((4, 3), np.float32), "other": np.ones((4, 5), np.float32)}
    for given in (batch, list(batch.values())):
        assert [each.layers[0] for each in dt.profile(model, given).layers] == ["concatenate", "dense"]


def test_a_batch_that_does_not_fit_and_a_model_without_layers_are_refused():
    model = dt.Sequential([dt.layers.Dense(4, input_shape=(6,))])
    with pytest.raises(dt.errors.InputError, match="expected an input of shape"):
        dt.profile(model, np.ones((8, 5), np.float32))
    with pytest.raises(dt.errors.InputError, match="layers"):
        dt.profile(dt.Sequential(), np.ones((8, 5), np.float32))
