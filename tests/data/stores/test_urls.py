"""Every kind of file at a URL gives the rows that it gives as a file of this host."""

import io
import subprocess
import sys
import tarfile
import threading

import numpy as np
import pytest

import dtrain as dt
from dtrain.data import NumpyDataset, ParquetDataset, TarDataset, TextLineDataset, TFRecordDataset
from dtrain.data.experimental import CsvDataset, make_csv_dataset
from dtrain.data.record_index import index_files
from dtrain.data.record_index.addressing import addressed
from dtrain.data.stores import opening, remote
from dtrain.data.stores.ranges import parts, pieces, together
from dtrain.data.stores.remote import CALLS_MAX, at_once
from dtrain.errors import InputError, InvalidArgumentError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DTRAIN_RUN_DIR", raising=False)
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.01)
    index_files._known.clear()
    opening._opened.clear()
    files = fsspec.filesystem("memory")
    yield
    for path in files.find("/"):
        files.rm(path)


def put(url, path):
    fsspec.filesystem("memory").pipe_file(url.removeprefix("memory:/"), path.read_bytes())
    return url


def tfrecords(folder):
    with dt.data.TFRecordWriter(folder / "x") as writer:
        for number in range(50):
            writer.write(b"%d" % number)
    return TFRecordDataset


def packed(folder):
    with dt.data.TFRecordWriter(folder / "x", "GZIP") as writer:
        writer.write(b"one")
    return lambda name: TFRecordDataset(name, "GZIP")


def lines(folder):
    (folder / "x").write_bytes(b"a\r\nbc\n\nlast")
    return TextLineDataset


def table(folder):
    (folder / "x").write_bytes(b'n,t\n1,"a\nb"\n2,c\n3,\n')
    return lambda name: CsvDataset(name, [np.int64, "none"], header=True)


def guessed_table(folder):
    (folder / "x").write_bytes(b"n,t\n1,a\n2,c\n3,d\n")
    return lambda name: make_csv_dataset(name, 2, num_epochs=1, shuffle=False, label_name="t")


def parquet(folder):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"a": np.arange(10), "b": ["t"] * 10}), folder / "x", row_group_size=4)
    return ParquetDataset


def arrays(folder):
    with open(folder / "x", "wb") as file:
        np.savez(file, x=np.arange(10.0).reshape(5, 2), y=np.arange(5))
    return NumpyDataset


def packed_arrays(folder):
    with open(folder / "x", "wb") as file:
        np.savez_compressed(file, x=np.arange(10.0).reshape(5, 2))
    return NumpyDataset


def fortran(folder):
    with open(folder / "x", "wb") as file:
        np.save(file, np.asfortranarray(np.arange(6.0).reshape(3, 2)))
    return NumpyDataset


def archive(folder):
    with tarfile.open(folder / "x", "w") as made:
        for number in range(5):
            member = tarfile.TarInfo(f"{number}.cls")
            member.size = 1
            made.addfile(member, io.BytesIO(b"%d" % number))
    return lambda name: TarDataset(name, ("cls",))


KINDS = [tfrecords, packed, lines, table, guessed_table, parquet, arrays, packed_arrays, fortran, archive]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_rows_at_a_url_are_those_of_the_file(tmp_path, kind):
    make = kind(tmp_path)
    here, there = make(str(tmp_path / "x")), make(put("memory://bucket/x", tmp_path / "x"))
    expected = [repr(each) for each in here]
    assert expected
    assert [repr(each) for each in there] == expected
    node = addressed(there.node)
    assert node.addressable == (kind is not packed)
    if node.addressable:
        assert [repr(node.element(k, (0,))) for k in range(node.cardinality)] == expected
    assert not [path for path in fsspec.filesystem("memory").find("/") if path.endswith("dtidx")]


