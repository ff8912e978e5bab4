"""What a resume in the middle of an iteration reads: its own batches, wherever in a large file they are."""

import numpy as np
import pytest

from dtrain.data import Dataset, DatasetIterator, NumpyDataset, TextLineDataset, TFRecordDataset
from dtrain.data.record_index import index_files
from dtrain.data.record_index.addressing import addressed
from dtrain.data.stores import opening
from dtrain.data.stores.local import BLOCK_BYTES, SAMPLE_BYTES, SAMPLES, OpenFile
from dtrain.formats.tfrecord import masked_crc32c_of_words

ROWS = 300_000
PLACE = ROWS * 9 // 10
BATCH = 30


def records(path):
    """A file of records of 8 bytes, their numbers."""
    made = np.zeros(ROWS, [("length", "<u8"), ("of_length", "<u4"), ("number", "<u8"), ("of_number", "<u4")])
    made["length"], made["number"] = 8, np.arange(ROWS)
    made["of_length"] = masked_crc32c_of_words(made["length"][:1])
    made["of_number"] = masked_crc32c_of_words(np.ascontiguousarray(made["number"]))
    made.tofile(path)
    return TFRecordDataset(str(path)).map(lambda data: np.frombuffer(data, "<u8")[0]), made.itemsize


def lines(path):
    path.write_bytes(b"".join(b"%09d\n" % number for number in range(ROWS)))
    return TextLineDataset(str(path)).map(np.int64), 10


def arrays(path):
    with open(path, "wb") as file:
        np.save(file, np.arange(ROWS))
    return NumpyDataset(str(path)), 8


@pytest.fixture
def read(monkeypatch):
    """The bytes that are read of files of data, by range."""
    monkeypatch.delenv("DTRAIN_RUN_DIR", raising=False)
    ranges, whole = [], OpenFile.read

    def noted(self, start, nbytes):
        ranges.append(nbytes)
        return whole(self, start, nbytes)

    monkeypatch.setattr(OpenFile, "read", noted)
    return ranges


def as_a_new_process(ranges):
    index_files._known.clear()
    opening._opened.clear()
    ranges.clear()


@pytest.mark.parametrize("kind", [records, lines, arrays], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_resume_at_nine_tenths_reads_its_batch_and_no_row_before(tmp_path, read, kind, shuffled):
    rows, row_bytes = kind(tmp_path / "data")
    addressed(rows.node)  # the index, if the kind has one
    as_a_new_process(read)
    parsed = []

    def noted(row):
        parsed.append(row)
        return row

    order = rows.shuffle(ROWS, seed=1) if shuffled else rows
    late = DatasetIterator(order.map(noted).batch(BATCH).node, (0,), PLACE // BATCH)
    found = next(late)
    assert found.tolist() == [int(each) for each in parsed]
    assert len(parsed) == BATCH
    assert shuffled or found[0] == PLACE
    known_again_by = 2 * BLOCK_BYTES + SAMPLES * SAMPLE_BYTES  # its ends and samples, maybe twice
    assert sum(read) <= 2 * known_again_by + BATCH * row_bytes
    read.clear()
    next(late)
    assert sum(read) == BATCH * row_bytes


def test_a_resume_computes_nothing_of_a_shuffle_before_it():
    asked = []

    class Items:
        def __len__(self):
            return 10_000_000

        def __getitem__(self, index):
            asked.append(index)
            return np.int64(index)

    dataset = Dataset.random_access(Items()).shuffle(10_000_000, seed=3).batch(BATCH).repeat(2)
    late = next(DatasetIterator(dataset.node, (0,), 9_000_000 // BATCH))
    assert late.tolist() == asked
    assert len(asked) == BATCH
