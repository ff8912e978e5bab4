"""What is saved is what is read: whole, by rows, in parts, by other libraries; and which checkpoint is the
newest.
"""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row
from safetensors.numpy import load_file

from dtrain import checkpoints
from dtrain.checkpoints import CheckpointWriter, TensorEntry, part_key, slot_key
from dtrain.errors import CheckpointError
from dtrain.variables import DTYPE_BYTES
from dtrain.variables.partitioning import row_offsets, split_rows

ARRAYS = {
    "dense/kernel": np.arange(12, dtype=np.float32).reshape(4, 3),
    "dense/bias": np.ones(3),
    "step": np.array(7, np.int64),
    "mask": np.array([True, False]),
    "empty": np.zeros((0, 5), np.float16),
    slot_key("dense/kernel", "momentum"): np.full((4, 3), 2, np.float32),
}


def test_what_is_saved_is_what_is_read(tmp_path):
    checkpoints.save(tmp_path, 12, ARRAYS, {"seen": [[("worker:0", 1, 2)]]}, final=True, now=5.0)
    with checkpoints.open_checkpoint(tmp_path) as checkpoint:
        assert (checkpoint.step, checkpoint.manifest.final, checkpoint.manifest.written_s) == (12, True, 5.0)
        assert checkpoint.manifest.extra == {"seen": [[["worker:0", 1, 2]]]}
        assert checkpoint.warning is None
        for name, array in ARRAYS.items():
            read = checkpoint.read(name)
            np.testing.assert_array_equal(read, array)
            assert (read.dtype, read.shape, read.flags.writeable) == (array.dtype, array.shape, True)
        assert set(checkpoint.variables) == set(ARRAYS) - {"dense/kernel/.slots/momentum"}
        assert checkpoint.variables["dense/kernel"].shape == (4, 3)


LAYOUTS = {
    "transposed": lambda array: array.T.copy().T,
    "fortran": np.asfortranarray,
    "strided": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "reversed": lambda array: array[::-1].copy()[::-1],
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
}


@every_row("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_safetensors_library_reads_our_files(tmp_path, layout):
    arrays = {**ARRAYS, "other": layout(np.arange(12, dtype=np.float32).reshape(4, 3))}
    path = checkpoints.save(tmp_path, 0, arrays, now=0.0)
    theirs = load_file(path / "arrays.safetensors")
    assert set(theirs) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(theirs[name], array)
    with checkpoints.open_checkpoint(path) as checkpoint:
        np.testing.assert_array_equal(checkpoint.read("other"), arrays["other"])


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(0, 9),
    columns=st.integers(0, 3),
    dtype=st.sampled_from(sorted(DTYPE_BYTES)),
    shards=st.integers(1, 5),
    files=st.integers(1, 3),
    block=st.integers(1, 50),
    data=st.data(),
)
def test_any_split_into_parts_files_and_blocks_reads_back(
    tmp_path_factory, rows, columns, dtype, shards, files, block, data
):
    whole = (np.arange(rows * columns).reshape(rows, columns) % 2).astype(dtype)
    sizes = split_rows(rows, min(shards, max(rows, 1)))
    parts = list(zip(row_offsets(sizes), sizes, strict=True))
    with CheckpointWriter(tmp_path_factory.mktemp("ck"), 3, now=0.0) as writer:
        for number in range(files):
            mine = parts[number::files]
            entries = [TensorEntry(part_key("v", start), dtype, (count, columns)) for start, count in mine]
            with writer.data_file(f"server-{number}.safetensors", entries) as file:
                stream = b"".join(whole[start : start + count].tobytes() for start, count in mine)
                for position in range(0, len(stream), block):
                    file.write(stream[position : position + block])
        path = writer.commit()
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    with checkpoints.open_checkpoint(path) as checkpoint:
        assert checkpoint.variables["v"].shape == whole.shape
        np.testing.assert_array_equal(checkpoint.read("v"), whole)
        np.testing.assert_array_equal(checkpoint.read_rows("v", start, stop), whole[start:stop])


def test_a_scalar_may_be_a_part(tmp_path):
    checkpoints.save(tmp_path, 0, {part_key("scale", 0): np.array(3.0)}, now=0.0)
    with checkpoints.open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.read("scale") == 3.0
        assert checkpoint.read_rows("scale", 0, 1).shape == ()


