"""The same files through the same pipelines: dtrain gives the elements that tf.data gives, in its order."""

import gzip
import json
import os
import subprocess
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from peers.programs import file_pipelines

import dtrain as dt
from dtrain.data import Dataset
from dtrain.data.record_index.addressing import addressed

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of different lengths, an empty one among them."""
    folder = tmp_path_factory.mktemp("files")
    number = 0
    for name, rows in (("a", 7), ("b", 1), ("c", 0), ("d", 12), ("e", 4)):
        with dt.data.TFRecordWriter(folder / f"{name}.tfrecord") as writer:
            for _ in range(rows):
                features = {"id": number, "values": np.arange(3, dtype="f4") / 7 + number}
                names = {"name": f"row {number}"} if number % 3 else {}
                writer.write(dt.data.encode_example({**features, **names}))
                number += 1
        ends = "\r\n" if name == "d" else "\n"
        lines = ["x" * (row % 6) + f"{name}{row}" * (row % 4 > 0) for row in range(rows)]
        (folder / f"{name}.txt").write_bytes((ends.join(lines) + ends * (name != "e")).encode())
    whole = (folder / "d.tfrecord").read_bytes()
    (folder / "r.gz").write_bytes(gzip.compress(whole))
    (folder / "r.zlib").write_bytes(zlib.compress(whole))
    (folder / "1.csv").write_text('a,b,c\n1,2.5,x\n-7,,"y, ""z"""\n9,1e30,\n3,0.1,"two\nlines"\n')
    (folder / "2.csv").write_text("a,b,c\n5,3,last\n6,,NA\n")
    return folder


@pytest.fixture(scope="module")
def of_tensorflow(folder):
    python = os.environ.get("DTRAIN_TF_PYTHON")
    if python is None:
        pytest.skip("DTRAIN_TF_PYTHON names no Python of an environment with tests/peers/requirements-tf.txt")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, file_pipelines.__file__, folder],
        env=environment | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def of_dtrain(folder):
    names = SimpleNamespace(
        data=dt.data, io=dt.data, length=len, float32="float32", int64="int64", string="string"
    )
    return file_pipelines.pipelines(names, folder)


def read(dataset):
    return json.loads(json.dumps([file_pipelines.plain(each) for each in dataset]))


@pytest.mark.parametrize("by_number", [False, True], ids=["from the front", "by number"])
def test_the_same_elements_in_the_same_order(of_tensorflow, of_dtrain, by_number):
    assert of_dtrain.keys() == of_tensorflow.keys()
    wrong = {}
    for name, dataset in of_dtrain.items():
        node = addressed(dataset.node) if by_number else dataset.node
        found = read(Dataset(node))
        if found != of_tensorflow[name]:
            wrong[name] = found, of_tensorflow[name]
    assert not wrong
