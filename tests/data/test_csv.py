"""Datasets of .csv files by TensorFlow's rules; expected values are what TensorFlow 2.15.1 printed."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.data import Dataset
from dtrain.data.experimental import CsvDataset, make_csv_dataset
from dtrain.data.readers.csv_format import CsvColumn, CsvRows
from dtrain.data.record_index import index_files
from dtrain.data.record_index.addressing import addressed
from dtrain.errors import InvalidArgumentError

I, F, S = np.int32, np.float32, str


@pytest.fixture(autouse=True)
def small_files_have_indexes(monkeypatch):
    monkeypatch.setattr(index_files, "INDEXED_BYTES_MIN", 0)
    index_files._known.clear()


def plain(row):
    return tuple(value if isinstance(value, bytes) else value.item() for value in row)


ROWS = [
    (b"1,2.5,a\n2,3,b\n", [I, F, S], {}, [(1, 2.5, b"a"), (2, 3.0, b"b")]),
    (
        b'h,i,j\n1,2.5,a\r\n2,3,"b,\n""x"""\n',
        [I, F, S],
        {"header": True},
        [(1, 2.5, b"a"), (2, 3.0, b'b,\n"x"')],
    ),
    (b"1,,a\n", [I, [7.0], S], {}, [(1, 7.0, b"a")]),
    (b"1\n\n3\n", [[5]], {}, [(1,), (5,), (3,)]),
    (b"1,2,3,4\n", [I, I], {"select_cols": [1, 3]}, [(2, 4)]),
    (b"1,2,3,4\n", [I, I], {"exclude_cols": [0, 2]}, [(2, 4)]),
    (b"1;NA\n", [I, [9]], {"field_delim": ";", "na_value": "NA"}, [(1, 9)]),
    (b'1,"2"\n', [I, S], {"use_quote_delim": False}, [(1, b'"2"')]),
    (b" 1, 2\n", [I, I], {}, [(1, 2)]),
    (b"1,2", [I, I], {}, [(1, 2)]),
    (b"1,\n", [I, ["d"]], {}, [(1, b"d")]),
    (b"", [I], {}, []),
    (b"1e3,0x10\n", [F, S], {}, [(1000.0, b"0x10")]),
    (b"1\r2\r", [I], {}, [(1,), (2,)]),
]


@every_row("text, defaults, options, expected", ROWS)
def test_rows_are_tensorflows_from_the_front_and_by_number(tmp_path, text, defaults, options, expected):
    (tmp_path / "x.csv").write_bytes(text)
    dataset = CsvDataset(str(tmp_path / "x.csv"), defaults, **options)
    assert [plain(row) for row in dataset] == expected
    node = addressed(dataset.node)
    assert [plain(node.element(number, (0,))) for number in range(node.cardinality)] == expected
    for row in dataset:
        assert [spec.dtype for spec in dataset.element_spec] == [
            "string" if isinstance(value, bytes) else value.dtype.name for value in row
        ]
    (tmp_path / "x.gz").write_bytes(gzip.compress(text))
    packed = CsvDataset(str(tmp_path / "x.gz"), defaults, "GZIP", **options)
    assert [plain(row) for row in packed] == expected


@pytest.mark.parametrize(
    ("text", "defaults", "message"),
    [
        (b"1,,a\n", [I, F, S], "the row at byte 0: field 1: is required, and empty"),
        (b"1,2\n\n3,4\n", [I, I], "the row at byte 4: expected 2 fields, found 1"),
        (b"1,2,3\n", [I, I], "expected 2 fields, found 3"),
        (b"1,2\nx,2\n", [I, I], "the row at byte 4: field 0: expected int32, found 'x'"),
        (b'1,"2\n', [I, S], "field 1: a quote is open at its end"),
        (b'1,2"x\n', [I, S], "or stands within a field"),
        (b"99999999999,1\n", [I, I], "expected int32, found '99999999999'"),
        (b"1.5\n", [I], "expected int32, found '1.5'"),
        (b"1_0\n", [I], "expected int32, found '1_0'"),
    ],
)
def test_rows_that_tensorflow_refuses_are_named_by_file_and_offset(tmp_path, text, defaults, message):
    (tmp_path / "x.csv").write_bytes(text)
    dataset = CsvDataset(str(tmp_path / "x.csv"), defaults)
    with pytest.raises(InvalidArgumentError, match=rf"x\.csv: the row at byte .*{message.split(': ')[-1]}"):
        list(dataset)
    node = addressed(dataset.node)
    with pytest.raises(InvalidArgumentError, match=message):
        [node.element(number, (0,)) for number in range(node.cardinality)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text('a",\n\r', min_size=1, max_size=6), max_size=8), st.integers(1, 7))
