"""Nothing damaged or hostile is believed: it is refused by name, and the checkpoint before it is used."""

import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain import checkpoints
from dtrain.checkpoints.manifest import FileRecord, Manifest
from dtrain.checkpoints.tensor_file import decode_header, header_bytes
from dtrain.errors import CheckpointDamagedError, CheckpointError


@pytest.fixture
def directory(tmp_path):
    for step in (1, 2):
        checkpoints.save(tmp_path, step, {"v": np.full(100, step)}, {"note": "x"}, now=0.0)
    return tmp_path


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


DAMAGES = {
    "flipped data": lambda path: flip(path / "arrays.safetensors", -5),
    "flipped header": lambda path: flip(path / "arrays.safetensors", 20),
    "flipped length": lambda path: flip(path / "arrays.safetensors", 0),
    "flipped manifest": lambda path: flip(path / "manifest.json", -20),
    "cut data": lambda path: (path / "arrays.safetensors").write_bytes(
        (path / "arrays.safetensors").read_bytes()[:-1]
    ),
    "longer data": lambda path: (path / "arrays.safetensors").write_bytes(
        (path / "arrays.safetensors").read_bytes() + b"x"
    ),
    "empty manifest": lambda path: (path / "manifest.json").write_bytes(b""),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "no data": lambda path: (path / "arrays.safetensors").unlink(),
    "a link for data": lambda path: (
        (path / "arrays.safetensors").rename(path / "elsewhere"),
        (path / "arrays.safetensors").symlink_to(path / "elsewhere"),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_the_one_before_a_damaged_one_is_used_and_both_are_named(directory, damage):
    damage(directory / "ckpt-2")
    with checkpoints.open_checkpoint(directory) as checkpoint:
        assert checkpoint.step == 1
        assert checkpoint.warning is not None
        assert str(directory / "ckpt-2") in checkpoint.warning
        assert f"Using {directory / 'ckpt-1'} instead" in checkpoint.warning
        np.testing.assert_array_equal(checkpoint.read("v"), np.full(100, 1))


def test_if_all_are_damaged_nothing_is_used(directory):
    for step in (1, 2):
        flip(directory / f"ckpt-{step}" / "arrays.safetensors", -1)
    with pytest.raises(CheckpointDamagedError, match=r"no checkpoint in .* is sound: .*ckpt-2.*ckpt-1"):
        checkpoints.open_checkpoint(directory)


def test_one_that_was_asked_for_by_name_is_not_replaced_by_another(directory):
    flip(directory / "ckpt-2" / "arrays.safetensors", -1)
    with pytest.raises(CheckpointDamagedError, match=r"ckpt-2 cannot be used: .* checksum is wrong"):
        checkpoints.open_checkpoint(directory / "ckpt-2")


def test_after_going_on_from_the_one_before_the_damaged_one_is_gone(directory):
    flip(directory / "ckpt-2" / "arrays.safetensors", -1)
    checkpoints.save(directory, 1, {"v": np.zeros(3)}, now=0.0)
    assert [found.step for found in checkpoints.list_checkpoints(directory)] == [1]


def write_by_hand(path, header, body=b"", **changes):
    """A checkpoint whose checksums are right, whatever else is not."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + body
    (path / "a.safetensors").write_bytes(data)
    manifest = Manifest(1, False, 0.0, {"a.safetensors": FileRecord(len(data), zlib.crc32(data))})
    (path / "manifest.json").write_bytes(manifest.encode())


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


HOSTILE = {
    "unknown dtype": {"v": entry("PICKLE")},
    "too many bytes for the shape": {"v": entry(shape=(3,))},
    "overlap": {"v": entry(), "w": entry()},
    "overlap in part": {"v": entry(shape=(3,), offsets=(0, 3)), "w": entry(shape=(2,), offsets=(2, 4))},
    "hole": {"v": entry(shape=(1,), offsets=(0, 1)), "w": entry(shape=(1,), offsets=(3, 4))},
    "backwards": {"v": entry(offsets=(4, 0))},
    "negative": {"v": entry(offsets=(-4, 0))},
    "beyond the end": {"v": entry(shape=(8,), offsets=(0, 8))},
    "not to the end": {"v": entry(shape=(2,), offsets=(0, 2))},
    "huge": {"v": entry(shape=(1 << 62, 1 << 62), offsets=(0, 1 << 124))},
    "negative shape": {"v": entry(shape=(-2, -2))},
    "a fraction": {"v": entry(shape=(4.0,))},
    "true": {"v": entry(shape=(True, 4))},
    "three offsets": {"v": entry(offsets=(0, 2, 4))},
    "no fields": {"v": {}},
    "a list": [1, 2],
    "not JSON": b"{]",
    "the same key twice": b'{"v": {}, "v": ' + json.dumps(entry()).encode() + b"}",
    "deep": b"[" * 100_000,
    "not text": b"\xff\xfe\x00",
    "rows missing": {"v@1": entry()},
}


@every_row("header", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_header_is_refused(tmp_path, header):
    write_by_hand(tmp_path / "ckpt-1", header, b"1234")
    with pytest.raises(CheckpointError, match="cannot be used"):
        checkpoints.open_checkpoint(tmp_path / "ckpt-1")


def test_a_good_header_by_hand_is_read(tmp_path):
    write_by_hand(tmp_path / "ckpt-1", {"__metadata__": {"format": "np"}, "v": entry()}, b"1234")
    with checkpoints.open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.read("v").tobytes() == b"1234"


@every_row("name", ["../a.safetensors", "/etc/passwd", "a/b.safetensors", "a.safetensors\x00", ""])
def test_a_manifest_that_points_elsewhere_is_refused(tmp_path, name):
    write_by_hand(tmp_path / "ckpt-1", {}, b"")
    (tmp_path / "ckpt-1" / "manifest.json").write_bytes(
        Manifest(1, False, 0.0, {name: FileRecord(8, 0)}).encode()
    )
    with pytest.raises(CheckpointDamagedError, match="no name of a data file"):
        checkpoints.open_checkpoint(tmp_path)


def test_a_newer_format_is_no_damage(tmp_path):
    write_by_hand(tmp_path / "ckpt-1", {}, b"")
    (tmp_path / "ckpt-1" / "manifest.json").write_bytes(Manifest(1, False, 0.0, {}, format=99).encode())
    with pytest.raises(CheckpointError, match="its format is 99") as raised:
        checkpoints.open_checkpoint(tmp_path)
    assert not isinstance(raised.value, CheckpointDamagedError)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=60), st.integers(0, 1 << 70))
def test_no_bytes_break_the_reader_of_headers(data, file_bytes):
    try:
        header_bytes(data[:8], file_bytes)
        decode_header(data, "a.safetensors", file_bytes)
        Manifest.decode(data)
    except CheckpointError:
        pass


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_no_flipped_bit_of_a_manifest_goes_unseen(data):
    good = Manifest(
        7, True, 1.5, {"a.safetensors": FileRecord(8, 99)}, {"seen": [["worker:0", 1, 2]]}
    ).encode()
    position = data.draw(st.integers(0, len(good) * 8 - 1))
    bad = bytearray(good)
    bad[position // 8] ^= 1 << position % 8
    assert Manifest.decode(good).step == 7
    with pytest.raises(CheckpointDamagedError):
        Manifest.decode(bytes(bad))


def test_nothing_stays_open_after_a_refusal(directory):
    descriptors = Path("/proc/self/fd")
    flip(directory / "ckpt-2" / "arrays.safetensors", -1)
    before = len(list(descriptors.iterdir()))
    checkpoints.open_checkpoint(directory).close()
    assert len(list(descriptors.iterdir())) == before
