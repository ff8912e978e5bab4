"""Files that are damaged, or that say what a model never said: refused with one message, and nothing of them
is run.
"""

import json
import os
import pickle
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dtrain as dt
from dtrain.errors import CheckpointError
from dtrain.saving.archive import read_archive, write_archive
from dtrain.strategies.single import SingleStrategy

QUICK = settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def alone():
    with SingleStrategy().scope():
        yield


@pytest.fixture
def path(tmp_path):
    model = dt.Sequential(
        [
            dt.layers.Dense(3, "relu", kernel_regularizer=dt.regularizers.L2(), input_shape=(2,)),
            dt.layers.Dense(1),
        ]
    )
    model.compile(
        dt.optimizers.Adam(dt.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)),
        dt.losses.Huber(),
        metrics=["mae"],
    )
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    model.save(tmp_path / "model")
    return tmp_path / "model"


def refused(path, said=None):
    with pytest.raises(CheckpointError, match=said) as raised:
        dt.load_model(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


@QUICK
@given(data=st.data())
def test_a_changed_byte_is_noticed(path, data):
    whole = path.read_bytes()
    position = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[position] ^ data.draw(st.integers(1, 255))
    damaged = path.with_name("damaged")
    damaged.write_bytes(whole[:position] + bytes([flipped]) + whole[position + 1 :])
    refused(damaged)
    with pytest.raises(CheckpointError):
        dt.Sequential([dt.layers.Dense(3, input_shape=(2,)), dt.layers.Dense(1)]).load_weights(damaged)


@QUICK
@given(data=st.data())
def test_a_cut_or_longer_file_is_noticed(path, data):
    whole = path.read_bytes()
    damaged = path.with_name("damaged")
    if data.draw(st.booleans()):
        damaged.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    else:
        damaged.write_bytes(whole + data.draw(st.binary(min_size=1, max_size=20)))
    refused(damaged)


@QUICK
@given(content=st.binary(max_size=200))
def test_any_bytes_are_refused(tmp_path, content):
    (tmp_path / "any").write_bytes(content)
    refused(tmp_path / "any")


def rewritten(path, change):
    """The file with another description, and a checksum that fits it: what an attacker would write."""
    archive = read_archive(path)
    description = json.loads(archive.description)
    text = change(description)
    hostile = path.with_name("hostile")
    write_archive(hostile, archive.arrays, text if isinstance(text, str) else json.dumps(description))
    return hostile


def places(value, path=()):
    """Every place in JSON data."""
    yield path
    for key, each in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from places(each, (*path, key))


HOSTILE = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        10**9,
        10**30,
        -(10**30),
        1e308,
        0.5,
        "",
        "x",
        "os.system",
        [],
        {},
        [[[]]],
        {"class_name": "eval"},
        ["x"] * 9,
    ]
)


@settings(QUICK, max_examples=80)
@given(data=st.data())
def test_a_changed_description_makes_a_model_or_one_message(path, data):
    def change(description):
        where = data.draw(st.sampled_from([each for each in places(description) if each]))
        target = description
        for key in where[:-1]:
            target = target[key]
        target[where[-1]] = data.draw(HOSTILE)

    hostile = rewritten(path, change)
    try:
        model = dt.load_model(hostile)
    except CheckpointError:
        refused(hostile)
    else:
        assert sum(value.size for value in model.get_weights()) == 13


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["model"].update(class_name="os.system"), "unknown model 'os.system'"),
        (lambda d: layer(d, 1).update(class_name="subprocess.Popen"), "unknown layer 'subprocess.Popen'"),
        (
            lambda d: layer(d, 1)["config"].update(kernel_initializer={"class_name": "exec", "config": {}}),
            "unknown initializer 'exec'",
        ),
        (
            lambda d: layer(d, 1)["config"].update(kernel_regularizer={"class_name": "exec", "config": {}}),
            "unknown regularizer 'exec'",
        ),
        (lambda d: layer(d, 1)["config"].update(activation="lambda x: x"), "unknown activation"),
        (lambda d: layer(d, 1)["config"].update(units=10**12), "dense/kernel is float32"),
        (lambda d: layer(d, 1)["config"].update(units=-1), "units"),
        (lambda d: layer(d, 1)["config"].update(nonsense=1), "its arguments do not fit"),
        (
            lambda d: d["model"]["config"]["steps"][1].update(inputs=[[5, 0]]),
            "not all outputs of earlier steps",
        ),
        (lambda d: d["model"]["config"].update(outputs=[[0, 7]]), "cannot be used"),
        (
            lambda d: d["model"]["compiled"].update(loss={"class_name": "exec", "config": {}}),
            "unknown loss 'exec'",
        ),
        (lambda d: d["model"]["compiled"]["optimizer"].update(class_name="exec"), "unknown optimizer 'exec'"),
        (lambda d: d.update(optimizer_step=-5), "its optimizer state: expected"),
        (lambda d: d.update(optimizer_step="5"), "not one of a model"),
        (lambda d: json.dumps(d).replace('"delta": 1.0', '"delta": NaN'), "not one of a model"),
        (lambda d: "[" * 100_000 + "]" * 100_000, "not one of a model"),
        (
            lambda d: '{"kind":"model","model":' + '{"class_name":' * 20_000 + "1" + "}" * 20_000 + "}",
            "not one of a model",
        ),
        (lambda d: "9" * 10_000, "not one of a model"),
        (lambda d: "", "weights and no model"),
    ],
)
def test_what_a_model_never_said(path, change, said):
    refused(rewritten(path, change), said)


def layer(description, number):
    return description["model"]["config"]["layers"][number]


def hand_written(path, header, data=b""):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}, b""),
        ({"a": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 8]}}, b"12345678"),
        ({"a": {"dtype": "F32", "shape": [0, 10**18, 10**18], "data_offsets": [0, 0]}}, b""),
        ({"a": {"dtype": "F32", "shape": [1] * 1000, "data_offsets": [0, 4]}}, b"1234"),
        ({"a": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}}, b"12345678"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
        ({"__metadata__": {"format": 7}}, b""),
        ({"__metadata__": {"format": "dtrain", "version": "1", "description": "{}"}}, b""),
        ({"__metadata__": "../../etc/passwd"}, b""),
    ],
)
def test_nothing_is_as_large_as_a_file_claims(tmp_path, header, data):
    tracemalloc.start()
    try:
        refused(hand_written(tmp_path / "bomb", header, data))
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_giant_length_is_refused(tmp_path):
    (tmp_path / "bomb").write_bytes((2**63).to_bytes(8, "little") + b"{}")
    refused(tmp_path / "bomb", "not the length of a header")


def test_a_version_of_the_future_is_named(path):
    whole = path.read_bytes().replace(b'"version":"1"', b'"version":"2"')
    start = whole.index(b'"crc32":"') + 9
    blank = whole[:start] + b"0" * 8 + whole[start + 8 :]
    path.write_bytes(whole[:start] + b"%08x" % zlib.crc32(blank) + whole[start + 8 :])
    refused(path, "newer dtrain")


class Trap:
    """What a pickle would run."""

    def __reduce__(self):
        return os.mkdir, ("trapped",)


def test_a_pickle_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").write_bytes(pickle.dumps(Trap()))
    refused(tmp_path / "model")
    np.save(tmp_path / "model", np.array([Trap()], object), allow_pickle=True)
    refused(tmp_path / "model.npy", ".npy file")
    assert not (tmp_path / "trapped").exists()


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "expected a file")
    refused("/dev/zero", "expected a file")
