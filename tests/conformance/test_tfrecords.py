"""TFRecord files and Examples are read and written as by TensorFlow: golden file k."""

import numpy as np
import pytest
from conformance.damage import damaged
from conformance.golden import golden_file, load_json
from row_by_row import every_row

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
from dtrain.errors import InputError
from dtrain.formats.tfrecord import masked_crc32c

GOLDEN = load_json("k_examples.json")
RECORDS = GOLDEN["records"]
PAYLOADS = [bytes.fromhex(record["payload_hex"]) for record in RECORDS]
PLAIN = next(name for name, file in GOLDEN["files"].items() if not file["compression"])
X_LENGTH = len(GOLDEN["parsed"][0]["x"])
FEATURES = {
    "id": FixedLenFeature([], "int64"),
    "x": FixedLenFeature([X_LENGTH], "float32"),
    "name": FixedLenFeature([], "string"),
    "missing": FixedLenFeature([2], "int64", default_value=[8, 9]),
    "var": VarLenFeature("int64"),
}


def feature_values(feature):
    if feature["kind"] == "bytes_list":
        return [bytes.fromhex(value) for value in feature["value"]]
    if feature["kind"] == "int64_list":
        return np.array(feature["value"], "int64")
    return np.array(feature["value"], "float64").astype("float32")


def assert_same(found, expected):
    if isinstance(expected, list):
        assert found == expected
    else:
        np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("name", GOLDEN["files"])
def test_files_are_read(name):
    dataset = TFRecordDataset(golden_file(name), GOLDEN["files"][name]["compression"])
    assert list(dataset) == PAYLOADS


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_files_are_written(tmp_path, compression):
    with TFRecordWriter(tmp_path / "file", compression) as writer:
        for payload in PAYLOADS:
            writer.write(payload)
    assert list(TFRecordDataset(tmp_path / "file", compression)) == PAYLOADS
    if not compression:
        assert (tmp_path / "file").read_bytes() == golden_file(PLAIN).read_bytes()


@every_row("index", range(len(RECORDS)))
def test_framing_and_features(index):
    record, payload = RECORDS[index], PAYLOADS[index]
    assert len(payload) == record["length"]
    assert masked_crc32c(len(payload).to_bytes(8, "little")) == record["masked_crc_length"]
    assert masked_crc32c(payload) == record["masked_crc_data"]
    found = decode_example(payload)
    assert sorted(found) == sorted(record["features"])
    for name, feature in record["features"].items():
        if feature["kind"] is None:
            assert found[name] is None
        else:
            assert_same(found[name], feature_values(feature))
    complete = {name: found[name] for name, feature in record["features"].items() if len(feature["value"])}
    for name, value in decode_example(encode_example(complete)).items():
        assert_same(value, complete[name])
    if len(complete) == len(found):
        assert encode_example(found) == payload


@every_row("index", range(len(RECORDS)))
def test_examples_are_parsed(index):
    expected = GOLDEN["parsed"][index]
    for found in (
        parse_single_example(PAYLOADS[index], FEATURES),
        {name: value[0] for name, value in parse_example([PAYLOADS[index]], FEATURES).items()},
    ):
        assert found["id"] == expected["id"]
        assert found["name"] == expected["name"].encode()
        np.testing.assert_array_equal(found["x"], np.array(expected["x"], "float64").astype("float32"))
        np.testing.assert_array_equal(found["missing"], expected["missing"])
        np.testing.assert_array_equal(found["var"], expected["var"])
        assert (found["x"].dtype, found["var"].dtype) == ("float32", "int64")


@pytest.mark.parametrize("case", GOLDEN["parse_errors"], ids=lambda case: case["case"])
def test_what_tensorflow_refuses_to_parse_is_refused(case):
    feature = {
        "required_missing": {"nope": FixedLenFeature([], "int64")},
        "wrong_type": {"id": FixedLenFeature([], "float32")},
        "wrong_length": {"x": FixedLenFeature([X_LENGTH + 1], "float32")},
    }[case["case"]]
    with pytest.raises(InputError, match=f"feature {next(iter(feature))}"):
        parse_single_example(PAYLOADS[0], feature)


@every_row("case", GOLDEN["corrupt"], ids=lambda case: case["case"])
def test_damaged_files(case, tmp_path):
    path = tmp_path / "file"
    if case["case"] != "no_such_file":
        lengths = [record["length"] for record in RECORDS[:2]]
        path.write_bytes(damaged(case["case"], golden_file(PLAIN).read_bytes(), *lengths))
    found = []
    if case["error"] is None:
        found += TFRecordDataset(path)
    else:
        with pytest.raises(InputError, match=str(path)):
            found.extend(TFRecordDataset(path))
    assert found == PAYLOADS[: case["records_read_before_end"]]
