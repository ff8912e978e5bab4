"""What users of Keras write by habit works, or is answered with the remedy."""

import warnings
from pathlib import Path

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import CheckpointError, DtrainError, InputError, SpecError
from dtrain.strategies.single import SingleStrategy

X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
Y = np.arange(8) % 2


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SingleStrategy().scope():
        yield


def model():
    made = dt.Sequential([dt.layers.Dense(2, input_shape=(3,))])
    made.compile(dt.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    return made


def pairs():
    yield from zip(X, Y, strict=True)


def pairs_of(context):
    yield from zip(X, Y, strict=True)


@pytest.mark.parametrize("function", [pairs, pairs_of, lambda: pairs(), lambda first, second: None])
def test_a_function_that_is_none_of_an_input_context_is_told_what_fits(function):
    message = (
        rf"expected a function of an InputContext that returns .*, found "
        rf".*{function.__name__}.*Dataset\.from_generator"
    )
    with pytest.raises(InputError, match=message):
        model().fit(function, steps_per_epoch=2, verbose=0)


def test_what_a_data_function_raises_itself_comes_out():
    def broken(context):
        raise TypeError("the user's own")

    with pytest.raises(TypeError, match=r"^the user's own$"):
        model().fit(broken, steps_per_epoch=2, verbose=0)


def test_validation_data_in_a_list_are_a_pair_as_in_keras():
    expected = model().fit(X, Y, shuffle=False, verbose=0, validation_data=(X, Y)).history
    assert model().fit(X, Y, shuffle=False, verbose=0, validation_data=[X, Y]).history == expected
    weights = np.linspace(0, 1, 8)
    expected = model().fit(X, Y, shuffle=False, verbose=0, validation_data=(X, Y, weights)).history
    assert model().fit(X, Y, shuffle=False, verbose=0, validation_data=[X, Y, weights]).history == expected


def test_what_a_public_module_imports_is_none_of_its_names():
    assert hasattr(dt.utils.Sequence, "on_epoch_end"), "it is the base of batches by number, not Python's"


def test_one_callback_needs_no_list():
    heard = []
    note = dt.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: heard.append(epoch))
    note.on_test_end = lambda logs=None: heard.append("test")
    note.on_predict_end = lambda logs=None: heard.append("predict")
    made = model()
    made.fit(X, Y, epochs=2, verbose=0, callbacks=note)
    made.evaluate(X, Y, verbose=0, callbacks=note)
    made.predict(X, callbacks=note)
    assert heard == [0, 1, "test", "predict"]
    made.fit(X, Y, verbose=0, callbacks=[[note], ()])
    assert heard[4:] == [0]
    for wrong in ("EarlyStopping", dt.callbacks.History, 3):
        with pytest.raises(
            InputError, match=r"callbacks: expected instances of .*, found .*(EarlyStopping|History|3)"
        ):
            made.fit(X, Y, verbose=0, callbacks=wrong)


