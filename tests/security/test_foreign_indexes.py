"""An index or a cache that another user has put beside data: it is not believed, and none that is damaged is."""

import os
from pathlib import Path

import numpy as np
import pytest

import dtrain as dt
from dtrain.data.cache_file import built_once
from dtrain.data.readers.rows import TextLines
from dtrain.data.record_index.addressing import addressed
from dtrain.data.record_index.index_files import OFFSET_BYTES, kept_index, read_index, write_index
from dtrain.data.stores.local import OpenFile
from dtrain.errors import InputError
from dtrain.formats.bounded_reading import is_trusted
from dtrain.formats.tfrecord import records_in

LINE = b"x" * 99 + b"\n"
LINES = 2000  # more than a file has whose index is not kept
OTHER = 54242


class Facts:
    """What the system says of a file, with other owners than this process could give it."""

    def __init__(self, monkeypatch, owners):
        self._owners, self._fstat = owners, os.fstat
        monkeypatch.setattr(os, "fstat", self.fstat)
        monkeypatch.setattr(os, "geteuid", lambda: OTHER + 1)

    def fstat(self, descriptor):
        found = self._fstat(descriptor)
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        fields = list(found)
        fields[4] = self._owners.get(name, found.st_uid)
        return os.stat_result(fields, {"st_mtime_ns": found.st_mtime_ns, "st_mtime": found.st_mtime})


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.txt"
    path.write_bytes(LINE * LINES)
    facts = OpenFile(str(path)).facts()
    with open(tmp_path / "data.txt.dtidx", "wb") as file:
        write_index(file.write, "lines", facts, np.array([0, 100, 200, len(LINE) * LINES], np.uint64))
    return path


def test_who_may_have_written_what_nobody_has_named(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    of = {uid: os.stat_result((0o644, 0, 0, 1, uid, 0, 0, 0, 0, 0)) for uid in (0, 7, 8, 9)}
    assert [uid for uid, facts in of.items() if is_trusted(facts)] == [0, 7]
    assert is_trusted(of[8], of[0], of[8])
    assert not is_trusted(of[8], of[0], of[9])


def test_an_index_of_another_user_is_none_unless_the_data_are_that_users(data, monkeypatch):
    assert len(kept_index(str(data), TextLines())) == 3
    Facts(monkeypatch, {"data.txt.dtidx": OTHER, "data.txt": OTHER + 1})
    assert kept_index(str(data), TextLines()) is None
    assert addressed(dt.data.TextLineDataset(str(data)).node).cardinality == LINES
    monkeypatch.undo()
    Facts(monkeypatch, {"data.txt.dtidx": OTHER, "data.txt": OTHER})
    assert kept_index(str(data), TextLines()) is not None


def test_a_cache_of_another_user_is_named_and_not_read(tmp_path, monkeypatch):
    path = tmp_path / "kept"
    elements = [np.arange(3)]
    built_once(path, "f", lambda: elements)
    assert len(built_once(path, "f", lambda: elements)) == 1
    Facts(monkeypatch, {"kept": OTHER})
    with pytest.raises(InputError, match=f"written by another user \\(uid {OTHER}\\)"):
        built_once(path, "f", lambda: elements)
    with pytest.raises(InputError, match="written by another user"):
        built_once(path, "of another pipeline", lambda: elements)


@pytest.mark.parametrize(
    ("number", "offset"), [(0, 150), (1, 250), (2, 0), (3, 100 * LINES + 1), (3, 1 << 63)]
)
def test_an_index_whose_offsets_do_not_ascend_to_the_end_is_none(data, number, offset):
    path = data.with_name("data.txt.dtidx")
    facts = OpenFile(str(data)).facts()
    assert read_index(path, "lines", facts) is not None
    whole = bytearray(path.read_bytes())
    place = len(whole) - (4 - number) * OFFSET_BYTES
    whole[place : place + OFFSET_BYTES] = offset.to_bytes(OFFSET_BYTES, "little")
    path.write_bytes(whole)
    assert read_index(path, "lines", facts) is None


def test_a_record_of_too_few_bytes_is_damage():
    for nbytes in range(16):
        with pytest.raises(InputError, match=r"x: the length of the record at byte 7 is damaged"):
            records_in([b"\0" * nbytes], [7], "x")