def test_folders_of_images_and_lists_of_files(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for label, name in enumerate(("cats", "dogs")):
        (tmp_path / name / "more").mkdir(parents=True)
        for number in range(3):
            folder = tmp_path / name / ("more" if number == 0 else "")
            image.fromarray(np.full((2, 2, 3), 20 * number + label, np.uint8)).save(folder / f"{number}.png")
            put(f"memory://pets/{(folder / str(number)).relative_to(tmp_path)}.png", folder / f"{number}.png")
    load = dt.utils.image_dataset_from_directory
    here = load(tmp_path, image_size=(2, 2), labels="inferred", seed=1)
    there = load("memory://pets", image_size=(2, 2), seed=1)
    assert there.class_names == ["cats", "dogs"]
    assert [repr(each) for each in there] == [repr(each) for each in here]
    found = list(dt.data.list_files("memory://pets/cats/*.png", shuffle=False))
    assert found == ["memory://pets/cats/1.png", "memory://pets/cats/2.png"]
    with pytest.raises(InvalidArgumentError, match=r"no file matches memory://pets/\*\.txt"):
        dt.data.list_files("memory://pets/*.txt")


def test_what_cannot_be_read_is_named(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"memory://bucket/none: is not there"):
        list(TextLineDataset("memory://bucket/none"))
    with pytest.raises(InputError, match=r"gone://x/y: Protocol not known: gone"):
        list(TextLineDataset("gone://x/y"))
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(
        InputError,
        match=r"s3://\*\*\*@b/x: .*; `pip install -e '\.\[remote\]'` in dtrain's clone brings fsspec",
    ) as told:
        list(TextLineDataset("s3://me:s3cret@b/x"))
    assert "s3cret" not in str(told.value)


def test_a_store_that_fails_is_asked_again_and_one_that_changed_is_found_out(tmp_path, monkeypatch):
    tfrecords(tmp_path)
    node = addressed(TFRecordDataset(put("memory://bucket/x", tmp_path / "x")).node)
    files = type(fsspec.filesystem("memory"))
    whole, failures = files.cat_file, [OSError("slow down"), RuntimeError("reset")]

    def failing(self, *arguments, **more):
        if failures:
            raise failures.pop()
        return whole(self, *arguments, **more)

    monkeypatch.setattr(files, "cat_file", failing)
    assert node.element(3, (0,)) == b"3"
    assert not failures
    monkeypatch.setattr(remote, "LOOK_S", 0.0)
    put("memory://bucket/x", tmp_path / "x")  # the same bytes, written anew
    with pytest.raises(InputError, match=r"memory://bucket/x: was changed while it was in use"):
        node.element(4, (0,))


def test_an_index_that_cannot_be_kept_is_held_in_memory(tmp_path, monkeypatch):
    tfrecords(tmp_path)
    (tmp_path / "cache").write_text("no folder")
    url = put("memory://bucket/x", tmp_path / "x")
    with pytest.warns(UserWarning, match=r"memory://bucket/x: its index cannot be kept in .*held in memory"):
        assert addressed(TFRecordDataset(url).node).cardinality == 50


PROGRAM = """
import sys
import dtrain as dt
from dtrain.data.record_index.addressing import addressed
print(addressed(dt.data.TextLineDataset(sys.argv[1]).node).cardinality)
"""


def test_two_tasks_of_a_host_build_one_index(tmp_path):
    (tmp_path / "x").write_bytes(b"line\n" * 100_000)
    tasks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, f"file://{tmp_path}/x"], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    assert [task.communicate(timeout=60)[0] for task in tasks] == ["100000\n"] * 2
    assert [path.suffix for path in (tmp_path / "cache/dtrain/data_index").iterdir()] == [".dtidx"]


def test_ranges_are_joined_by_their_distance_and_cut_by_their_size():
    wanted = [(50, 60), (0, 10), (12, 20), (12, 15), (100, 130), (60, 61)]
    covering = together(wanted, 5, 40)
    assert covering == [(0, 20), (50, 61), (100, 130)]
    data = bytes(range(200))
    cut = parts(wanted, covering, [data[begin:end] for begin, end in covering])
    assert cut == [data[begin:end] for begin, end in wanted]
    assert together([(0, 30), (30, 60)], 5, 40) == [(0, 30), (30, 60)]
    assert pieces([(0, 25), (30, 31)], 10) == [(0, 10), (10, 20), (20, 25), (30, 31)]
    assert together([], 5, 40) == []


def test_calls_at_once_are_bounded_and_the_first_error_ends_them():
    under_way, most, made = [], [], []
    gate = threading.Barrier(CALLS_MAX, timeout=30)

    def call(number):
        def made_call():
            under_way.append(number)
            most.append(len(under_way))
            gate.wait()
            under_way.remove(number)
            return number

        return made_call

    assert at_once([call(number) for number in range(3 * CALLS_MAX)]) == list(range(3 * CALLS_MAX))
    assert max(most) <= CALLS_MAX

    def failing():
        made.append(1)
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        at_once([failing] * 1000)
    assert len(made) <= CALLS_MAX
