"""A Sequential without an Input takes batches of other lengths, where its layers can and the dataset says so."""

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import InputError


def sentences():
    for number in range(23):
        yield np.full((3 + number % 5,), 1 + number % 7, np.int64), np.float32(number % 2)


def pictures():
    for number in range(12):
        yield np.ones((4 + number // 4, 4, 1), np.float32), np.float32(0)


def test_batches_that_are_padded_each_to_its_own_length():
    shapes = ((None,), ())
    data = dt.data.Dataset.from_generator(
        sentences, output_types=("int64", "float32"), output_shapes=shapes
    ).padded_batch(4, shapes)
    model = dt.Sequential(
        [dt.layers.Embedding(10, 4), dt.layers.GlobalAveragePooling1D(), dt.layers.Dense(1)]
    )
    model.compile(dt.optimizers.SGD(0.05), "mse")
    loss = model.fit(data, epochs=3, steps_per_epoch=6, verbose=0).history["loss"]
    assert loss[2] < loss[0] < 0.6  # half of the targets are 1, the others 0
    assert model.input_shape == (None, None)
    assert model.predict(data, verbose=0).shape == (23, 1)


@pytest.mark.parametrize("fits", [True, False])
def test_pictures_of_other_sizes_where_the_layers_can(fits):
    shapes = ((None, 4, 1), ())
    data = dt.data.Dataset.from_generator(
        pictures, output_types=("float32", "float32"), output_shapes=shapes
    ).batch(4)
    reducing = dt.layers.GlobalAveragePooling2D() if fits else dt.layers.Flatten()
    model = dt.Sequential([dt.layers.Conv2D(2, 3, padding="same"), reducing, dt.layers.Dense(1)])
    model.compile("sgd", "mse")
    if fits:
        assert np.isfinite(model.fit(data, steps_per_epoch=3, verbose=0).history["loss"]).all()
        assert model.input_shape == (None, None, 4, 1)
    else:
        with pytest.raises(
            InputError, match=r"expected an input of shape \(batch, 4, 4, 1\), found \(4, 5, 4, 1\)"
        ):
            model.fit(data, steps_per_epoch=3, verbose=0)
