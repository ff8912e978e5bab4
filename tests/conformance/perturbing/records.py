"""TFRecord files of other Examples: file k."""

import struct
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from conformance.damage import damaged
from conformance.perturbing.values import array_of, error_of, plain

X_LENGTH = 5
DROPPED = 4
"""This record is left out, so that there are fewer."""


def records(golden, draw, folder):
    """Other values, a longer x, one record fewer; the files are written into `folder`."""
    kept = [record for index, record in enumerate(golden["records"]) if index != DROPPED]
    payloads = []
    for index, record in enumerate(kept):
        features = record["features"]
        features["id"]["value"] = [100 + 7 * index]
        features["name"]["value"] = [f"other {index}".encode().hex()]
        features["x"]["value"] = plain(draw.normal(X_LENGTH))
        payloads.append(_example(features).SerializeToString(deterministic=True))
    for name, file in golden["files"].items():
        with tf.io.TFRecordWriter(str(folder / name), options=file["compression"] or "") as writer:
            for payload in payloads:
                writer.write(payload)
        file.update(bytes=(folder / name).stat().st_size, records=len(payloads))
        if not file["compression"]:
            whole = (folder / name).read_bytes()
    _framing(kept, payloads, whole)
    golden["records"] = kept
    features = _features(X_LENGTH)
    golden["parsed"] = [_parsed(tf.io.parse_single_example(payload, features)) for payload in payloads]
    for case in golden["corrupt"]:
        _damaged(case, whole, payloads)
    return golden, {}


def _features(length):
    return {
        "id": tf.io.FixedLenFeature([], tf.int64),
        "x": tf.io.FixedLenFeature([length], tf.float32),
        "name": tf.io.FixedLenFeature([], tf.string),
        "missing": tf.io.FixedLenFeature([2], tf.int64, default_value=[8, 9]),
        "var": tf.io.VarLenFeature(tf.int64),
    }


def _example(features):
    example = tf.train.Example()
    for name, feature in features.items():
        made = example.features.feature[name]
        if feature["kind"] == "bytes_list":
            made.bytes_list.value.extend(bytes.fromhex(value) for value in feature["value"])
        elif feature["kind"] == "int64_list":
            made.int64_list.value.extend(feature["value"])
        elif feature["kind"] == "float_list":
            made.float_list.value.extend(array_of(feature["value"]))
        if feature["kind"] and not feature["value"]:
            getattr(made, feature["kind"]).SetInParent()
    return example


def _framing(kept, payloads, whole):
    at = 0
    for record, payload in zip(kept, payloads, strict=True):
        length, check = struct.unpack_from("<QI", whole, at)
        (data_check,) = struct.unpack_from("<I", whole, at + 12 + length)
        at += 16 + length
        record.update(
            length=length, masked_crc_length=check, masked_crc_data=data_check, payload_hex=payload.hex()
        )


def _parsed(found):
    var = tf.sparse.to_dense(found.pop("var")).numpy()
    values = {name: plain(value) for name, value in found.items()}
    values["x"] = [float(value) for value in np.asarray(found["x"])]
    return {**values, "name": values["name"].decode(), "var": plain(var)}


def _damaged(case, whole, payloads):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        if case["case"] != "no_such_file":
            path.write_bytes(damaged(case["case"], whole, len(payloads[0]), len(payloads[1])))
        count = 0
        case["error"] = None
        try:
            for _ in tf.data.TFRecordDataset(str(path)):
                count += 1
        except Exception as error:
            case["error"] = error_of(error)
        case["records_read_before_end"] = count
