"""Layers of images draw by where they are used, and nothing else; values are in conformance/test_image_layers_golden.py."""

import numpy as np
import pytest
from row_by_row import every_row

import dtrain as dt
from dtrain.errors import InputError, SpecError
from dtrain.learning import layers
from dtrain.learning.layers import Call

IMAGES = np.random.default_rng(0).uniform(0, 255, (6, 5, 7, 3)).astype(np.float32)
RANDOM = [
    lambda **more: layers.RandomFlip(**more),
    lambda **more: layers.RandomCrop(3, 3, **more),
    lambda **more: layers.RandomTranslation(0.5, 0.5, **more),
    lambda **more: layers.RandomRotation(0.5, **more),
    lambda **more: layers.RandomZoom(0.5, **more),
    lambda **more: layers.RandomContrast(0.9, **more),
    lambda **more: layers.RandomBrightness(0.9, **more),
]


def rows(dataset):
    return [np.asarray(each) for each in dataset]


def equal(ones, others):
    return all(np.array_equal(one, other) for one, other in zip(ones, others, strict=True))


@pytest.mark.parametrize("make", RANDOM)
def test_a_pipeline_draws_by_the_number_of_the_element(make):
    layer = make()
    images = dt.data.Dataset.from_tensor_slices(IMAGES)
    changed = rows(images.map(layer))
    assert equal(changed, rows(images.map(make()))), "another task draws the same"
    assert equal(changed[3:], rows(images.map(layer).skip(3))), "and so does a resume"
    assert equal(changed, rows(images.map(layer, num_parallel_calls=3).prefetch(2))), "and threads"
    twice = rows(images.map(layer).repeat(2))
    assert not equal(twice[6:], twice[:6]), "another epoch draws anew"
    seeded = rows(images.map(make(seed=5)))
    assert not equal(seeded, changed)


def test_a_function_with_a_seed_gives_its_layers_other_numbers():
    layer = layers.RandomBrightness(0.9)
    images = dt.data.Dataset.from_tensor_slices(IMAGES)
    by_seed = [rows(images.map(lambda image, rng: layer(image), seed=seed)) for seed in (1, 2, 1)]
    assert equal(by_seed[0], by_seed[2])
    assert not equal(by_seed[0], by_seed[1])


def test_layers_of_equal_seeds_draw_the_same_and_others_do_not():
    def both(image):
        return first(image), second(image)

    images = dt.data.Dataset.from_tensor_slices(IMAGES)
    for seed, same in ((3, True), (None, False)):
        first, second = (layers.RandomTranslation(0.5, 0.5, seed=seed) for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in images.map(both)) is same
        rng = np.random.default_rng([7, 8, 1])
        a, b = (layer.forward({}, IMAGES, Call(True, rng))[0] for layer in (first, second))
        assert np.array_equal(a, b) is same


@every_row("make", RANDOM)
def test_a_model_draws_by_the_batch(make):
    def trained(batch):
        return make().forward({}, IMAGES, Call(True, np.random.default_rng([0, batch, 0, 0, 1])))[0]

    np.testing.assert_array_equal(trained(1), trained(1))
    assert not np.array_equal(trained(1), trained(2))
    assert np.array_equal(make().forward({}, IMAGES, Call(False))[0], IMAGES) or make is RANDOM[1]


@every_row("make", RANDOM)
def test_calls_outside_draw_anew_each_and_the_same_in_each_run(make):
    one, other = make(seed=4), make(seed=4)
    drawn = [one(IMAGES) for _ in range(3)]
    assert equal(drawn, [other(IMAGES) for _ in range(3)])
    assert not np.array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(one(IMAGES[0], training=False), one(IMAGES, training=False)[0])


def test_a_flip_mirrors_some_and_a_crop_is_a_window():
    flip, mirrored = layers.RandomFlip("horizontal"), set()
    for _ in range(10):
        for a, b in zip(flip(IMAGES), IMAGES, strict=True):
            mirrored.add(np.array_equal(a, b[:, ::-1]))
            assert np.array_equal(a, b) or np.array_equal(a, b[:, ::-1])
    assert mirrored == {True, False}
    windows = {
        (top, left): IMAGES[:, top : top + 3, left : left + 4] for top in range(3) for left in range(4)
    }
    crop, found = layers.RandomCrop(3, 4), set()
    for _ in range(100):
        cropped = crop(IMAGES)
        found |= {place for place, window in windows.items() if np.array_equal(window, cropped)}
    assert found == set(windows)


def test_integers_are_taken_and_floats_are_returned():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    resized = layers.Resizing(1, 2)(pixels)
    assert (resized.dtype, resized.shape) == (np.float32, (1, 2, 3))


@every_row(
    "make, said",
    [
        (lambda: layers.Resizing(0, 2), "height: expected a positive integer, found 0"),
        (lambda: layers.Resizing(10**5, 10**5), r"height \* width: expected at most 100000000"),
        (lambda: layers.Resizing(2, 2, "cubic"), "interpolation: expected one of .*, found 'cubic'"),
        (lambda: layers.RandomFlip("sideways"), "mode: expected one of .*, found 'sideways'"),
        (
            lambda: layers.RandomRotation((0.3, 0.1)),
            r"factor: expected a number, or a lower .*found \(0.3, 0.1\)",
        ),
        (lambda: layers.RandomTranslation(2, 0), "height_factor: expected .* from -1 to 1, found 2"),
        (lambda: layers.RandomZoom(0.1, fill_mode="mirror"), "fill_mode: expected one of .*, found 'mirror'"),
        (lambda: layers.RandomContrast(1.5), "factor: expected a number from 0 to 1"),
        (lambda: layers.RandomBrightness(0.5, value_range=3), "value_range: expected two numbers, found 3"),
    ],
)
def test_wrong_arguments_are_one_sentence(make, said):
    with pytest.raises(SpecError, match=said) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_an_array_that_is_no_image_is_refused():
    with pytest.raises(InputError, match=r"expected an image or a batch of them, found shape \(3,\)"):
        layers.CenterCrop(1, 1)([1, 2, 3])
    with pytest.raises(InputError, match="expected 4 axes"):
        layers.RandomFlip()(dt.Input((3,)))
