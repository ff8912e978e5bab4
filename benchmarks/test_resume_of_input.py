"""The first batch of a resume at 90% of a large file of records, in order and shuffled, in a new process."""

import subprocess
import sys

import numpy as np
import pytest

from dtrain.formats.tfrecord import masked_crc32c_of_words

PROGRAM = """
import sys, time
import dtrain as dt

path, rows, order = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dt.data  # imports the room, which a resume does not wait for a second time
begun_s = time.perf_counter()
dataset = dt.data.TFRecordDataset(path)
if order == "shuffled":
    dataset = dataset.shuffle(rows, seed=1)
late = dt.data.DatasetIterator(dataset.batch(64).node, (0,), rows * 9 // 10 // 64)
batch = next(late)
print(len(batch), time.perf_counter() - begun_s)
"""


@pytest.mark.parametrize("order", ["in order", "shuffled"])
def test_resume_at_nine_tenths(figure, real, runs, tmp_path, order):
    if not real and order == "in order":
        pytest.skip("a small file is read in the order of a shuffle: --real")
    rows = 10_000_000 if real else 1000
    path = tmp_path / "data.tfrecord"
    form = [("length", "<u8"), ("of_length", "<u4"), ("number", "<u8"), ("of_number", "<u4")]
    made = np.zeros(rows, form)
    made["length"], made["number"] = 8, np.arange(rows)
    made["of_length"] = masked_crc32c_of_words(made["length"][:1])
    made["of_number"] = masked_crc32c_of_words(np.ascontiguousarray(made["number"]))
    made.tofile(path)
    seconds = []
    for _ in range(runs + 1):  # the first one builds the index
        words = [sys.executable, "-c", PROGRAM, str(path), str(rows), order]
        out = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        count, taken_s = out.split()
        seconds.append(float(taken_s))
    assert count == "64"
    note = f"{rows} records; the first time, which builds the index: {seconds[0]:.2f} s"
    figure(f"first batch at 90%, {order}", seconds[1:], "s", "<= 0.2" if real else None, note=note)
