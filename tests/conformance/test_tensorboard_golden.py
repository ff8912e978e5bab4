"""Event files hold, byte for byte, what tf.summary writes: golden file k_tensorboard."""

import numpy as np
import pytest
from conformance.golden import golden_file, load_json
from conformance.left_out import LEFT_OUT

from dtrain.data.readers.rows import TfRecords
from dtrain.formats import event_files
from dtrain.formats.event_files import SummaryWriter
from dtrain.formats.tfrecord import masked_crc32c

GOLDEN = load_json("k_tensorboard.json")
RAW = {(each["tag"], each["step"]): each for each in GOLDEN["written"]}
REASONS = LEFT_OUT["k_tensorboard.json"]


EVENTS = [
    pytest.param(name, event, id=f"{name.split('/')[0]}-{event['index']}")
    for name, file in GOLDEN["files"].items()
    for event in file["events"]
]


def record(name, event):
    return list(TfRecords().read(str(golden_file(name))))[event["index"]]


@pytest.mark.parametrize(("name", "event"), EVENTS)
def test_records_are_read(name, event):
    found, framing = record(name, event), event["framing"]
    assert len(found) == framing["length"]
    assert masked_crc32c(found) == framing["masked_crc_data"]
    assert masked_crc32c(len(found).to_bytes(8, "little")) == framing["masked_crc_length"]


@pytest.mark.parametrize(("name", "event"), [each for each in EVENTS if each.values[1]["what"] == "summary"])
def test_events_are_written(tmp_path, monkeypatch, name, event):
    plugins = {value["plugin"] for value in event["values"]}
    for part, reason in REASONS.items():
        if part in plugins or name.startswith(f"{part}/"):
            pytest.skip(reason)
    monkeypatch.setattr(event_files.time, "time", lambda: event["wall_time"])
    with SummaryWriter(tmp_path) as writer:
        for value in event["values"]:
            write(writer, value, event["step"])
    first, *written = TfRecords().read(str(next(tmp_path.iterdir())))
    assert written == [record(name, event)]
    assert record(name, {"index": 0})[9:].startswith(first[9:]), "the form's version"


def write(writer, value, step):
    """What TensorFlow's writer was told."""
    tag, found, description = value["tag"], value["value"], value["description"]
    if value["plugin"] == "scalars":
        writer.scalar(tag, float(found), step, description)
    elif value["plugin"] == "text":
        writer.text(tag, np.reshape(found, value["shape"]).tolist(), step, description)
    else:
        raw = RAW[tag, step]
        writer.histogram(tag, raw["value"], step, raw["buckets"], description)