def test_what_is_not_there_is_named(tmp_path):
    checkpoints.save(tmp_path, 0, {"a": np.zeros(3)}, now=0.0)
    with checkpoints.open_checkpoint(tmp_path) as checkpoint:
        with pytest.raises(CheckpointError, match="holds no 'b'; it holds a"):
            checkpoint.read("b")
        with pytest.raises(CheckpointError, match="has rows 0 to 3 of a; asked for 2 to 4"):
            checkpoint.read_rows("a", 2, 4)
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        checkpoints.open_checkpoint(tmp_path / "elsewhere")


@every_row(
    "arrays, message",
    [
        ({"v@1": np.zeros(2)}, "v@1 follows row 0"),
        ({"v@0": np.zeros(2), "v@3": np.zeros(2)}, "v@3 follows row 2"),
        ({"v@0": np.zeros(2), "v@1": np.zeros(2)}, "v@1 follows row 2"),
        ({"v@0": np.zeros(2), "v@2": np.zeros(2, np.float32)}, "expected rows like"),
        ({"v@0": np.zeros((2, 2)), "v@2": np.zeros((2, 3))}, "expected rows like"),
        ({"v@0": np.zeros(()), "v@1": np.zeros(())}, "expected rows like"),
        ({"v@0": np.zeros(2), "v": np.zeros(2)}, "follows row 2"),
        ({"v": np.zeros(2, complex)}, "dtype complex128"),
        ({"__metadata__": np.zeros(2)}, "two arrays called '__metadata__'"),
    ],
)
def test_arrays_that_do_not_fit_together_are_not_saved(tmp_path, arrays, message):
    with pytest.raises(CheckpointError, match=message):
        checkpoints.save(tmp_path, 0, arrays, now=0.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("blocks", [[b"1234"], [b"12345678", b"9"]])
def test_more_or_fewer_bytes_than_promised_are_not_saved(tmp_path, blocks):
    def write() -> None:
        with CheckpointWriter(tmp_path, 0, now=0.0) as writer:
            with writer.data_file("a.safetensors", [TensorEntry("v", "float64", (1,))]) as file:
                for block in blocks:
                    file.write(block)
            writer.commit()

    with pytest.raises(CheckpointError, match="its arrays have"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_extra_state_must_be_json(tmp_path):
    with pytest.raises(CheckpointError, match=r"extra state .* is not JSON"):
        checkpoints.save(tmp_path, 0, {}, {"state": object()}, now=0.0)


def test_names_of_files_are_no_paths(tmp_path):
    with CheckpointWriter(tmp_path, 0, now=0.0) as writer:
        for name in ("../a.safetensors", "/a.safetensors", "a/b.safetensors", ".a.safetensors", "a.txt"):
            with pytest.raises(CheckpointError, match="no name of a data file"), writer.data_file(name, []):
                pass


def test_the_highest_step_is_the_newest(tmp_path):
    for step in (0, 5, 10, 100):
        checkpoints.save(tmp_path, step, {"v": np.array(step)}, now=0.0)
    assert [found.step for found in checkpoints.list_checkpoints(tmp_path)] == [0, 5, 10, 100]
    newest = checkpoints.latest(tmp_path)
    assert newest is not None
    assert newest.path == tmp_path / "ckpt-100"
    assert checkpoints.latest(tmp_path / "nowhere") is None


def test_writing_a_step_sets_aside_later_ones(tmp_path):
    for step in (0, 50, 100, 70):
        checkpoints.save(tmp_path, step, {"v": np.array(step)}, now=0.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt-0", "ckpt-50", "ckpt-70"]


def test_a_step_can_be_written_again_while_it_is_read(tmp_path):
    checkpoints.save(tmp_path, 5, {"v": np.array(1)}, now=0.0)
    with checkpoints.open_checkpoint(tmp_path) as old:
        for value in (2, 3):
            checkpoints.save(tmp_path, 5, {"v": np.array(value)}, now=0.0, final=True)
        assert old.read("v") == 1
        with checkpoints.open_checkpoint(tmp_path) as new:
            assert (new.read("v"), new.manifest.final) == (3, True)
    checkpoints.save(tmp_path, 6, {"v": np.array(4)}, now=0.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt-5", "ckpt-6"]


def test_the_manifest_is_json_for_people(tmp_path):
    path = checkpoints.save(tmp_path, 5, {"v": np.zeros(2)}, {"optimizer": {"name": "sgd"}}, now=0.0)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["extra"] == {"optimizer": {"name": "sgd"}}
    assert manifest["files"]["arrays.safetensors"]["nbytes"] == (path / "arrays.safetensors").stat().st_size
