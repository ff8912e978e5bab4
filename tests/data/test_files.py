"""Datasets of files: text lines, records, patterns; hostile bytes."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.data import (
    Dataset,
    FixedLenFeature,
    TextLineDataset,
    TFRecordDataset,
    TFRecordWriter,
    encode_example,
    list_files,
    parse_example,
    parse_single_example,
)
from dtrain.data.examples import decode_example
from dtrain.errors import InputError
from dtrain.formats.tfrecord import masked_crc32c


def masked(crc):
    """The mask of a record's checksum, as TensorFlow's core/lib/hash/crc32c.h has it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def test_checksums_are_masked_crc32c_of_the_standards_test_vectors():
    assert masked_crc32c(b"123456789") == masked(0xE3069283)
    assert masked_crc32c(bytes(32)) == masked(0x8A9136AA)
    assert masked_crc32c(b"\xff" * 32) == masked(0x62A8AB43)
    assert masked_crc32c(b"") == masked(0)


def test_lines_and_patterns(tmp_path):
    for name, text in (("a.txt", "1\n2\r\n3"), ("b.txt", "4\n\n")):
        (tmp_path / name).write_bytes(text.encode())
    names = list_files(f"{tmp_path}/*.txt", shuffle=False)
    assert list(TextLineDataset(names)) == [b"1", b"2", b"3", b"4", b""]
    assert list(TextLineDataset(names, num_parallel_reads=2)) == [b"1", b"4", b"2", b"", b"3"]
    assert sorted(list_files(f"{tmp_path}/*.txt")) == sorted(names)
    overlapping = list_files([f"{tmp_path}/*.txt", f"{tmp_path}/*"], shuffle=False)
    assert list(overlapping) == sorted(2 * list(names))  # as TensorFlow does
    with pytest.raises(InputError, match="no file matches"):
        list_files(f"{tmp_path}/*.csv")
    with pytest.raises(InputError, match="cannot be read"):
        list(TextLineDataset(tmp_path / "missing"))


def test_records_through_a_pipeline(tmp_path):
    with TFRecordWriter(tmp_path / "r") as writer:
        for number in range(5):
            writer.write(encode_example({"x": np.full(2, number, "float32"), "name": f"n{number}"}))
    features = {"x": FixedLenFeature([2], np.float32), "name": FixedLenFeature([], bytes)}
    dataset = (
        TFRecordDataset(str(tmp_path / "r"))
        .map(lambda record: parse_single_example(record, features))
        .batch(3)
    )
    first, second = dataset
    np.testing.assert_array_equal(first["x"], [[0, 0], [1, 1], [2, 2]])
    assert second["name"].tolist() == [b"n3", b"n4"]
    batch = parse_example(list(TFRecordDataset(str(tmp_path / "r"))), features)
    assert batch["x"].shape == (5, 2)
    assert batch["x"].dtype == np.float32
    assert isinstance(TFRecordDataset(str(tmp_path / "r")), Dataset)


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
@pytest.mark.parametrize("damage", ["cut", "none of it"])
def test_damaged_compression(tmp_path, compression, damage):
    with TFRecordWriter(tmp_path / "r", compression) as writer:
        writer.write(bytes(range(256)) * 20)
    whole = (tmp_path / "r").read_bytes()
    (tmp_path / "r").write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"no such format" * 9)
    with pytest.raises(InputError, match=str(tmp_path)):
        list(TFRecordDataset(tmp_path / "r", compression))
    with pytest.raises(InputError, match="compression_type"):
        TFRecordDataset(tmp_path / "r", "LZ4")


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.text(max_size=3),
        st.one_of(
            st.lists(st.binary(max_size=5), min_size=1, max_size=3),
            st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3).map(
                lambda v: np.array(v, np.int64)
            ),
            st.lists(st.floats(width=32, allow_nan=False), max_size=3).map(lambda v: np.array(v, np.float32)),
        ),
        max_size=3,
    )
)
def test_examples_round_trip(features):
    found = decode_example(encode_example(features))
    assert list(found) == sorted(features, key=str)
    for name, value in features.items():
        assert list(found[name]) == list(value)


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=60))
def test_hostile_bytes_are_refused_or_empty(data):
    with suppress(InputError):
        decode_example(data)


def test_a_file_that_is_cut_off_is_named_in_one_sentence(tmp_path):
    with TFRecordWriter(tmp_path / "whole") as writer:
        for _ in range(2):
            writer.write(b"x" * 50)
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:-7])
    end = "cut: the file ends inside the record at byte 66, which claims 50 bytes\\.$"
    with pytest.raises(InputError, match=end):
        list(TFRecordDataset(tmp_path / "cut"))


@pytest.mark.parametrize("filenames", [3, None, ["a", 3]])
def test_what_is_no_path_is_refused(filenames):
    with pytest.raises(InputError, match="filenames: expected a path, a list of paths or a Dataset of them"):
        TFRecordDataset(filenames)