class Batches:
    """Has the methods of a Keras Sequence."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return X[2 * index : 2 * index + 2], Y[2 * index : 2 * index + 2]


def test_an_object_with_the_methods_of_a_sequence_is_data():
    batches = Batches()
    expected = model().fit(X, Y, batch_size=2, shuffle=False, epochs=2, verbose=0).history
    assert model().fit(batches, shuffle=False, epochs=2, verbose=0).history == expected


def test_lists_of_other_lengths_are_no_array():
    with pytest.raises(
        InputError, match="dataset: expected an array, or nested lists of equal lengths, found list: "
    ):
        model().predict([[1.0, 2.0, 3.0], [4.0]])


def test_x_and_y_of_other_lengths_are_named():
    message = r"data: expected as many examples in y as in x, found x of shape \(8, 3\) and y of shape \(5,\)"
    for use in (model().fit, model().evaluate):
        with pytest.raises(InputError, match=message):
            use(X, Y[:5], verbose=0)
    with pytest.raises(InputError, match=message):
        model().fit(X, Y[:5], validation_split=0.5, verbose=0)
    with pytest.raises(
        InputError,
        match=r"in sample_weight as in x, found x of shape \(8, 3\) and sample_weight of shape \(2,\)",
    ):
        model().fit(X, Y, sample_weight=np.ones(2), verbose=0)
    with pytest.raises(
        InputError, match=r"data: expected arrays with an axis of examples, found y of shape \(\)"
    ):
        model().fit(X, 3, verbose=0)


def test_a_folder_of_tensorflow_is_named(tmp_path):
    saved_model = tmp_path / "saved_model_folder"
    saved_model.mkdir()
    (saved_model / "saved_model.pb").write_bytes(b"\x08\x01")
    (tmp_path / "cp.ckpt.index").write_bytes(b"")
    for use in (dt.load_model, model().load_weights):
        with pytest.raises(
            CheckpointError,
            match=r"saved_model_folder cannot be used: it is a folder of TensorFlow \(SavedModel\)",
        ):
            use("saved_model_folder")
        with pytest.raises(
            CheckpointError, match=r"cp.ckpt cannot be used: it is a checkpoint of TensorFlow"
        ):
            use("cp.ckpt")


def test_floats_in_lists_are_float32_as_in_tensorflow():
    def dtypes(tensors):
        return dt.data.Dataset.from_tensor_slices(tensors).element_spec

    assert dtypes([1.0, 2.0]).dtype == "float32"
    assert dtypes([[1.0], [2.0]]).dtype == "float32"
    assert dtypes([1, 2.5]).dtype == "float32"
    assert dt.data.Dataset.from_tensors(0.5).element_spec.dtype == "float32"
    assert dt.data.Dataset.range(2).map(lambda n: float(n)).element_spec.dtype == "float32"
    assert dtypes(np.array([1.0, 2.0])).dtype == "float64"
    assert dtypes([np.float64(1.0), np.float64(2.0)]).dtype == "float64"
    assert dtypes([np.zeros(2), np.ones(2)]).dtype == "float64"
    assert dtypes([1, 2]).dtype == "int64"
    assert dtypes([True, False]).dtype == "bool"


@pytest.mark.parametrize("steps", [None, 10])
def test_no_data_are_an_error_with_and_without_steps(steps):
    empty = np.zeros((0, 3), np.float32), np.zeros(0)
    read_to_know = dt.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: False).batch(2)
    with pytest.raises(InputError, match="expected at least one batch, found an empty dataset"):
        model().fit(*empty, steps_per_epoch=steps, verbose=0)
    with pytest.raises(InputError, match="expected at least one batch, found an empty dataset"):
        model().fit(read_to_know, steps_per_epoch=10, verbose=0)


READ_TO_KNOW = dt.data.Dataset.from_generator(lambda: zip(X, Y, strict=True)).batch(2)


@pytest.mark.parametrize("data", [dt.data.Dataset.from_tensor_slices((X, Y)).batch(2), READ_TO_KNOW])
def test_more_steps_than_batches_are_made_and_told_of_once(data):
    said = (
        "fit: an epoch of 6 steps needs 6 batches and the data have 4: they are read again from the start; "
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        for _ in range(2):
            history = model().fit(data, epochs=3, steps_per_epoch=6, verbose=0)
    assert len(history.history["loss"]) == 3
    [warning] = warned
    assert str(warning.message).startswith(said)


@pytest.mark.parametrize("data", [dt.data.Dataset.from_tensor_slices((X, Y)).batch(2), READ_TO_KNOW])
@pytest.mark.filterwarnings("error")
def test_as_many_steps_as_batches_and_data_without_end_need_no_word(data):
    made = model()
    made.fit(data, epochs=3, steps_per_epoch=4, verbose=0)
    made.fit(data, epochs=3, steps_per_epoch=2, verbose=0)
    made.fit(data.repeat(), epochs=1, steps_per_epoch=6, verbose=0)


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one_alone():
    for name, right in (("acuracy", "accuracy"), ("acc_uracy", "accuracy")):
        with pytest.raises(SpecError, match=rf"unknown metric '{name}'; do you mean {right}\?$"):
            model().compile("sgd", "mse", metrics=[name])
    with pytest.raises(SpecError, match=r"unknown optimizer 'adma'; do you mean Adam\?$"):
        model().compile("adma", "mse")
    with pytest.raises(SpecError, match=r"unknown optimizer 'xyzzy'; known are SGD"):
        model().compile("xyzzy", "mse")


def test_class_weight_is_a_mapping():
    message = (
        r"class_weight: expected a mapping of class numbers to weights such as {0: 1.0, 1: 2.5}, "
        r"found 'balanced'"
    )
    with pytest.raises(InputError, match=message):
        model().fit(X, Y, class_weight="balanced", verbose=0)
    with pytest.raises(InputError, match=message):
        model().train_on_batch(X, Y, class_weight="balanced")


@pytest.mark.parametrize("name", ["m.h5", "m.keras", "m.hdf5", "m.weights.h5"])
def test_a_name_of_keras_formats_is_kept_and_the_format_is_said(name):
    made = model()
    says = (
        rf"written in the safetensors format although its name ends in {Path(name).suffix}: .* Keras does not"
    )
    with pytest.warns(UserWarning, match=says):
        made.save(name)
    with pytest.warns(UserWarning, match=says):
        made.save_weights(name)
    made.load_weights(name)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: dt.callbacks.CSVLogger(path),
        lambda path: dt.callbacks.TensorBoard(path),
        lambda path: dt.callbacks.ModelCheckpoint(path),
        lambda path: dt.callbacks.BackupAndRestore(path),
    ],
)
def test_a_callback_that_cannot_write_says_which_and_where(make):
    with pytest.raises(DtrainError, match=r"cannot write .*/proc/nowhere/table.csv.*: No such file"):
        model().fit(X, Y, verbose=0, callbacks=[make("/proc/nowhere/table.csv")])


def endless():
    return dt.data.Dataset.from_tensor_slices((X, Y)).batch(2).repeat()


def test_data_without_end_are_refused_where_no_steps_are_given():
    made = model()
    with pytest.raises(InputError, match="evaluate: the dataset is infinite; expected steps"):
        made.evaluate(endless(), verbose=0)
    with pytest.raises(InputError, match="predict: the dataset is infinite; expected steps"):
        made.predict(endless().map(lambda x, y: x))
    heard = dt.callbacks.LambdaCallback(on_train_begin=lambda logs: pytest.fail("training has begun"))
    with pytest.raises(
        InputError, match="fit: validation_data: the dataset is infinite; expected validation_steps"
    ):
        made.fit(X, Y, validation_data=endless(), verbose=0, callbacks=[heard])
    with pytest.raises(
        InputError, match="fit: validation_data: the dataset is infinite; expected validation_steps"
    ):
        made.fit(X, Y, validation_data=lambda context: endless(), verbose=0, callbacks=[heard])
    train, evaluation = dt.TrainSpec(endless, max_steps=2), dt.EvalSpec(endless, steps=None)
    with pytest.raises(InputError, match="EvalSpec: input_fn: the dataset is infinite; expected steps"):
        dt.train_and_evaluate(dt.Estimator(model), train, evaluation)


def test_with_steps_data_without_end_are_taken():
    made = model()
    assert made.evaluate(endless(), verbose=0, steps=4) == pytest.approx(
        made.evaluate(X, Y, batch_size=2, verbose=0)
    )
    assert made.predict(endless().map(lambda x, y: x), steps=3).shape == (6, 2)
    history = made.fit(X, Y, validation_data=endless(), validation_steps=2, verbose=0)
    assert len(history.history["val_loss"]) == 1
