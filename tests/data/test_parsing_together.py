"""Examples that are parsed together give what each gives by itself; damage is found where it is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.data import (
    FixedLenFeature,
    TFRecordDataset,
    TFRecordWriter,
    VarLenFeature,
    encode_example,
    parse_example,
    parse_single_example,
)
from dtrain.data.examples import decode_example
from dtrain.data.readers import example_layouts
from dtrain.data.readers.example_layouts import groups_of, spans_of
from dtrain.errors import InputError
from dtrain.formats import tfrecord
from dtrain.formats.tfrecord import masked_crc32c, masked_crc32c_of_each

INTEGERS = st.one_of(st.integers(-3, 300), st.integers(-(2**63), 2**63 - 1))
FEATURES = {
    "x": FixedLenFeature([2], np.float32),
    "y": FixedLenFeature([], np.int64, 7),
    "name": FixedLenFeature([], bytes, b"none"),
    "pair": FixedLenFeature([1, 2], np.int64, [[1, 2]]),
    "many": VarLenFeature(np.int64),
    "words": VarLenFeature(bytes),
}


def examples():
    """Examples in which values differ, and now and then the form."""
    floats = st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2)
    optional = {
        "y": INTEGERS,
        "name": st.binary(max_size=3),
        "pair": st.lists(INTEGERS, min_size=2, max_size=2),
        "many": st.lists(INTEGERS, min_size=1, max_size=4),
        "words": st.lists(st.binary(max_size=2), min_size=1, max_size=2),
        "more": st.binary(max_size=1),
    }
    return st.fixed_dictionaries({"x": floats.map(lambda x: np.array(x, np.float32))}, optional=optional)


def plain(value):
    return [plain(each) for each in value] if isinstance(value, list | np.ndarray) else value


@settings(deadline=None, max_examples=48)
@given(st.lists(examples(), min_size=1, max_size=4), st.data())
def test_a_batch_is_what_its_examples_are_one_by_one(forms, data):
    records = [encode_example(data.draw(st.sampled_from(forms))) for _ in range(12)]
    batch = parse_example(records, FEATURES)
    rows = [parse_single_example(record, FEATURES) for record in records]
    for name in FEATURES:
        assert [plain(value) for value in batch[name]] == [plain(row[name]) for row in rows]
    assert batch["x"].dtype == np.float32
    assert batch["y"].dtype == batch["pair"].dtype == np.int64
    assert batch["pair"].shape == (12, 1, 2)
    assert batch["name"].dtype == object


@settings(deadline=None, max_examples=60)
@given(examples())
def test_the_quick_way_and_the_careful_one_agree(features):
    record = encode_example(features)
    assert spans_of(record) is not None
    quick = {name: plain(value) for name, value in decode_example(record).items()}
    unusual = b"\x0a\x00" + record  # a field that comes twice: the protocol buffer is the same
    assert spans_of(unusual) is None
    careful = {name: plain(value) for name, value in decode_example(unusual).items()}
    assert quick == careful


def test_unusual_forms_and_forms_that_alternate():
    # x of two floats, each in a field of its own: an old form of the protocol buffer, parsed with care
    loose = encode_example({"x": [1.0, 2.0]}).replace(b"\x12\x0a\x0a\x08", b"\x12\x0c")
    assert spans_of(loose) is None
    with pytest.raises(InputError, match="expected"):
        parse_example([loose[:-3]] * 4, {"x": FEATURES["x"]})
    records = [
        encode_example(
            {"x": [1.0, 2.0], "y": number} | ({"name": b"abc"} if number % 2 else {"pair": [3, 1]})
        )
        for number in range(40)
    ]
    assert parse_example(records, FEATURES)["y"].tolist() == list(range(40))
    assert groups_of(records)[1] == []


def test_more_forms_of_one_length_than_are_kept(monkeypatch):
    monkeypatch.setattr(example_layouts, "LAYOUTS_PER_LENGTH", 2)
    records = [encode_example({"x": [1.0, 2.0], f"k{number % 7}": b""}) for number in range(70)]
    for _ in range(3):
        assert parse_example(records, {"x": FEATURES["x"]})["x"].tolist() == [[1, 2]] * 70


def test_a_number_of_too_many_bytes_is_refused_in_a_long_list_too():
    record = encode_example({"x": np.full(30, -1)})
    wrong = record.replace(b"\xff" * 9 + b"\x01", b"\xff" * 10, 1)
    with pytest.raises(InputError, match=r"more than 10 bytes"):
        parse_single_example(wrong, {"x": VarLenFeature(np.int64)})


def test_zero_bytes_at_the_end_of_a_default_value_stay():
    features = {"name": FixedLenFeature([], bytes, b"n\0")}
    assert parse_example([encode_example({"x": 1.0})] * 4, features)["name"].tolist() == [b"n\0"] * 4


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"x": FixedLenFeature([3], np.float32)}, "feature x: expected 3 values, found 2"),
        ({"x": FixedLenFeature([2], np.int64)}, "feature x: expected int64, found float32"),
        ({"z": FixedLenFeature([2], np.int64)}, r"feature z \(int64\) is missing and has no default_value"),
    ],
)
def test_what_is_wrong_in_all_of_a_form_is_named(features, message):
    with pytest.raises(InputError, match=message):
        parse_example([encode_example({"x": [1.0, 2.0]})] * 5, features)
    assert {name: value.shape for name, value in parse_example([], {"x": FEATURES["x"]}).items()} == {
        "x": (0, 2)
    }


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from([0, 1, 8, 15, 16, 17, 500, 1023, 1024, 1025, 1040, 2100, 70000]), max_size=9))
def test_checksums_of_parts_together_are_those_of_each(lengths):
    parts = [bytes([number]) * length for number, length in enumerate(lengths)] * 4
    expected = [masked_crc32c(part) for part in parts]
    assert masked_crc32c_of_each(parts).tolist() == expected


@pytest.mark.parametrize("chunk", [13, 100, 1 << 18])
@pytest.mark.parametrize("damaged", [0, 5, 9])
def test_records_before_the_damage_are_yielded(tmp_path, monkeypatch, chunk, damaged):
    monkeypatch.setattr(tfrecord, "CHUNK_BYTES", chunk)
    with TFRecordWriter(tmp_path / "x") as writer:
        for number in range(10):
            writer.write(bytes([number]) * 30)
    data = bytearray((tmp_path / "x").read_bytes())
    for place, message in ((20, "the data of the record"), (3, "the length of the record")):
        wrong = bytearray(data)
        wrong[46 * damaged + place] ^= 4
        (tmp_path / "x").write_bytes(wrong)
        rows = iter(TFRecordDataset(str(tmp_path / "x")))
        assert [next(rows)[0] for _ in range(damaged)] == list(range(damaged))
        with pytest.raises(InputError, match=f"{message} at byte {46 * damaged} "):
            next(rows)
    (tmp_path / "x").write_bytes(data[: 46 * damaged + 20])
    with pytest.raises(InputError, match=f"ends inside the record at byte {46 * damaged}"):
        list(TFRecordDataset(str(tmp_path / "x")))
