"""A resume goes on with the files that it began with: one that was replaced meanwhile is named, and refused."""

import os

import numpy as np
import pytest

import dtrain as dt
from dtrain.data import Dataset, NumpyDataset, TextLineDataset, TFRecordDataset, TFRecordWriter
from dtrain.data.record_index.fingerprint import size_and_checksum
from dtrain.data.stores.opening import open_file
from dtrain.errors import CheckpointError
from dtrain.strategies.single import SingleStrategy

ROWS = 12


class PowerCutError(Exception):
    """The process ends here."""


def cut_power(epoch, logs=None):
    if epoch == 1:
        raise PowerCutError


def write(path, first):
    values = range(first, first + ROWS)
    if path.suffix == ".npy":
        np.save(path, np.array(values, "f4"))
    elif path.suffix == ".gz":
        with TFRecordWriter(path, "GZIP") as writer:
            for value in values:
                writer.write(b"%d" % value)
    else:
        path.write_bytes(b"".join(b"%d\n" % value for value in values))


def dataset(path):
    if path.suffix == ".npy":
        rows = NumpyDataset(path)
    elif path.suffix == ".gz":
        rows = TFRecordDataset(path, "GZIP")
    else:
        names = Dataset.list_files(str(path.parent / "*.txt"), seed=1)
        rows = names.interleave(TextLineDataset, cycle_length=2).cache(path.parent / "kept")
    return rows.map(lambda row: (np.float32([float(row)]), np.float32([1]))).batch(4)


def fit(path, *callbacks):
    with SingleStrategy().scope():
        model = dt.Sequential([dt.layers.Dense(1)])
        model.compile(optimizer=dt.optimizers.SGD(0.0001), loss="mse")
        backup = dt.callbacks.BackupAndRestore(path.parent / "backup")
        numbers = {"epochs": 4, "steps_per_epoch": 3 if path.suffix == ".gz" else None, "verbose": 0}
        return model.fit(dataset(path), callbacks=[*callbacks, backup], **numbers)


@pytest.fixture(params=["lines.txt", "rows.npy", "records.gz"])
def begun(request, tmp_path):
    """A file with which a training was interrupted."""
    path = tmp_path / request.param
    write(path, 10)
    with pytest.raises(PowerCutError):
        fit(path, dt.callbacks.LambdaCallback(on_epoch_end=cut_power))
    return path


def test_a_file_that_was_replaced_is_named_and_refused(begun):
    kept = begun.read_bytes()  # a file of gzip has the second in which it was written
    write(begun, 20)
    with pytest.raises(CheckpointError, match=f"{begun} has changed since .*: it .*: put the file back, or"):
        fit(begun)
    begun.write_bytes(kept)
    assert fit(begun).epoch == [0, 1, 2, 3]


@pytest.mark.parametrize("nbytes", [200_000, 3_000_001])
def test_a_file_of_equal_size_and_equal_ends_is_another_one(tmp_path, nbytes):
    """As of records of a fixed size, of which the first and the last ones stay."""
    path = tmp_path / "rows.npy"
    ends = np.zeros(nbytes, "u1")
    ends[70_000:-70_000] = 7
    found = []
    for middle in (7, 8):
        ends[70_000:-70_000] = middle
        path.write_bytes(ends.tobytes())
        os.utime(path, (1, 1))
        found.append((size_and_checksum(str(path)), open_file(str(path)).facts()))
    (told, facts), (told_later, facts_later) = found
    assert told[0] == told_later[0] == nbytes
    assert told != told_later
    assert facts != facts_later


def test_a_file_that_was_copied_is_the_same(begun):
    data = begun.read_bytes()
    begun.unlink()
    begun.write_bytes(data)
    os.utime(begun, (1, 1))
    assert fit(begun).epoch == [0, 1, 2, 3]


def test_a_file_that_grew_is_named_with_both_sizes(tmp_path):
    path = tmp_path / "lines.txt"
    write(path, 10)
    (tmp_path / "others.txt").write_text("1\n")
    with pytest.raises(PowerCutError):
        fit(path, dt.callbacks.LambdaCallback(on_epoch_end=cut_power))
    path.write_bytes(path.read_bytes() + b"99\n")
    with pytest.raises(CheckpointError, match="it had 36 bytes, now 39;"):
        fit(path)
    (tmp_path / "others.txt").write_text("2\n")
    with pytest.raises(CheckpointError, match="and 1 more of its files"):
        fit(path)
