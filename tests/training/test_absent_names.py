"""Names of TensorFlow that are absent, and names that are misspelt, are answered with what to use."""

import pytest
from row_by_row import every_row

import dtrain as dt


@every_row(
    "place, name, words",
    [
        (dt, "gradients", "dt.GradientTape"),
        (dt, "TensorSpec", "it is dt.data.TensorSpec"),
        (dt, "TextLineDataset", "it is dt.data.TextLineDataset"),
        (dt, "AUTOTUNE", "it is dt.data.AUTOTUNE"),
        (dt, "complex64", "np.complex64"),
        (dt, "acos", "np.arccos"),
        (dt, "Sequental", "do you mean Sequential?"),
        (dt.data, "datset", "do you mean Dataset?"),
        (dt.layers, "Dens", "do you mean Dense?"),
        (dt.layers, "Adam", "it is dt.optimizers.Adam"),
        (dt.callbacks, "EarlyStoping", "do you mean EarlyStopping?"),
        (dt.data, "CsvDataset", "it is dt.data.experimental.CsvDataset"),
    ],
)
def test_what_to_use_in_the_place_of_an_absent_name(place, name, words):
    with pytest.raises(AttributeError) as raised:
        getattr(place, name)
    assert words in str(raised.value)
    assert f"has no attribute {name!r}" in str(raised.value)


def test_every_place_that_is_suggested_exists():
    for place in (
        "layers",
        "data",
        "losses",
        "metrics",
        "optimizers",
        "callbacks",
        "initializers",
        "regularizers",
    ):
        module = getattr(dt, place)
        assert all(hasattr(module, name) for name in module.__all__)
        assert not hasattr(module, "np_is_no_public_name")


def test_private_names_are_asked_for_without_a_word():
    with pytest.raises(AttributeError) as raised:
        dt.data.__wrapped__  # noqa: B018
    assert str(raised.value).endswith("has no attribute '__wrapped__'")
