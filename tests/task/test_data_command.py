"""`dtrain data index` and `inspect`: what they print, write and refuse."""

import errno
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile

import numpy as np
import pytest

import dtrain as dt
from dtrain.data.readers.rows import TfRecords
from dtrain.data.record_index import index_files
from dtrain.data.stores import opening
from dtrain.formats.tfrecord import FRAME_BYTES
from dtrain.task import data_command

DTRAIN = [sys.executable, "-m", "dtrain_cli.main"]
ROWS = 300
KILLED = """
import os, signal, sys
from dtrain.data.record_index import index_files
from dtrain.task import data_command
index_files.os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
data_command.main(data_command.DataRequest(action="index", files=["a.tfrecord"]))
"""


def indexes(folder):
    """The names of the files that hold an index, or a part of one."""
    return sorted(path.name for path in folder.iterdir() if "dtidx" in path.name)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files of every kind; those of records and lines are large enough for an index."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DTRAIN_RUN_DIR", raising=False)
    index_files._known.clear()
    opening._opened.clear()  # the names are those of other tests, in other folders
    with dt.data.TFRecordWriter("a.tfrecord") as writer:
        for number in range(ROWS):
            tags = {"tags": [b"t"] * (1 + number % 3)} if number % 2 else {}
            image = np.full(200, number, np.float32)
            writer.write(dt.data.encode_example({"image": image, "label": number, **tags}))
    (tmp_path / "lines.txt").write_text("".join(f"line {number:6}\n" for number in range(20_000)))
    (tmp_path / "table.csv").write_text("a,b,c\n" + "".join(f"{n},{n / 2},x{n}\n" for n in range(9)))
    np.save("x.npy", np.zeros((7, 28, 28), np.float32))
    np.savez("xy.npz", x=np.zeros((5, 2)), y=np.arange(5))
    (tmp_path / "a.tfrecord.gz").write_bytes(gzip.compress((tmp_path / "a.tfrecord").read_bytes()))
    with tarfile.open("images.tar", "w") as archive:
        for name in ("0.jpg", "0.cls", "1.jpg", "1.cls"):
            member = tarfile.TarInfo(name)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"12345"))
    return tmp_path


@pytest.fixture
def order(folder, capsys):
    def run(action, *files, code=0, **fields):
        request = data_command.DataRequest(action=action, files=list(files), **fields)
        assert data_command.main(request) == code
        return capsys.readouterr()

    return run


@pytest.fixture
def answer(order):
    return lambda *words, **fields: json.loads(order(*words, as_json=True, **fields).out)


def test_index_builds_what_a_run_would_build(order, answer, folder):
    first = answer("index", "a.tfrecord", "lines.txt", "table.csv", "x.npy", "images.tar")
    assert [(each["rows"], each["index"]) for each in first["files"]] == [
        *((ROWS, "built"), (20_000, "built"), (9, "not needed"), (7, "not needed"), (2, "not needed"))
    ]
    assert first["files"][0]["bytes"] == (folder / "a.tfrecord").stat().st_size
    assert first["files"][0]["seconds"] > 0
    assert sorted(folder.glob("*.dtidx")) == [folder / "a.tfrecord.dtidx", folder / "lines.txt.dtidx"]
    before = (folder / "a.tfrecord.dtidx").stat()
    index_files._known.clear()
    assert index_files.index_of("a.tfrecord", TfRecords("")).kept_at == folder / "a.tfrecord.dtidx"
    index_files._known.clear()
    table = order("index", "a.tfrecord", "a.tfrecord.dtidx", "lines.txt").out.splitlines()
    assert [line.split()[-1] for line in table[:3]] == ["index", "there", "there"]
    assert len(table) == 4
    assert "20300" in table[3]
    assert (folder / "a.tfrecord.dtidx").stat() == before


