"""Rows of numpy files, Parquet files, archives, folders of images and of objects of others."""

import io
import tarfile

import numpy as np
import pytest

import dtrain as dt
from dtrain.data import UNKNOWN, Dataset, NumpyDataset, ParquetDataset, TarDataset
from dtrain.data.image_folders import resized
from dtrain.data.record_index import index_files
from dtrain.data.record_index.addressing import addressed, obstacles
from dtrain.errors import InputError


@pytest.fixture(autouse=True)
def small_files_have_indexes(monkeypatch):
    monkeypatch.setattr(index_files, "INDEXED_BYTES_MIN", 0)
    index_files._known.clear()


def both_ways(dataset):
    """The elements from the front, which are those by number."""
    node = addressed(dataset.node)
    assert node.addressable
    streamed = list(dataset)
    by_number = [node.element(number, (0,)) for number in range(node.cardinality)]
    assert repr(by_number) == repr(streamed)
    return streamed


class Squares:
    """As torch's and Grain's map-style sources: a length, and items by number."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if not 0 <= index < 6:
            raise IndexError(index)
        return np.float32(index), [np.full(2, index), {"square": index**2}]


def test_items_of_an_object():
    dataset = Dataset.random_access(Squares())
    assert dataset.cardinality() == 6
    assert dataset.node.addressable
    rows = list(dataset)
    assert rows[3][0] == 3.0
    assert rows[3][1][0].tolist() == [3, 3]
    assert rows[3][1][1]["square"] == 9
    batches = list(dataset.shuffle(6, seed=1).batch(4))
    assert sorted(np.concatenate([batch[0] for batch in batches])) == [0, 1, 2, 3, 4, 5]
    assert dataset.element_spec[1][1]["square"].dtype == "int64"
    with pytest.raises(
        InputError, match="__len__ and __getitem__, which takes numbers from 0, found generator"
    ):
        Dataset.random_access(number for number in range(3))


class Several(Squares):
    asked = ()

    def __getitems__(self, indices):
        self.asked = indices
        return [self[index] for index in indices]


def test_items_that_can_be_had_together_are():
    source = Several()
    (batch,) = Dataset.random_access(source).skip(1).batch(5)
    assert batch[0].tolist() == [1, 2, 3, 4, 5]
    assert source.asked == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy_arrays(tmp_path, order):
    x = np.arange(24.0).reshape(6, 2, 2)
    np.save(tmp_path / "x.npy", np.asarray(x, order=order))
    rows = both_ways(NumpyDataset(str(tmp_path / "x.npy")))
    assert np.array_equal(rows, x)
    two = NumpyDataset([str(tmp_path / "x.npy")] * 2, num_parallel_reads=2)
    assert [row[0, 0] for row in both_ways(two)] == [0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20]
    assert two.element_spec.shape == (2, 2)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_columns_of_numpy_archives(tmp_path, save):
    columns = {"x": np.arange(10, dtype=np.float32).reshape(5, 2), "y": np.arange(5)}
    save(tmp_path / "d.npz", **columns)
    dataset = NumpyDataset(str(tmp_path / "d.npz"))
    rows = both_ways(dataset)
    assert [row["y"] for row in rows] == [0, 1, 2, 3, 4]
    batch = next(iter(dt.data.Dataset(addressed(dataset.shuffle(5, seed=1).batch(5).node))))
    assert np.array_equal(batch["x"], columns["x"][batch["y"]])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no array", "expected a file of numpy arrays"),
        (lambda path: np.save(path, np.array([{}], object), allow_pickle=True), "an array of objects"),
        (lambda path: np.savez(path, a=np.zeros(2), b=np.zeros(3)), "arrays with as many rows"),
    ],
)
def test_files_that_are_no_arrays_of_rows_are_named(tmp_path, data, message):
    path = tmp_path / "x.npy"
    if callable(data):
        with open(path, "wb") as file:
            data(file)
    else:
        path.write_bytes(data)
    with pytest.raises(InputError, match=rf"x\.npy: .*{message}"):
        list(NumpyDataset(str(path)))


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    x = np.arange(20, dtype=np.float32).reshape(10, 2)
    table = pa.table(
        {
            "id": np.arange(10),
            "name": [f"n{n}" for n in range(10)],
            "x": x.tolist(),
            "raw": [bytes([n]) for n in range(10)],
        }
    )
    name = str(tmp_path / "x.parquet")
    parquet.write_table(table, name, row_group_size=4)
    dataset = ParquetDataset(name)
    rows = both_ways(dataset)
    assert [int(row["id"]) for row in rows] == list(range(10))
    assert rows[7]["name"] == b"n7"
    assert rows[7]["x"].tolist() == [14, 15]
    (batch,) = dt.data.Dataset(addressed(dataset.shuffle(10, seed=1).batch(10).node))
    assert np.array_equal(batch["x"], x[batch["id"]])
    assert list(next(iter(ParquetDataset(name, ["raw"])))) == ["raw"]
    assert dataset.element_spec["x"].shape == (2,)
    with pytest.raises(
        InputError, match=r"x\.parquet: there is no column 'z'; expected one of id, name, x, raw"
    ):
        list(ParquetDataset(name, ["z"]))
    parquet.write_table(pa.table({"a": [1, None], "t": [[1], [1, 2]]}), name)
    with pytest.raises(InputError, match="column 'a': expected a value in every row, found 1 empty"):
        list(ParquetDataset(name, ["a"]))
    with pytest.raises(InputError, match="column 't': expected lists of one length"):
        list(ParquetDataset(name, ["t"]))
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and more")
    with pytest.raises(InputError, match=r"x\.parquet: expected a Parquet file"):
        list(ParquetDataset(name))


def write_tar(path, members, mode="w"):
    with tarfile.open(path, mode, format=tarfile.PAX_FORMAT) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return str(path)


def test_archives_of_examples(tmp_path):
    long = "d" * 120  # a name that takes a header of its own
    members = [
        (f"{long}/{number}.{suffix}", suffix.encode() * number)
        for number in range(4)
        for suffix in ("seg.png", "cls", "more")
    ]
    name = write_tar(tmp_path / "x.tar", members)
    dataset = TarDataset(name, ("cls", "seg.png"))
    rows = both_ways(dataset)
    assert rows[2] == {"__key__": f"{long}/2".encode(), "cls": b"clscls", "seg.png": b"seg.pngseg.png"}
    assert dataset.cardinality() == UNKNOWN
    packed = TarDataset(write_tar(tmp_path / "x.tar.gz", members, "w:gz"), ("cls",), compressed=True)
    assert [row["cls"] for row in packed] == [row["cls"] for row in rows]
    assert "compressed" in obstacles(packed.node)[0]
    with pytest.raises(
        InputError, match=r"the example .*0' at byte 0: expected a member 'jpg', found seg.png, cls"
    ):
        list(TarDataset(name, ("jpg",)))
    data = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "x.tar").write_bytes(data[: 12 * 512 + 3])
    for read in (lambda: list(dataset), lambda: addressed(dataset.node)):
        with pytest.raises(InputError, match=r"x\.tar: "):
            read()
    second = bytearray(data)
    second[3 * 512 + 130] ^= 1  # in the size that a header says, so that its checksum is wrong
    (tmp_path / "y.tar").write_bytes(second)
    for read in (list, lambda made: addressed(made.node)):
        with pytest.raises(
            InputError, match=r"y\.tar: expected a \.tar archive, found damage at byte 1536: "
        ):
            read(TarDataset(str(tmp_path / "y.tar"), ("cls",)))


def test_resizing_is_tensorflows():
    # tf.image.resize([[0, 1], [2, 3]], (3, 4)) and with method="nearest", TensorFlow 2.15.1
    image = np.array([[0, 1], [2, 3]], np.uint8)[..., None]
    expected = [[0, 0.25, 0.75, 1], [1, 1.25, 1.75, 2], [2, 2.25, 2.75, 3]]
    np.testing.assert_allclose(resized(image, (3, 4), "bilinear", crop=False)[..., 0], expected)
    nearest = resized(image, (3, 4), "nearest", crop=False)[..., 0]
    assert nearest.tolist() == [[0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
    wide = np.arange(8, dtype=np.uint8).reshape(2, 4, 1)
    assert resized(wide, (2, 2), "bilinear", crop=True)[..., 0].tolist() == [[1, 2], [5, 6]]


def folder_of_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for label, name in enumerate(("cats", "dogs")):
        (tmp_path / name).mkdir()
        for number in range(5):
            pixels = np.full((4, 6, 3), 20 * number + label, np.uint8)
            image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    (tmp_path / "cats" / "notes.txt").write_text("no image")
    return dt.utils.image_dataset_from_directory


def test_folders_of_images(tmp_path):
    load = folder_of_images(tmp_path)
    dataset = load(tmp_path, image_size=(2, 3), batch_size=4, shuffle=False)
    assert dataset.class_names == ["cats", "dogs"]
    assert [path.removeprefix(f"{tmp_path}/") for path in dataset.file_paths[4:6]] == [
        "cats/4.png",
        "dogs/0.png",
    ]
    assert dataset.node.addressable
    batches = list(dataset)
    assert [images.shape for images, _ in batches] == [(4, 2, 3, 3), (4, 2, 3, 3), (2, 2, 3, 3)]
    assert batches[0][0].dtype == np.float32
    values = [int(image[0, 0, 0]) for images, _ in batches for image in images]
    assert values == [0, 20, 40, 60, 80, 1, 21, 41, 61, 81]
    assert np.concatenate([labels for _, labels in batches]).tolist() == [0] * 5 + [1] * 5
    shuffled = load(tmp_path, image_size=(2, 2), batch_size=None, color_mode="grayscale", seed=3)
    pairs = [(int(image[0, 0, 0]), int(label)) for image, label in shuffled]
    assert sorted(value for value, _ in pairs) == sorted(values)
    assert all(value % 20 == label for value, label in pairs)
    training, validation = load(
        tmp_path, validation_split=0.2, subset="both", label_mode="categorical", image_size=(2, 2), seed=1
    )
    assert (len(training.file_paths), len(validation.file_paths)) == (8, 2)
    assert not set(training.file_paths) & set(validation.file_paths)
    assert next(iter(validation))[1].shape == (2, 2)
    assert next(iter(load(tmp_path, label_mode="binary", image_size=(2, 2))))[1].shape == (10, 1)
    assert next(iter(load(tmp_path, labels=None, image_size=(2, 2)))).shape == (10, 2, 2, 3)


def test_an_image_that_is_replaced_is_no_longer_in_a_cache(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    load = folder_of_images(folder)
    image = pytest.importorskip("PIL.Image")
    for value in (7, 8):
        image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(folder / "cats" / "0.png")
        kept = load(folder, labels=None, image_size=(2, 2), shuffle=False).cache(tmp_path / "kept")
        assert next(iter(kept))[0, 0, 0, 0] == value


def test_images_that_do_not_decode_are_named(tmp_path):
    load = folder_of_images(tmp_path)
    data = (tmp_path / "dogs" / "3.png").read_bytes()
    (tmp_path / "dogs" / "3.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"dogs/3\.png: does not decode as an image"):
        list(load(tmp_path))
    (tmp_path / "dogs" / "3.png").write_bytes(b"text")
    with pytest.raises(InputError, match=r"dogs/3\.png: does not decode as an image"):
        list(load(tmp_path))
    for arguments, message in (
        ({"interpolation": "area"}, "interpolation: expected bilinear, nearest, found 'area'"),
        ({"class_names": ["cats"]}, "expected the folders cats, dogs"),
        ({"subset": "training"}, "validation_split and subset together"),
        ({"labels": [1]}, "a label for each of 10 files, found 1"),
    ):
        with pytest.raises(InputError, match=message):
            load(tmp_path, **arguments)
    with pytest.raises(InputError, match="expected a folder of files that end in"):
        load(tmp_path / "none")
