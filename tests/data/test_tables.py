"""Files of examples: every format gives the same arrays; what is missing is named."""

import numpy as np
import pytest
from row_by_row import every_row

from dtrain.data.examples import encode_example
from dtrain.data.tables import read_examples
from dtrain.errors import InputError
from dtrain.formats.tfrecord import TFRecordWriter

X = np.arange(6, dtype=np.float32).reshape(3, 2)
Y = np.array([1.0, 0.0, 1.0], np.float32)
INPUT = {"input": (2,)}
OF_OBJECTS = (
    b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(127) + b"\n"
)


def written(folder, name):
    path = folder / name
    match path.suffix:
        case ".npz":
            np.savez(path, x=X, y=Y)
        case ".csv":
            head = "" if name == "plain.csv" else "a,b,label\n"
            path.write_text(head + "".join(f"{a},{b},{y}\n" for (a, b), y in zip(X, Y, strict=True)))
        case ".tfrecord":
            with TFRecordWriter(path) as writer:
                for x, y in zip(X, Y, strict=True):
                    writer.write(encode_example({"x": x, "y": float(y)}))
    return path


@pytest.mark.parametrize("name", ["data.npz", "data.csv", "plain.csv", "data.tfrecord"])
def test_every_format_gives_the_same(tmp_path, name):
    x, y = read_examples(written(tmp_path, name), INPUT, targets=True)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)


def test_columns_are_named(tmp_path):
    path = written(tmp_path, "data.csv")
    x, y = read_examples(path, INPUT, x="b", y="a", targets=True)
    assert (x.tolist(), y.tolist()) == ([[1], [3], [5]], [0, 2, 4])
    assert read_examples(path, INPUT, targets=False).shape == (3, 3)
    assert read_examples(path, INPUT, y="label", targets=False).shape == (3, 2)
    by_input = read_examples(path, {"a": (1,), "b": (1,)}, targets=True)[0]
    assert {name: column.tolist() for name, column in by_input.items()} == {
        "a": [[0], [2], [4]],
        "b": [[1], [3], [5]],
    }
    np.savez(tmp_path / "keras.npz", x_train=X, y_train=Y, x_test=X + 1, y_test=Y)
    assert read_examples(tmp_path / "keras.npz", INPUT, targets=True)[0][0, 0] == 1
    assert read_examples(tmp_path / "keras.npz", INPUT, x="x_train", targets=False)[0, 0] == 0
    np.savez(tmp_path / "two.npz", left=X, right=X, y=Y)
    assert set(read_examples(tmp_path / "two.npz", {"left": (2,), "right": (2,)}, targets=False)) == {
        "left",
        "right",
    }


def test_several_targets_are_called_as_the_outputs(tmp_path):
    np.savez(tmp_path / "two.npz", x=X, price=Y, kind=Y + 1)
    x, y = read_examples(tmp_path / "two.npz", INPUT, targets=True, outputs=["kind", "price"])
    assert (x.tolist(), {name: column.tolist() for name, column in y.items()}) == (
        X.tolist(),
        {"kind": [2, 1, 2], "price": [1, 0, 1]},
    )
    assert read_examples(tmp_path / "two.npz", INPUT, y="kind", targets=True, outputs=["kind", "price"])[
        1
    ].tolist() == [2, 1, 2]
    with pytest.raises(InputError, match="expected a column y"):
        read_examples(tmp_path / "two.npz", INPUT, targets=True, outputs=["kind", "size"])


def test_text_stays_text(tmp_path):
    (tmp_path / "words.csv").write_text("word\none\ntwo\n")
    assert read_examples(tmp_path / "words.csv", INPUT, targets=False).tolist() == [["one"], ["two"]]


@every_row(
    "name, content, said",
    [
        ("a.txt", b"", "ends in .npz, .npy"),
        ("a.npy", b"", "expected a file of numpy arrays"),
        ("a.npz", b"PK\x03\x04", "expected a file of numpy arrays"),
        (
            "a.npy",
            OF_OBJECTS,
            "numbers or text",
        ),
        ("a.csv", b"", "found none"),
        ("a.csv", b"a,b\n1,2\n3\n", "row 3: expected 2 cells, found 1"),
        ("a.csv", b"a,a\n1,2\n", "twice"),
        ("a.csv", b"\xff\xfe\x00", "expected comma-separated text"),
        ("a.csv", b"1\n2\n", "beside the target"),
        ("a.tfrecord", b"\x00" * 30, "a.tfrecord"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_examples(tmp_path / name, INPUT, targets=True)


def test_a_missing_file_or_column_is_named(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_examples(tmp_path / "none.npz", INPUT, targets=True)
    with pytest.raises(
        InputError, match="expected a column z; it has x, y: say which one is y with --y NAME"
    ):
        read_examples(written(tmp_path, "data.npz"), INPUT, y="z", targets=True)


def test_examples_take_the_models_shape_where_that_is_plain(tmp_path):
    images = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.savez(tmp_path / "images.npz", images)
    for name, shape in (("images", (3, 4, 1)), ("flat", (3, 4, 1)), ("flat", (2, 2, 3))):
        np.save(tmp_path / "flat.npy", images.reshape(2, -1))
        path = tmp_path / ("images.npz" if name == "images" else "flat.npy")
        found = read_examples(path, {"input": shape}, targets=False)
        np.testing.assert_array_equal(found, images.reshape(2, *shape))
    for shape in ((4, 3), (None, 4, 1), (5,)):
        assert read_examples(tmp_path / "images.npz", {"input": shape}, targets=False).shape == (2, 3, 4)


@pytest.mark.parametrize("columns", [1, 3000])
def test_a_message_names_a_few_columns_and_not_all_of_each(tmp_path, columns):
    path = tmp_path / "long.csv"
    path.write_text(
        ",".join(f"{number}{'x' * 5000}" for number in range(columns)) + "\n" + ",".join("1" * columns)
    )
    with pytest.raises(InputError) as refused:
        read_examples(path, INPUT, y=None if columns == 1 else "label", targets=True)
    assert "0xxx" in str(refused.value)
    assert len(str(refused.value)) < 2500 + len(str(path))
