"""Small files whose data would take much memory or time: every reader bounds what a file may grow to."""

import gzip
import io
import tarfile
import zlib

import msgspec
import numpy as np
import pytest
from row_by_row import every_row

import dtrain as dt
from dtrain.cluster.hosts import HOSTS_MAX, expand_counts, expand_hosts
from dtrain.config.targets import hosts_problems, read_hosts
from dtrain.data import cache_file
from dtrain.data.experimental import CsvDataset, make_csv_dataset
from dtrain.data.image_folders import read_image
from dtrain.data.readers.tar_format import suffixes_of_first
from dtrain.data.record_index.addressing import addressed
from dtrain.data.structure import encode_element
from dtrain.errors import InputError, SpecError
from dtrain.formats import plain_data
from dtrain.formats.bounded_reading import FREE_BYTES
from dtrain.process.engines import slurm_place
from dtrain_cli.targets.slurm_allocation import read_allocation

TOO_MANY = FREE_BYTES + (6 << 20)
"""Bytes that no file of some kB may grow to."""


def read_through(dataset):
    for _ in dataset:
        pass


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_rows_that_grow_a_thousandfold_are_refused(tmp_path, compression):
    row = b"a" * 8191 + b"\n"
    packed = (gzip if compression == "GZIP" else zlib).compress(row * (TOO_MANY >> 13), 1)
    path = tmp_path / "x.csv"
    path.write_bytes(packed)
    with pytest.raises(InputError, match="grows too much when it is decompressed"):
        read_through(CsvDataset(str(path), [""], compression_type=compression))
    if compression == "GZIP":
        with pytest.raises(InputError, match="grows too much when it is decompressed"):
            make_csv_dataset(str(path), 4, ["a"], compression_type=compression, num_rows_for_inference=None)
    path.write_bytes(packed[:-9])
    with pytest.raises(InputError):
        read_through(CsvDataset(str(path), [""], compression_type=compression))


def packed_tar(members: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=tarfile.GNU_FORMAT) as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def member(name: str, size: int) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.size = size
    return found


def of_sparse_member(size: int) -> bytes:
    """An archive of one member of GNU's sparse form: 512 bytes of data, and a size as it says."""
    header = bytearray(member("a.x", 512).tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:398], header[398:410] = b"%011o\0" % 0, b"%011o\0" % 512
    header[483:495] = b"%011o\0" % size
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * ord(" "))
    return bytes(header) + b"y" * 512 + b"\0" * 1024


def of_negative_member() -> bytes:
    """An archive whose member says that the next one stands where it begins itself."""
    header = bytearray(member("a.x", 0).tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (-1024).to_bytes(12, "big", signed=True)
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * ord(" "))
    return bytes(header) + b"\0" * 4096


def test_an_archive_is_no_larger_than_its_bytes(tmp_path):
    path = tmp_path / "x.tar"
    for data in (of_sparse_member(TOO_MANY), of_negative_member()):
        path.write_bytes(data)
        examples = dt.data.TarDataset(str(path), ["x"])
        for read in (
            lambda examples=examples: read_through(examples),
            lambda examples=examples: addressed(examples.node),
            lambda: suffixes_of_first(str(path), compressed=False),
        ):
            with pytest.raises(InputError, match=r"the member 'a\.x' at byte 0"):
                read()
    path.write_bytes(packed_tar([(member("a.x", TOO_MANY), bytes(TOO_MANY))], "w:gz"))
    with pytest.raises(InputError, match="grows too much when it is decompressed"):
        read_through(dt.data.TarDataset(str(path), ["x"], compressed=True))
    sound = packed_tar([(member("a.x", 3), b"abc"), (member("b.x", 2), b"de")], "w:gz")
    path.write_bytes(sound)
    found = list(dt.data.TarDataset(str(path), ["x"], compressed=True))
    assert [each["x"] for each in found] == [b"abc", b"de"]
    path.write_bytes(sound[:-20])
    with pytest.raises(InputError):
        read_through(dt.data.TarDataset(str(path), ["x"], compressed=True))


def cached_file(path, elements, compression="GZIP") -> cache_file.CacheFile:
    with open(path, "wb") as file:
        cache_file.write_elements(file.write, path, elements, "f", compression, 1 << 40)
    return cache_file.opened_cache(path)


def test_a_cached_element_of_zeros_is_read_again_and_one_that_was_made_to_grow_is_not(tmp_path, monkeypatch):
    zeros = [np.zeros(9 << 20, np.uint8), np.arange(4), np.zeros(9 << 20, np.uint8)]
    found = cached_file(tmp_path / "sound", zeros)
    for wanted, element in zip(zeros, found.read(np.arange(3)), strict=True):
        np.testing.assert_array_equal(element, wanted)
    monkeypatch.setattr(cache_file, "room_for", lambda *_: 1 << 40, raising=False)
    bomb = cached_file(tmp_path / "bomb", zeros)
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"cached element 0 at byte 8 is damaged: .*grows too much"):
        bomb.read(np.arange(3))


