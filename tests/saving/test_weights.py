"""Weights: to a file and back, by name or in order; what does not fit is refused by name."""

import numpy as np
import pytest
import safetensors.numpy
from msgspec.structs import replace
from row_by_row import every_row

import dtrain as dt
from dtrain import checkpoints
from dtrain.errors import CheckpointError, InputError
from dtrain.strategies.single import SingleStrategy


def model(*names, units=3):
    layers = [
        dt.layers.Dense(units, input_shape=(2,), name=names[0] if names else None),
        dt.layers.BatchNormalization(),
    ]
    with SingleStrategy().scope():
        return dt.Sequential(layers)


def filled(made):
    rng = np.random.default_rng(0)
    made.set_weights([rng.normal(size=spec.shape) for spec in made.variables])
    return made


def assert_same_weights(one, other):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["w.safetensors", "epoch-01.weights.h5", "made/on/the/way/ckpt"])
def test_weights_come_back(tmp_path, name):
    one, other = filled(model()), model()
    one.save_weights(tmp_path / name)
    other.load_weights(str(tmp_path / name))
    assert_same_weights(one, other)
    assert [path.name for path in (tmp_path / name).parent.iterdir()] == [(tmp_path / name).name]


def test_the_real_library_reads_and_writes_such_files(tmp_path):
    one, other = filled(model()), model()
    one.save_weights(tmp_path / "w")
    read = safetensors.numpy.load_file(tmp_path / "w")
    assert set(read) == set(one.arrays)
    safetensors.numpy.save_file(read, tmp_path / "theirs")
    other.load_weights(tmp_path / "theirs")
    assert_same_weights(one, other)


def test_weights_of_layers_with_other_names_come_in_order(tmp_path):
    one, other = filled(model("mine")), model("yours")
    one.save_weights(tmp_path / "w")
    other.load_weights(tmp_path / "w")
    assert_same_weights(one, other)


def test_others_orders_are_not_trusted(tmp_path):
    one, other = filled(model("mine")), model("yours")
    read = dict(sorted(one.arrays.items()))
    safetensors.numpy.save_file(read, tmp_path / "theirs")
    checkpoints.save(tmp_path / "checkpoints", 7, read, now=0.0)
    for path in ("theirs", "checkpoints"):
        with pytest.raises(
            CheckpointError, match="missing: yours/kernel, yours/bias; unknown: mine/bias, mine/kernel"
        ):
            other.load_weights(tmp_path / path)


def test_weights_are_written_in_the_order_of_creation(tmp_path):
    one, other = filled(model("mine")), model("yours")
    one.arrays = dict(reversed(one.arrays.items()))
    one.save_weights(tmp_path / "w")
    other.load_weights(tmp_path / "w")
    assert_same_weights(one, other)


def test_weights_come_from_a_checkpoint(tmp_path):
    one, other = filled(model()), model()
    arrays = {**one.arrays, checkpoints.slot_key("dense/kernel", "m"): np.ones((2, 3), np.float32)}
    path = checkpoints.save(tmp_path, 7, arrays, now=0.0)
    for folder in (tmp_path, path):
        other.load_weights(folder)
        assert_same_weights(one, other)
        filled(other)


def test_by_name_leaves_the_others_and_skip_mismatch_those_of_another_shape(tmp_path):
    filled(model("shared")).save_weights(tmp_path / "w")
    other = model("mine")
    before = other.arrays["mine/kernel"].copy()
    other.load_weights(tmp_path / "w", by_name=True)
    np.testing.assert_array_equal(other.arrays["mine/kernel"], before)
    assert other.arrays["batch_normalization/gamma"].any()
    wider = model("shared", units=4)
    wider.load_weights(tmp_path / "w", skip_mismatch=True)
    with pytest.raises(
        CheckpointError, match=r"shared/kernel is float32\[2, 4\] here and float32\[2, 3\] there"
    ):
        wider.load_weights(tmp_path / "w")


def test_what_does_not_fit_is_named(tmp_path):
    filled(model()).save_weights(tmp_path / "w")
    with SingleStrategy().scope():
        shallow = dt.Sequential([dt.layers.Dense(3, input_shape=(2,))])
        unbuilt = dt.Sequential([dt.layers.Dense(3)])
    with pytest.raises(
        CheckpointError, match=r"expected 2 variables, found 6.*unknown: batch_normalization/gamma"
    ):
        shallow.load_weights(tmp_path / "w")
    with pytest.raises(InputError, match="input_shape, or call build"):
        unbuilt.load_weights(tmp_path / "w")


@every_row(
    "content, said",
    [
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"PK\x03\x04rest", "zip"),
        (b"\x80\x04\x95pickled", "header"),
        (b"", "header"),
        (b"\xff" * 8 + b"{}", "it begins like"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, content, said):
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(CheckpointError, match=said):
        model().load_weights(tmp_path / "w")


def test_a_missing_file_a_folder_and_a_file_not_to_be_overwritten(tmp_path):
    made = filled(model())
    with pytest.raises(CheckpointError, match="nothing cannot be read: No such file"):
        made.load_weights(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        made.load_weights(tmp_path)
    with pytest.raises(CheckpointError, match="it is a directory"):
        made.save_weights(tmp_path)
    made.save_weights(tmp_path / "w")
    with pytest.raises(CheckpointError, match="overwrite=True"):
        made.save_weights(tmp_path / "w", overwrite=False)


def test_only_the_leaders_file_counts(tmp_path):
    made = filled(model())
    made.strategy.context = replace(made.strategy.context, is_leader=False)
    made.save_weights(tmp_path / "w")
    assert not list(tmp_path.iterdir())


def test_a_model_of_functions_is_saved_alike(tmp_path):
    def build():
        return dt.from_function(lambda rng: {"a": rng.normal(size=2)}, lambda weights, x, y: (0.0, {}))

    with SingleStrategy().scope():
        one, other = build(), build()
    one.set_weights([np.array([3.0, 4.0])])
    one.save_weights(tmp_path / "w")
    other.load_weights(tmp_path / "w")
    assert_same_weights(one, other)


def test_whole_numbers_are_not_made_of_fractions(tmp_path):
    made = filled(model())
    made.save_weights(tmp_path / "w")
    from dtrain.saving.model_files import load_weights

    whole = [replace(spec, dtype="int32") for spec in made.variable_specs]
    with pytest.raises(CheckpointError, match=r"int32\[2, 3\] here and float32"):
        load_weights(tmp_path / "w", whole)