def test_what_is_wrong_with_a_file_is_one_sentence_and_the_others_are_indexed(order, folder):
    whole = (folder / "a.tfrecord").read_bytes()
    second = FRAME_BYTES + int.from_bytes(whole[:8], "little")
    (folder / "cut.tfrecord").write_bytes(whole[:-3])
    (folder / "bad.tfrecord").write_bytes(whole[: second + 2] + b"\xff" + whole[second + 3 :])
    said = order("index", "cut.tfrecord", "bad.tfrecord", "a.tfrecord.gz", "none", "lines.txt", code=1)
    cut, bad, compressed, missing = said.err.splitlines()
    assert re.fullmatch(r"dtrain: cut.tfrecord: the file ends inside the record at byte \d+\.", cut)
    assert f"bad.tfrecord: the length of the record at byte {second} is damaged" in bad
    assert "a.tfrecord.gz: files that are compressed as a whole (GZIP) can only be read from the front" in (
        compressed
    )
    assert "none: cannot be read: No such file or directory" in missing
    assert said.out.splitlines()[1].split()[-1] == "built"
    assert [path.name for path in folder.glob("*.dtidx")] == ["lines.txt.dtidx"]


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "No space left on device"), (errno.EROFS, "Read-only file system")]
)
def test_an_index_without_a_place_is_one_sentence(order, folder, monkeypatch, number, words):
    def full(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(index_files.os, "fsync", full)
    said = order("index", "a.tfrecord", code=1)
    assert said.err.count("\n") == 1
    assert f"a.tfrecord: its index cannot be kept in {folder}: {words}" in said.err
    assert not indexes(folder)


def test_a_killed_build_leaves_no_index_and_the_next_one_tidies_up(order, folder):
    killed = subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = indexes(folder)
    assert len(left) == 1
    assert re.fullmatch(r"\.a\.tfrecord\.dtidx\.[0-9a-f]{12}", left[0])
    alien = folder / ".a.tfrecord.dtidx.mine"
    alien.touch()
    order("index", "a.tfrecord")
    assert indexes(folder) == [alien.name, "a.tfrecord.dtidx"]


def test_two_builders_at_once_make_one_index(folder):
    builders = [
        subprocess.Popen([*DTRAIN, "data", "index", "a.tfrecord", "--json"], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [json.loads(builder.communicate(timeout=200)[0])["files"][0] for builder in builders]
    assert [each["rows"] for each in said] == [ROWS, ROWS]
    assert indexes(folder) == ["a.tfrecord.dtidx"]


def test_inspect_shows_rows_columns_and_the_index(answer, folder):
    names = ["a.tfrecord", "a.tfrecord.gz", "lines.txt", "table.csv", "x.npy", "xy.npz", "images.tar"]
    found = {each["file"]: each for each in answer("inspect", *names)["files"]}
    assert [found[name]["rows"] for name in names] == [ROWS, ROWS, 20_000, 9, 7, 5, 2]
    fields = {
        name: [(field["name"], field["dtype"], field["shape"]) for field in each["fields"]]
        for name, each in found.items()
    }
    examples = [("image", "float32", [200]), ("label", "int64", [1]), ("tags", "string", [None])]
    assert fields["a.tfrecord"] == fields["a.tfrecord.gz"] == examples
    assert 0 < found["a.tfrecord"]["fields"][2]["rows"] < found["a.tfrecord"]["sampled"]
    assert fields["lines.txt"] == [("", "string", [])]
    assert fields["table.csv"] == [("a", "int32", []), ("b", "float32", []), ("c", "string", [])]
    assert fields["x.npy"] == [("", "float32", [28, 28])]
    assert fields["xy.npz"] == [("x", "float64", [2]), ("y", "int64", [])]
    assert [name for name, _, _ in fields["images.tar"]] == ["__key__", "jpg", "cls"]
    assert [found[name]["index"] for name in names[:4]] == ["absent", "impossible", "absent", "not needed"]
    assert not list(folder.glob("*.dtidx"))
    assert answer("inspect", "table.csv", header=False)["files"][0]["rows"] == 10


def test_inspect_knows_an_index_that_is_stale(order, folder):
    order("index", "lines.txt")
    assert "index: there" in order("inspect", "lines.txt").out
    with (folder / "lines.txt").open("a") as file:
        file.write("one more\n")
    text = order("inspect", "lines.txt").out
    assert "20001 rows" in text
    assert "index: stale" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_kind_is_told_by_the_first_bytes_or_by_the_user(order, answer, folder):
    (folder / "a.tfrecord").rename("train-00000-of-00001")
    assert answer("inspect", "train-00000-of-00001")["files"][0]["format"] == "tfrecord"
    (folder / "lines.txt").rename("lines")
    assert "say it with --format: tfrecord, text" in order("inspect", "lines", code=1).err
    assert answer("inspect", "lines", kind="text")["files"][0]["rows"] == 20_000
