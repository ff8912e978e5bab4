"""Models, and the files of callbacks, at URLs: as in a managed job, whose machines are thrown away."""

import sys

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import CheckpointError, SpecError
from dtrain.strategies.single import SingleStrategy

fsspec = pytest.importorskip("fsspec", reason="the extra `remote`")
X = np.arange(32, dtype="float32").reshape(32, 1) / 32


@pytest.fixture
def bucket():
    store = fsspec.filesystem("memory")
    store.store.clear()
    store.pseudo_dirs[:] = [""]
    return store


def trained(*callbacks, epochs=2):
    with SingleStrategy().scope():
        return fitted(*callbacks, epochs=epochs)


def fitted(*callbacks, epochs):
    model = dt.Sequential([dt.layers.Dense(1)])
    model.compile(optimizer=dt.optimizers.SGD(0.1), loss="mse")
    model.fit(X, 2 * X, batch_size=8, epochs=epochs, verbose=0, callbacks=list(callbacks))
    return model


@pytest.mark.parametrize("url", ["memory://bucket/m.safetensors", "memory://bucket/model/"])
def test_a_model_is_saved_at_a_url_and_loaded_from_it(bucket, url):
    model = trained()
    model.save(url)
    assert bucket.exists("/bucket/m.safetensors") or bucket.exists("/bucket/model/model.safetensors")
    assert np.array_equal(dt.load_model(url).predict(X, verbose=0), model.predict(X, verbose=0))
    with pytest.raises(CheckpointError, match=r"memory://bucket/.*is there"):
        model.save(url, overwrite=False)


def test_weights_and_their_absence(bucket):
    model = trained()
    model.save_weights("memory://bucket/w.safetensors")
    other = trained(epochs=1)
    other.load_weights("memory://bucket/w.safetensors")
    assert all(map(np.array_equal, other.get_weights(), model.get_weights()))
    with pytest.raises(CheckpointError, match="cannot read memory://bucket/none"):
        other.load_weights("memory://bucket/none")


def test_callbacks_write_there(bucket, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained(
        dt.callbacks.ModelCheckpoint("memory://bucket/ckpt/{epoch}.safetensors"),
        dt.callbacks.CSVLogger("memory://bucket/log.csv"),
        dt.callbacks.TensorBoard("memory://bucket/logs/"),
    )
    assert [bucket.exists(f"/bucket/ckpt/{epoch}.safetensors") for epoch in (1, 2)] == [True, True]
    assert bucket.cat_file("/bucket/log.csv").decode().splitlines()[0].startswith("epoch,")
    assert len(bucket.cat_file("/bucket/log.csv").decode().splitlines()) == 3
    assert bucket.ls("/bucket/logs/train", detail=False)
    trained(dt.callbacks.CSVLogger("memory://bucket/log.csv", append=True), epochs=1)
    assert len(bucket.cat_file("/bucket/log.csv").decode().splitlines()) == 4
    assert list(tmp_path.iterdir()) == []


def test_a_backup_there_is_gone_on_from_and_removed_at_the_end(bucket):
    class Fails(dt.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise RuntimeError("the machine is taken away")

    with pytest.raises(RuntimeError):
        trained(dt.callbacks.BackupAndRestore("memory://bucket/backup"), Fails(), epochs=4)
    assert [name for name in bucket.find("/bucket/backup") if "ckpt-" in name]
    begun = []

    class Begins(dt.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            begun.append(epoch)

    trained(dt.callbacks.BackupAndRestore("memory://bucket/backup"), Begins(), epochs=4)
    assert begun[0] > 0
    assert bucket.find("/bucket/backup") == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nothing://bucket/m", "save: nothing://bucket/m: .*expected a URL"),
        ("memory://b/m", "pip install -e '..remote.'. in dtrain's clone"),
    ],
)
def test_what_is_missing_is_said_in_a_sentence(url, said, monkeypatch):
    if "memory" in url:
        monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(SpecError, match=said):
        trained().save(url)


def test_what_has_no_path_goes_where_a_job_of_vertex_says(bucket, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIP_MODEL_DIR", "memory://bucket/7/model/")
    monkeypatch.setenv("AIP_TENSORBOARD_LOG_DIR", "memory://bucket/7/logs/")
    model = trained(dt.callbacks.TensorBoard())
    model.save()
    assert bucket.ls("/bucket/7/logs/train", detail=False)
    loaded = dt.load_model("memory://bucket/7/model/")
    assert np.array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
    assert list(tmp_path.iterdir()) == []
    model.save("mine.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.safetensors"]


def test_a_folder_of_this_machine_may_be_the_job_s(tmp_path, monkeypatch):
    monkeypatch.setenv("AIP_MODEL_DIR", str(tmp_path / "model"))
    monkeypatch.setenv("AIP_TENSORBOARD_LOG_DIR", str(tmp_path / "logs"))
    trained(dt.callbacks.TensorBoard()).save()
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert (tmp_path / "logs" / "train").is_dir()


def test_elsewhere_a_model_needs_a_path_and_events_go_to_logs(monkeypatch):
    monkeypatch.delenv("AIP_MODEL_DIR", raising=False)
    monkeypatch.delenv("AIP_TENSORBOARD_LOG_DIR", raising=False)
    with pytest.raises(SpecError, match="no path to save the model at: expected one, or AIP_MODEL_DIR"):
        trained().save()
    assert dt.callbacks.TensorBoard().log_dir == "logs"