def test_any_text_in_quotes_comes_back(tmp_path_factory, texts, block):
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    path.write_text("".join('"' + text.replace('"', '""') + '",1\n' for text in texts), newline="")
    rows = CsvDataset(str(path), [S, I])
    expected = [(text.encode(), 1) for text in texts]
    assert [plain(row) for row in rows] == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dtrain.data.readers.csv_format.SCANNED_BYTES", block)
        index_files._known.clear()
        path.with_name("x.csv.dtidx").unlink(missing_ok=True)
        node = addressed(rows.node)
    assert [plain(node.element(number, (0,))) for number in range(node.cardinality)] == expected


def test_make_csv_dataset(tmp_path):
    for number in range(3):
        lines = [f"{row},{row / 2},n{row},{row % 2}" for row in range(10 * number, 10 * number + 10)]
        (tmp_path / f"{number}.csv").write_text("a,b,c,y\n" + "\n".join(lines) + "\n")
    pattern = f"{tmp_path}/*.csv"
    dataset = make_csv_dataset(pattern, 4, label_name="y", num_epochs=1, shuffle=False)
    batches = list(dataset)
    assert [len(y) for _, y in batches] == [4] * 7 + [2]
    features, y = batches[0]
    assert list(features) == ["a", "b", "c"]
    assert (features["a"].dtype, features["b"].dtype, y.dtype) == (np.int32, np.float32, np.int32)
    assert features["c"].tolist() == [b"n0", b"n1", b"n2", b"n3"]
    shuffled = make_csv_dataset(pattern, 5, select_columns=["c", "a"], num_epochs=2)
    rows = [int(row) for batch in shuffled for row in batch["a"]]
    assert sorted(rows) == sorted([*range(30)] * 2)
    assert rows[:30] != rows[30:]
    assert addressed(make_csv_dataset(pattern, 7, shuffle_seed=3).node).addressable
    assert next(iter(make_csv_dataset(pattern, 7)))["a"].shape == (7,)


def test_dtypes_are_told_by_the_first_rows(tmp_path):
    (tmp_path / "x.csv").write_text("a,b,c,d,e,f\n1,1,1e5,1e300,,7\n3000000000,2.5,2,1,,x\n")
    (row,) = make_csv_dataset(str(tmp_path / "x.csv"), 2, num_epochs=1, shuffle=False)
    found = [row[name].dtype.name for name in "abcdef"]
    assert found == ["int64", "float32", "float32", "float64", "object", "object"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label_name": "z"}, "expected label_name 'z' among the columns a, b of .*0.csv"),
        ({"select_columns": ["a", "z"]}, "there is no column 'z'; expected a, b"),
        ({"header": False}, "column_names or header"),
        ({"column_names": ["a", "a"]}, "named twice: a"),
        ({"column_defaults": [I]}, "column_defaults of 2 columns, found 1"),
    ],
)
def test_columns_that_are_missing_are_named(tmp_path, arguments, message):
    (tmp_path / "0.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidArgumentError, match=message):
        make_csv_dataset(f"{tmp_path}/*.csv", 2, **arguments)


def test_files_with_other_columns_are_named(tmp_path):
    (tmp_path / "0.csv").write_text("a,b\n1,2\n")
    (tmp_path / "1.csv").write_text("a,c\n1,2\n")
    with pytest.raises(
        InvalidArgumentError, match=r"1\.csv: expected the columns of .*0\.csv, a, b; found a, c"
    ):
        make_csv_dataset(f"{tmp_path}/*.csv", 2)


def test_names_of_files_may_be_a_dataset(tmp_path):
    (tmp_path / "0.csv").write_text("1,2\n")
    names = Dataset.from_tensor_slices([str(tmp_path / "0.csv")] * 2)
    assert [plain(row) for row in CsvDataset(names, [I, I])] == [(1, 2)] * 2
    assert CsvRows([CsvColumn(0, "int32")], fields=1).spec[0].dtype == "int32"