def test_a_cached_array_has_a_dtype_and_no_expression():
    assert plain_data.decode(encode_element(np.array(["2026-11-27"], "M8[D]"))) == np.array(
        ["2026-11-27"], "M8[D]"
    )
    for dtype in (",", "(2,)f4", "f4,f4", "<f4" + "(" * 90):
        with pytest.raises(ValueError, match="expected the dtype of an array"):
            plain_data.decode(msgspec.msgpack.encode(["a", dtype, [0], b""]))


def test_a_table_of_equal_values_is_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    rows = 3 * TOO_MANY // 32
    number, text = pa.array([7]), pa.array(["t" * 1000])
    for column in (
        pa.DictionaryArray.from_arrays(pa.array(np.zeros(4 * rows // 3, np.int32)), number).cast(pa.int64()),
        pa.ListArray.from_arrays(
            pa.array([0, TOO_MANY // 4], pa.int32()), pa.array(np.zeros(TOO_MANY // 4, np.int32))
        ),
    ):
        parquet.write_table(pa.table({"x": column}), path)
        with pytest.raises(InputError, match="grows too much when it is decompressed"):
            next(iter(dt.data.ParquetDataset(str(path))))
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), text)
    parquet.write_table(pa.table({"x": texts, "n": pa.array(range(100_000))}), path)
    before = pa.total_allocated_bytes()
    rows = dt.data.ParquetDataset(str(path)).take(2)
    taken = []
    for row in rows:
        taken.append(row)
        assert pa.total_allocated_bytes() - before < 10_000_000  # 100,000 texts of 1,000 bytes are 100 MB
    assert [(row["x"], row["n"]) for row in taken] == [(b"t" * 1000, 0), (b"t" * 1000, 1)]
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 4], pa.int32()), pa.array(["a", "b", "a", "a"]))
    parquet.write_table(pa.table({"x": lists}), path)
    assert [row["x"].tolist() for row in dt.data.ParquetDataset(str(path))] == [[b"a", b"b"], [b"a", b"a"]]


def test_an_image_of_many_equal_pixels_is_refused_by_its_header(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "x.png"
    image.new("1", (8000, 8000)).save(path)
    decoded = []
    monkeypatch.setattr(image.Image, "convert", lambda *_: decoded.append(1))
    with pytest.raises(InputError, match="grows too much when it is decompressed"):
        read_image(str(path), "rgb")
    assert not decoded


def test_an_image_of_another_kind_is_not_handed_to_another_program(tmp_path):
    pytest.importorskip("PIL")
    path = tmp_path / "x.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    with pytest.raises(InputError, match="does not decode as an image; expected a whole file"):
        read_image(str(path), "rgb")


def test_hosts_are_counted_before_any_is_made(monkeypatch):
    assert expand_hosts("a[01-03,7]b[1-2],c") == [
        *("a01b1", "a01b2", "a02b1", "a02b2", "a03b1", "a03b2", "a7b1", "a7b2", "c")
    ]
    assert len(expand_hosts(f"n[1-{HOSTS_MAX}]")) == HOSTS_MAX
    made = []
    monkeypatch.setattr("itertools.product", lambda *_: made.append(1))
    for text in (
        "n[1-99999]," * 20 + "n1",
        "n[1-999][1-999]",
        f"n[{'0' * 4000}1-99999]",
        f"{'n' * 4000}[1-99999]",
        "n" + "[1]" * 2000,
        f"n[{'9' * 5000}]",
        f"n[1-{HOSTS_MAX + 1}]",
    ):
        with pytest.raises(SpecError) as caught:
            expand_hosts(text)
        assert len(str(caught.value)) < 300
    assert not made


def test_the_entries_of_a_list_of_hosts_are_counted_together():
    entries = tuple(f"n{number}-[1-99999]" for number in range(20))
    for written in (entries, ",".join(entries)):
        with pytest.raises(SpecError, match=f"expected at most {HOSTS_MAX} hosts"):
            read_hosts(written)
        ((path, text),) = hosts_problems(written, "spread")
        assert path == (("hosts", 1) if written is entries else ("hosts",))
        assert f"expected at most {HOSTS_MAX} hosts" in text


STEP = {
    "SLURM_PROCID": "0",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}


@every_row(
    "changed",
    [
        {"SLURM_STEP_TASKS_PER_NODE": "1(x99999),1(x99999)"},
        {"SLURM_STEP_TASKS_PER_NODE": "999999(x2)"},
        {"SLURM_HET_SIZE": "999999999"},
        {"SLURM_HET_SIZE": "9" * 5000},
        {"SLURM_STEP_NODELIST": "n[1-99999],m[1-99999]"},
    ],
)
def test_the_numbers_of_a_slurm_job_are_bounded(changed):
    with pytest.raises(SpecError, match="at most") as caught:
        slurm_place({**STEP, **changed}, None)
    assert len(str(caught.value)) < 300
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    changed = {name.replace("_STEP_NODE", "_JOB_NODE"): value for name, value in changed.items()}
    if "SLURM_STEP_TASKS_PER_NODE" not in changed:
        with pytest.raises(SpecError) as caught:
            read_allocation({**job, **changed})
        assert len(str(caught.value)) < 300
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    assert read_allocation(job).nodes == (("n1",),)
