"""Small things that the guides use and that no program of this folder does."""

import os

import numpy as np
import pytest

import dtrain as tf
from dtrain.errors import CheckpointError
from dtrain.strategies.single import SingleStrategy

X, Y = np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)


@pytest.fixture(autouse=True)
def alone():
    with SingleStrategy().scope():
        yield


def compiled():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
    model.compile("sgd", "mse")
    return model


def test_a_program_saves_where_a_managed_job_says(tmp_path, monkeypatch):
    monkeypatch.setenv("AIP_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    prefix = os.environ["AIP_CHECKPOINT_DIR"] + "/ckpt_{epoch}"
    model = compiled()
    callbacks = tf.keras.callbacks.ModelCheckpoint(prefix, save_weights_only=True)
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[callbacks])
    newest = tf.train.latest_checkpoint(os.environ["AIP_CHECKPOINT_DIR"])
    assert newest.name == "ckpt_2"
    again = compiled()
    again.load_weights(newest)
    assert again.evaluate(X, Y, verbose=0) == model.evaluate(X, Y, verbose=0)


def test_a_saved_model_counts_on(tmp_path):
    model = compiled()
    model.fit(X, Y, batch_size=4, epochs=3, verbose=0)
    model.save(tmp_path / "model", save_format="tf")
    again = tf.keras.models.load_model(tmp_path / "model")
    assert again.optimizer.iterations == 6
    again.fit(X, Y, batch_size=4, verbose=0)
    assert again.optimizer.iterations == 8


def test_a_folder_of_tensorflow_says_what_to_do(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"SavedModel.*set_weights\(keras_model.get_weights\(\)\)"):
        tf.keras.models.load_model(tmp_path)
    with pytest.raises(AttributeError, match=r"write model.save, or model.export for ONNX"):
        tf.saved_model.save(compiled(), str(tmp_path))
