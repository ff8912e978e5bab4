"""`dt.train.latest_checkpoint` finds what `ModelCheckpoint` and `save_weights` have written, as in Keras."""

import os

import numpy as np

import dtrain as dt


def test_the_newest_file_of_a_callback_is_found(tmp_path):
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(3,))])
    model.compile("sgd", "mse")
    x, y = np.ones((8, 3), np.float32), np.zeros((8, 1), np.float32)
    assert dt.train.latest_checkpoint(tmp_path) is None
    saver = dt.callbacks.ModelCheckpoint(f"{tmp_path}/ckpt_{{epoch}}", save_weights_only=True)
    model.fit(x, y, epochs=11, verbose=0, callbacks=[saver])
    newest = tmp_path / "ckpt_11"
    assert dt.train.latest_checkpoint(tmp_path) == newest
    trained = model.get_weights()
    model.set_weights([np.zeros_like(each) for each in trained])
    model.load_weights(dt.train.latest_checkpoint(tmp_path))
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), trained, strict=True))

    for name in ("notes.txt", ".hidden"):
        (tmp_path / name).write_bytes(b"none of ours")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert dt.train.latest_checkpoint(tmp_path) == newest
    model.save_weights(tmp_path / "by_hand")
    assert dt.train.latest_checkpoint(tmp_path) == tmp_path / "by_hand"
