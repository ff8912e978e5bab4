"""Small files that take much memory or time, and those that end with another error than dtrain's own."""

import fcntl
import json
import os
import resource
import subprocess
import sys
import textwrap
import zipfile
import zlib

import numpy as np
import pytest
from row_by_row import every_row

import dtrain as dt
from dtrain import checkpoints
from dtrain.checkpoints.copies import RemoteCopies
from dtrain.checkpoints.folder import open_for_reading
from dtrain.checkpoints.manifest import Manifest
from dtrain.data.readers.rows import TfRecords
from dtrain.data.tables import read_examples
from dtrain.errors import CheckpointDamagedError, CheckpointError, DtrainError, InputError, SpecError
from dtrain.formats.bounded_reading import CONTAINERS_MAX, JSON_BYTES_MAX, open_regular
from dtrain.formats.tfrecord import HEADER, masked_crc32c
from dtrain.process.assignment import TaskAssignment
from dtrain.process.tensorflow import read_tf_config
from dtrain.runs.files import RunFiles, RunRecord, read_record
from dtrain.saving.archive import read_archive, write_archive
from dtrain.strategies.single import SingleStrategy
from dtrain_cli.spec import read_spec

GIANT_BYTES = 8 << 30


def in_little_memory(code: str, tmp_path) -> str:
    """Run Python with 1 GiB of address space above what dtrain takes; return what it prints."""
    program = f"""
        import resource, sys
        from pathlib import Path
        import numpy, dtrain as dt, dtrain.checkpoints, dtrain.data.tables, dtrain.runs.files
        from dtrain.errors import DtrainError
        path = Path({str(tmp_path)!r})
        size = int(open("/proc/self/statm").read().split()[0]) * {resource.getpagesize()}
        resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30),) * 2)
        try:
{textwrap.indent(textwrap.dedent(code), " " * 12)}
        except DtrainError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sparse_giants_are_refused_before_memory_is_taken(tmp_path):
    header = json.dumps({"a": {"dtype": "U8", "shape": [GIANT_BYTES], "data_offsets": [0, GIANT_BYTES]}})
    (tmp_path / "model").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    (tmp_path / "ckpt-1").mkdir()
    for name in ("model", "ckpt-1/manifest.json", "data.npy", "data.csv", "data.tfrecord", "run.json"):
        path = tmp_path / name
        start = path.stat().st_size if path.exists() else 0
        path.touch()
        os.truncate(path, start + GIANT_BYTES)
    said = in_little_memory(
        """
        for read in (
            lambda: dt.load_model(path / "model"),
            lambda: dtrain.checkpoints.open_checkpoint(path / "ckpt-1"),
            *(lambda name=name: dtrain.data.tables.read_examples(path / name, {}, targets=False)
              for name in ("data.npy", "data.csv", "data.tfrecord")),
            lambda: dtrain.runs.files.read_record(path / "run.json", dtrain.runs.files.RunRecord),
        ):
            try:
                read()
            except DtrainError as error:
                print(error)
        """,
        tmp_path,
    )
    assert said.count("found a file of holes") == 6, said


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "socket"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = "/dev/zero"
    else:
        os.mknod(path, 0o140600)
    with pytest.raises(OSError, match="expected a file, found a"):
        open_regular(path)


def test_every_reader_refuses_a_fifo(tmp_path):
    (tmp_path / "ckpt-1").mkdir()
    names = (
        "model",
        "ckpt-1/manifest.json",
        "x.npz",
        "x.npy",
        "x.csv",
        "x.tfrecord",
        "spec.yaml",
        "run.json",
    )
    for name in names:
        os.mkfifo(tmp_path / name)
    readers = {
        "model": dt.load_model,
        "ckpt-1/manifest.json": lambda path: checkpoints.open_checkpoint(path.parent),
        "spec.yaml": read_spec,
        "run.json": lambda path: read_record(path, RunRecord),
    }
    for name in names:
        read = readers.get(name, lambda path: read_examples(path, {}, targets=False))
        with pytest.raises(DtrainError, match="expected a file, found a FIFO"):
            read(tmp_path / name)


def test_a_header_with_too_many_names_is_refused(tmp_path):
    header = b"{" + b",".join(b'"%d":{}' % number for number in range(CONTAINERS_MAX)) + b"}"
    (tmp_path / "many").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointDamagedError, match="lists and objects, expected at most"):
        dt.load_model(tmp_path / "many")
    with pytest.raises(CheckpointDamagedError, match="lists and objects, expected at most"):
        Manifest.decode(b'{"crc32": 0, "extra": [' + b"[]," * CONTAINERS_MAX + b"0]}")
    with pytest.raises(CheckpointDamagedError, match="bytes of JSON, expected at most"):
        Manifest.decode(b" " * (JSON_BYTES_MAX + 1))


def test_a_model_of_millions_of_unknown_words_takes_no_list_of_them(tmp_path):
    with SingleStrategy().scope():
        model = dt.Sequential([dt.layers.IntegerLookup(vocabulary=[5, 6], input_shape=(2,))])
        model.save(tmp_path / "model")
    archive = read_archive(tmp_path / "model")
    for number in (10**8, 3 * 10**8):
        text = archive.description.replace('"num_oov_indices":1', f'"num_oov_indices":{number}')
        assert text != archive.description
        write_archive(tmp_path / f"bomb-{number}", archive.arrays, text)
    code = f"""
        dt.load_model(path / "bomb-{10**8}")
        print("loaded")
        dt.load_model(path / "bomb-{3 * 10**8}")
    """
    loaded, refused = in_little_memory(code, tmp_path).splitlines()
    assert loaded == "loaded"
    assert "num_oov_indices: expected 0 to" in refused


def test_a_model_of_too_many_layers_is_refused(tmp_path):
    layer = {"class_name": "ReLU", "config": {}}
    description = {"kind": "model", "optimizer_step": None, "model": {"layers": [layer] * 100_000}}
    write_archive(tmp_path / "model", {}, json.dumps(description))
    with pytest.raises(CheckpointError, match="100000 objects, expected at most 50000"):
        dt.load_model(tmp_path / "model")


def test_what_grows_a_thousandfold_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\0" * (70 << 20))
    with pytest.raises(InputError, match="savez writes them uncompressed"):
        read_examples(tmp_path / "x.npz", {}, targets=False)
    length = (70 << 20).to_bytes(8, "little")
    data = HEADER.pack(70 << 20, masked_crc32c(length))
    (tmp_path / "x.tfrecord").write_bytes(zlib.compress(data + b"\0" * (70 << 20)))
    with pytest.raises(InputError, match="grows too much when it is decompressed"):
        list(TfRecords("ZLIB").read(f"{tmp_path}/x.tfrecord"))


@every_row("length", [1, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1])
def test_a_record_is_not_as_long_as_it_claims(tmp_path, length):
    data = length.to_bytes(8, "little")
    (tmp_path / "x").write_bytes(data + masked_crc32c(data).to_bytes(4, "little"))
    for compression in ("", "GZIP", "ZLIB"):
        with pytest.raises(InputError):
            list(TfRecords(compression).read(f"{tmp_path}/x"))


def test_an_array_is_not_as_large_as_its_header_says(tmp_path):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"
    text = header.ljust(117).encode() + b"\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"abcd")
    with pytest.raises(InputError, match="found 4 bytes of data, expected an array"):
        read_examples(tmp_path / "x.npy", {}, targets=False)


def test_a_spec_of_two_thousand_mistakes_names_a_hundred(tmp_path):
    (tmp_path / "spec.yaml").write_text(f"cluster: {{chief: 1, worker: [{'x, ' * 2_000}]}}")
    with pytest.raises(SpecError) as caught:
        read_spec(tmp_path / "spec.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 101
    assert lines[-1].startswith("and 19")
    (tmp_path / "spec.yaml").write_text(f"cluster: {{chief: 1}}\n{'k' * 100_000}: 1")
    with pytest.raises(SpecError) as caught:
        read_spec(tmp_path / "spec.yaml")
    assert len(str(caught.value)) < 2000


def test_odd_words_of_the_environment_are_one_sentence():
    task = '"task": {"type": "worker", "index": 0}'
    cluster = f'{{"cluster": {{"worker": ["a:1"]}}, {task}}}'
    for variables in (
        {"DTRAIN_SPEC": '{"name": "\udcff"}'},
        {"DTRAIN_ATTEMPT": "9" * 5000},
        {"DTRAIN_SPEC": "[" * 100_000},
    ):
        with pytest.raises(SpecError, match=next(iter(variables))):
            TaskAssignment.from_environment({"TF_CONFIG": cluster, **variables})
    for text in (
        f'{{"cluster": {{"worker": ["a:{"9" * 5000}"]}}, {task}}}',
        f'{{"cluster": {{"worker": {{"{"9" * 5000}": "a:1"}}}}, {task}}}',
        f'{{"cluster": {{"{"worker" * 5000}": []}}, {task}}}',
        f'{{"cluster": {{"worker": [{"1, " * 5000}1]}}, {task}}}',
        '{"task": {"type": "worker", "index": 1e308}}',
    ):
        with pytest.raises(SpecError) as caught:
            read_tf_config(text)
        assert len(str(caught.value)) < 12_000


def test_half_a_character_in_the_metadata_is_damage(tmp_path):
    header = b'{"__metadata__": {"format": "dtrain", "crc32": "\\ud800"}}'
    (tmp_path / "model").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointDamagedError, match="half a character"):
        dt.load_model(tmp_path / "model")


@pytest.fixture
def checkpoint(tmp_path):
    checkpoints.save(tmp_path, 3, {"v": np.arange(100.0)}, now=0.0)
    return tmp_path / "ckpt-3"


def test_a_folder_with_another_steps_name_is_damaged(checkpoint):
    checkpoint.rename(checkpoint.with_name("ckpt-7"))
    with pytest.raises(CheckpointDamagedError, match=r"name says step 7, its .* says step 3"):
        checkpoints.open_checkpoint(checkpoint.with_name("ckpt-7"))
    checkpoint.with_name("ckpt-7").rename(checkpoint.with_name("best"))
    checkpoints.open_checkpoint(checkpoint.with_name("best")).close()


def test_a_remote_step_that_no_folder_can_have_is_passed_over(checkpoint, tmp_path_factory):
    pytest.importorskip("fsspec")
    store = tmp_path_factory.mktemp("store")
    (store / f"ckpt-{'9' * 19}").mkdir()
    checkpoint.rename(store / "ckpt-3")
    copies = RemoteCopies(f"file://{store}")
    assert copies.fetch(tmp_path_factory.mktemp("own"))
    assert copies.warning is None
    (store / "ckpt-3").rename(store / "ckpt-4")
    with pytest.raises(CheckpointDamagedError, match="is of step 3"):
        copies.fetch(tmp_path_factory.mktemp("another"))


def test_a_table_is_read_from_the_file_that_was_verified(checkpoint):
    with checkpoints.open_checkpoint(checkpoint) as opened:
        (checkpoint / "arrays.safetensors").write_bytes(b"x" * 2000)
        other = checkpoint / "other"
        other.write_bytes(b"y" * 2000)
        other.replace(checkpoint / "arrays.safetensors")
        table = opened.look_into("v")
    assert bytes(np.asarray(table[0:1]).tobytes()) == b"x" * 8


def test_a_lock_that_another_program_keeps_is_waited_for_with_a_deadline(checkpoint):
    with open(checkpoint / "manifest.json") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match=r"locked by another process for 0\.02 s; end that process"):
            open_for_reading(checkpoint, wait_s=0.02)


def test_a_name_of_many_characters_is_cut(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        write_archive(tmp_path / "x", {"n" * 30_000: np.zeros(1)}, "{}")
    assert len(str(caught.value)) < 300
    files = RunFiles(tmp_path)
    files.run.write_text(json.dumps({"run": "x", "name": "y", "state": "z" * 100_000}))
    with pytest.raises(DtrainError) as caught:
        read_record(files.run, RunRecord)
    assert len(str(caught.value)) < 600
