"""Files of other programs: byte order marks, suffixes in upper case, and files that are something else."""

import gzip
import io
import tarfile

import numpy as np
import pytest
from row_by_row import every_row

import dtrain as dt
from dtrain.errors import InputError

MARK = b"\xef\xbb\xbf"


def test_a_byte_order_mark_belongs_to_no_column_and_no_word(tmp_path):
    (tmp_path / "excel.csv").write_bytes(MARK + b'"id","a,b"\r\n1,2\r\n3,4\r\n')
    read = dt.data.experimental.make_csv_dataset(f"{tmp_path}/excel.csv", 2, num_epochs=1, shuffle=False)
    [batch] = list(read)
    assert {name: values.tolist() for name, values in batch.items()} == {"id": [1, 3], "a,b": [2, 4]}
    (tmp_path / "bare.csv").write_bytes(MARK + b'"1",2\n3,4\n')
    rows = dt.data.experimental.CsvDataset(f"{tmp_path}/bare.csv", ["int32", "int32"])
    assert [tuple(map(int, row)) for row in rows] == [(1, 2), (3, 4)]
    (tmp_path / "words.txt").write_bytes(MARK + b"cat\r\ndog\r\n")
    lookup = dt.layers.StringLookup(vocabulary=f"{tmp_path}/words.txt")
    assert lookup(np.array(["cat", "dog"], object)).tolist() == [1, 2]


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_suffixes_in_an_archive_are_of_either_case(tmp_path, ending):
    path = tmp_path / f"camera.{ending}"
    with tarfile.open(path, "w:gz" if ending == "tar.gz" else "w") as archive:
        for name, data in (("1.JPG", b"one"), ("1.Cls", b"7"), ("2.jpg", b"two"), ("2.cls", b"8")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    for asked in (["jpg", "cls"], ["JPG", "cls"]):
        found = list(dt.data.TarDataset(f"{path}", asked, compressed=ending == "tar.gz"))
        assert [[each[name] for name in asked] for each in found] == [[b"one", b"7"], [b"two", b"8"]]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(bytes(40), mtime=0), "compression_type='GZIP'"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "`git lfs pull`"),
        (b"name,age\nann,3\nbob,4\n", "is it a TFRecord file"),
    ],
)
def test_a_file_that_holds_no_records_is_called_what_it_is(tmp_path, data, words):
    (tmp_path / "a.tfrecord").write_bytes(data)
    dataset = dt.data.TFRecordDataset(f"{tmp_path}/a.tfrecord")
    for read in (lambda: list(dataset), lambda: dataset.cardinality() and list(dataset.shuffle(3))):
        with pytest.raises(InputError, match="tfrecord") as raised:
            read()
        assert words in str(raised.value)


@every_row(
    "value, dtype",
    [
        (2.5, "int32"),
        (np.array([1.7]), "int32"),
        (np.int64(2**40), "int32"),
        (float("nan"), "int64"),
        (300, "uint8"),
        (-1, "uint16"),
        ("three", "float32"),
        ((1,), ("int32", "int32")),
        (1, ("int32", "int32")),
        ({"b": 1}, {"a": "int32"}),
    ],
)
def test_a_generator_that_yields_another_thing_than_it_says(value, dtype):
    dataset = dt.data.Dataset.from_generator(lambda: iter([value]), output_types=dtype)
    with pytest.raises(InputError, match="from_generator: expected"):
        list(dataset)


def test_a_generator_may_yield_what_its_dtype_can_hold():
    for value, dtype, expected in (
        (2.0, "int32", 2),
        (3, "float32", 3.0),
        (np.uint8(7), "int64", 7),
        (0.1, "float32", np.float32(0.1)),
    ):
        [found] = list(dt.data.Dataset.from_generator(lambda value=value: iter([value]), output_types=dtype))
        assert found == expected
        assert found.dtype == dtype


def test_a_file_that_is_no_image_is_called_that(tmp_path):
    pytest.importorskip("PIL.Image")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(b"<html>not found</html>")
    with pytest.raises(
        InputError,
        match=r"1\.png: does not decode as an image; expected a whole file of BMP or GIF or JPEG or PNG",
    ):
        list(dt.utils.image_dataset_from_directory(tmp_path))


def test_a_late_row_of_another_dtype_is_told_of_the_arguments(tmp_path):
    (tmp_path / "late.csv").write_text("a\n" + "1\n" * 150 + "1.5\n")
    data = dt.data.experimental.make_csv_dataset(f"{tmp_path}/late.csv", 10, num_epochs=1, shuffle=False)
    with pytest.raises(InputError, match="num_rows_for_inference"):
        list(data)
